"""Tensors made from numbers."""

from op_table.row import ALL, COMPLEX, INTEGERS, REAL, also, composite, kernel, ulp

SPACED = ulp("steps are computed in double", f32=1, f64=2, f16=1, bf16=1, c64=2, c128=4)
POWERS = ulp("exponents are computed in double", f32=1, f64=512, f16=1, bf16=1, c64=64, c128=512)

kernel("arange", REAL)
kernel("arange.start", REAL)
kernel("arange.start_step", REAL)
kernel("range", REAL, kernel="arange")
kernel("range.step", REAL, kernel="arange")
kernel("linspace", REAL | COMPLEX, bound=SPACED)
kernel("linspace.Scalar_Tensor", REAL | COMPLEX, bound=SPACED)
kernel("linspace.Tensor_Scalar", REAL | COMPLEX, bound=SPACED)
kernel("linspace.Tensor_Tensor", REAL | COMPLEX, bound=SPACED)
kernel("logspace", REAL | COMPLEX, bound=POWERS)
kernel("logspace.Scalar_Tensor", REAL | COMPLEX, bound=POWERS)
kernel("logspace.Tensor_Scalar", REAL | COMPLEX, bound=POWERS)
kernel("logspace.Tensor_Tensor", REAL | COMPLEX, bound=POWERS)
for _name in ("linspace", "logspace"):
    for _ends in ("Scalar_Tensor", "Tensor_Scalar", "Tensor_Tensor"):
        also(f"{_name}.{_ends}", meta=f"{_name}_{_ends.lower()}")
kernel("eye", ALL)
kernel("eye.m", ALL)
kernel("tril_indices", INTEGERS)
kernel("triu_indices", INTEGERS)

composite("new_empty_strided", why="empty_strided with the operand's dtype: no launch at all")
composite(
    "_efficientzerotensor",
    via="efficient_zeros",
    why="one fill; PyTorch's has no memory, which only its own kernels know",
)

also("range.step", meta="range")
