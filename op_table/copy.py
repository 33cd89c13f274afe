"""Copies, casts and fills: any dtype to any dtype, any layout to any layout."""

from op_table.row import ALL, also, exact, pointwise

# float64 to a half rounds through float32, as PyTorch's own conversion does
pointwise("copy", ALL, bound=exact())
pointwise("clone", ALL, bound=exact())
pointwise("_to_copy", ALL, bound=exact())

pointwise("fill.Scalar", ALL, bound=exact())
pointwise("fill.Tensor", ALL, bound=exact())
also("copy fill", promotes=("self",))
pointwise("zero", ALL, bound=exact(), strides="dense_like_first")

also("copy _to_copy", underflows=True, copies=True)
also("clone", copies=True, moves=("self",))
also("fill.Scalar zero", moves=("self",))
also("fill zero", idempotent=True)
also("fill.Tensor", moves=("self", "value"))
