"""Embedding tables."""

from op_table.row import ALL, FLOATING, ONE_CHAIN, also, composite, kernel, per_term, ulp

kernel("embedding", ALL)
kernel(
    "embedding_dense_backward",
    FLOATING,
    bound=per_term(
        "the gradients of a word are added one by one", chain=ONE_CHAIN, f32=16, f64=16, f16=2, bf16=2
    ),
)
kernel(
    "embedding_renorm_",
    FLOATING,
    bound=ulp("norms in double, then one product", f32=2, f64=16, f16=1, bf16=1),
    contiguous=("indices",),
)

_BAG = per_term("rows of a bag are added one by one", f32=8, f64=8, f16=1, bf16=1)
_WHERE = ("indices", "offsets", "offset2bag", "bag_size", "maximum_indices")
for _name in ("_embedding_bag", "_embedding_bag_forward_only"):
    kernel(_name, FLOATING, kernel="_embedding_bag", bound=_BAG, contiguous=_WHERE[:2])
kernel(
    "_embedding_bag_dense_backward",
    FLOATING,
    bound=_BAG,
    contiguous=(_WHERE[0], *_WHERE[2:]),
    strides="contiguous",
)
kernel(
    "_embedding_bag_per_sample_weights_backward",
    FLOATING,
    bound=per_term("one rounding of a double sum", f32=1, f64=4, f16=1, bf16=1),
    contiguous=_WHERE[:3],
    strides="contiguous",
)
composite("_embedding_bag_backward", via="embedding_bag_backward", why="one launch of the dense gradient")

also("embedding", jumps=True)
also("embedding_dense_backward", terms="sum", cancels=True)
also("_embedding_bag", keeps=True, meta="embedding_bag")
also("_embedding_bag_forward_only", keeps=True, meta="embedding_bag_forward_only")
also(
    "_embedding_bag_dense_backward _embedding_bag_per_sample_weights_backward _embedding_bag_backward",
    keeps=True,
)
