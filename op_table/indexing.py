"""Reading and writing through indices and masks.

Positions are integers here: the runtime turns masks into them. Where places meet, they receive their terms in index
order, or in as many pieces as the sizes say, so every result is the same for any number of threads.
"""

from op_table.row import ALL, INTEGERS, NUMBERS, ONE_CHAIN, REAL, also, composite, dynamic, kernel, per_term

# one rounding of a float sum for each term that meets in a place; halves are summed in float
SUM = per_term(
    "terms are added one by one in index order",
    chain=ONE_CHAIN,
    f32=16,
    f64=16,
    f16=2,
    bf16=2,
    c64=16,
    c128=16,
)

kernel("index.Tensor", ALL)
kernel("_unsafe_index.Tensor", ALL, kernel="index")
kernel("index_select", ALL)
kernel("take", ALL)
kernel("gather", ALL)

kernel("index_put", ALL, bound=SUM)
kernel("index_put_", ALL, kernel="index_put", bound=SUM)
kernel("_index_put_impl", ALL, kernel="index_put", bound=SUM)
kernel("_index_put_impl_", ALL, kernel="index_put", bound=SUM)
kernel("_unsafe_index_put", ALL, kernel="index_put", bound=SUM)
kernel("index_copy", ALL)
kernel("index_copy_", ALL, kernel="index_copy")
kernel("index_fill.int_Scalar", ALL)
kernel("index_fill.int_Tensor", ALL)
kernel("index_fill_.int_Scalar", ALL, kernel="index_fill")
kernel("index_fill_.int_Tensor", ALL, kernel="index_fill")
kernel("index_add", ALL, bound=SUM)
kernel("index_add_", ALL, kernel="index_add", bound=SUM)
kernel("index_reduce", REAL, bound=SUM)
kernel("index_reduce_", REAL, kernel="index_reduce", bound=SUM)
kernel("put", ALL, bound=SUM)
kernel("put_", ALL, kernel="put", bound=SUM)

kernel("scatter.src", ALL)
kernel("scatter.value", ALL)
kernel("scatter.reduce", NUMBERS, bound=SUM)
kernel("scatter.value_reduce", NUMBERS, bound=SUM)
kernel("scatter_.src", ALL, kernel="scatter")
kernel("scatter_.value", ALL, kernel="scatter")
kernel("scatter_.reduce", NUMBERS, kernel="scatter", bound=SUM)
kernel("scatter_.value_reduce", NUMBERS, kernel="scatter", bound=SUM)
kernel("scatter_add", ALL, bound=SUM)
kernel("scatter_add_", ALL, kernel="scatter_add", bound=SUM)
kernel("scatter_reduce.two", NUMBERS, bound=SUM)
kernel("scatter_reduce_.two", NUMBERS, kernel="scatter_reduce", bound=SUM)

kernel("masked_scatter", ALL)
kernel("masked_scatter_", ALL, kernel="masked_scatter")
kernel("masked_scatter_backward", ALL)
dynamic("masked_select", ALL, via="masked_select")
dynamic("nonzero", ALL, via="nonzero")
dynamic("nonzero_static", ALL, via="nonzero_static")
dynamic("repeat_interleave.Tensor", INTEGERS, via="repeat_interleave")

kernel("select_scatter", ALL)
kernel("slice_scatter", ALL)
kernel("diagonal_scatter", ALL)
composite("as_strided_scatter", via="as_strided_scatter", why="a copy of the memory and a copy into it")
kernel("select_backward", ALL)
kernel("slice_backward", ALL)
kernel("diagonal_backward", ALL)
kernel("unfold_backward", NUMBERS, bound=SUM)

composite("_unsafe_masked_index", why="only compiled programs ask for it")
composite("_unsafe_masked_index_put_accumulate", why="only compiled programs ask for it")

also("index", free_strides=4, jumps=True)
also("_unsafe_index", free_strides=4)
also("gather scatter scatter_ masked_select", jumps=True)
also("index_put index_put_", terms="sum", jumps=True)
also("_index_put_impl _index_put_impl_ _unsafe_index_put put put_ unfold_backward", terms="sum")
also("index_fill.int_Tensor index_fill_.int_Tensor", number="value")
also("index_add index_add_", terms="sum", cancels=True, meta="index_add")
also("scatter_add scatter_add_", terms="sum", cancels=True)
also("index_select", meta="index_select")
also("index_fill.int_Scalar index_fill_.int_Scalar", meta="index_fill_scalar")
also("index_fill.int_Tensor index_fill_.int_Tensor", meta="index_fill_tensor")
also("index_reduce index_reduce_", meta="index_reduce")
also("masked_scatter masked_scatter_", meta="masked_scatter")
also(
    "index_put_ _index_put_impl_ index_copy_ index_fill_ index_add_ index_reduce_ put_ scatter_ scatter_add_ "
    "scatter_reduce_",
    apart=True,
)
also("index_put_ _index_put_impl_ index_fill_", expanded=True)
also("select_scatter", meta="select_scatter")
also("slice_scatter", meta="slice_scatter")
also("diagonal_scatter", meta="diagonal_scatter")
also(
    "index _unsafe_index index_select take gather index_fill.int_Scalar index_fill_.int_Scalar scatter.value scatter_.value",
    moves=("self",),
)
also("index_put index_put_ _index_put_impl _index_put_impl_ _unsafe_index_put", moves=("self", "values"))
also("index_copy index_copy_", meta="index_copy")
also("index_copy index_copy_ put put_ masked_scatter masked_scatter_", moves=("self", "source"))
also("scatter.src scatter_.src select_scatter slice_scatter diagonal_scatter", moves=("self", "src"))
also("masked_scatter_backward select_backward slice_backward diagonal_backward", moves=("grad_output",))
