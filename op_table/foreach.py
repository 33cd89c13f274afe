"""Lists of tensors in one launch: what torch.optim and gradient clipping do with ``foreach=True``."""

from op_table.row import (
    ALL,
    COMPLEX,
    FLOATING,
    INTEGERS,
    NUMBERS,
    REAL,
    also,
    composite,
    exact,
    kernel,
    per_term,
    ulp,
)

_TERMS = "a sum of two terms may cancel: the error is that of the terms"
_SUM = per_term(_TERMS, f32=2, f64=2, f16=1, bf16=1, c64=4, c128=4)

for _name in ("_foreach_add", "_foreach_sub"):
    for _overload in ("List", "Scalar", "ScalarList"):
        kernel(f"{_name}.{_overload}", ALL, bound=_SUM)
for _overload in ("List", "Scalar", "ScalarList"):
    kernel(f"_foreach_mul.{_overload}", ALL, bound=ulp(f32=0.5, f64=0.5, f16=0.5, bf16=0.5, c64=4, c128=4))
    kernel(
        f"_foreach_div.{_overload}", NUMBERS, bound=ulp(f32=0.5, f64=0.5, f16=0.5, bf16=0.5, c64=4, c128=4)
    )
    for _name in ("_foreach_maximum", "_foreach_minimum", "_foreach_clamp_min", "_foreach_clamp_max"):
        kernel(f"{_name}.{_overload}", REAL, bound=exact())
# elementwise: the one tensor of these may be a 0-dim tensor of the host
kernel("_foreach_add.Tensor", ALL, kernel="_foreach_add_tensor", bound=_SUM, elementwise=True)
kernel(
    "_foreach_mul.Tensor",
    ALL,
    kernel="_foreach_mul_tensor",
    bound=ulp(f32=0.5, c64=4, c128=4),
    elementwise=True,
)
kernel(
    "_foreach_div.Tensor",
    NUMBERS,
    kernel="_foreach_div_tensor",
    bound=ulp(f32=0.5, c64=4, c128=4),
    elementwise=True,
)

for _overload in ("Scalar", "ScalarList"):
    kernel(f"_foreach_addcmul.{_overload}", NUMBERS, bound=_SUM)
    kernel(f"_foreach_addcdiv.{_overload}", FLOATING | COMPLEX, bound=_SUM)
for _name in ("_foreach_addcmul", "_foreach_addcdiv"):
    composite(
        f"{_name}.Tensor", via=f"{_name}_of_tensor".lstrip("_"), why="PyTorch wants the scalars on the host"
    )
for _overload in ("List", "Scalar", "ScalarList"):
    kernel(f"_foreach_lerp.{_overload}", FLOATING | COMPLEX, bound=_SUM)
for _overload in ("List", "Scalar", "ScalarList", "ScalarAndTensor"):
    kernel(
        f"_foreach_pow.{_overload}",
        NUMBERS,
        bound=ulp("complex powers are libm's", f32=1, f64=1, c64=16, c128=16),
        strides="contiguous" if _overload == "ScalarAndTensor" else "",
    )

also("_foreach_pow.Scalar", meta="foreach_pow_scalar")
also("_foreach_pow.ScalarList", meta="foreach_pow_scalars")

for _name in ("_foreach_neg", "_foreach_clone"):
    kernel(_name, NUMBERS, bound=exact())
for _name in (
    "_foreach_abs",
    "_foreach_sign",
    "_foreach_ceil",
    "_foreach_floor",
    "_foreach_trunc",
    "_foreach_round",
):
    kernel(_name, REAL, bound=exact())
kernel("_foreach_frac", FLOATING, bound=exact())
kernel("_foreach_zero", ALL, bound=exact())
kernel("_foreach_copy", ALL, bound=exact())
for _name in ("_foreach_reciprocal", "_foreach_sqrt"):
    kernel(_name, NUMBERS, bound=ulp(f32=0.5, f64=0.5, f16=0.5, bf16=0.5, c64=4, c128=4))
kernel("_foreach_rsqrt", NUMBERS, bound=ulp(f32=2, f64=2, f16=1, bf16=1, c64=8, c128=8))
for _name, _ulp in (
    ("_foreach_exp", 1.1),
    ("_foreach_expm1", 2),
    ("_foreach_log", 1),
    ("_foreach_log1p", 1.5),
    ("_foreach_log2", 1),
    ("_foreach_log10", 1.5),
    ("_foreach_tanh", 2.6),
    ("_foreach_sigmoid", 2.5),
    ("_foreach_erf", 1.2),
    ("_foreach_erfc", 4),
    ("_foreach_sin", 1),
    ("_foreach_cos", 1),
    ("_foreach_tan", 1),
    ("_foreach_asin", 1),
    ("_foreach_acos", 1),
    ("_foreach_atan", 1),
    ("_foreach_sinh", 2),
    ("_foreach_cosh", 2),
):
    kernel(_name, REAL, bound=ulp(f32=_ulp, f64=max(_ulp, 2.5)))
kernel("_foreach_lgamma", REAL, bound=ulp("libm's, near its zeros at 1 and 2", f32=4, f64=4))

kernel(
    "_foreach_norm.Scalar",
    FLOATING | (INTEGERS - {"int64"}),
    bound=per_term("sums are in double", f32=1, f64=2),
)
kernel("_foreach_max", FLOATING | (INTEGERS - {"int64"}), bound=exact())
composite("_foreach_powsum.Scalar", why="one product and one sum a tensor; no optimizer calls it")
composite("_foreach_mm", why="one matrix product a pair; no optimizer calls it")

also("_foreach_add _foreach_addcmul _foreach_addcdiv", terms="sum", cancels=True)
also("_foreach_sub _foreach_lerp", cancels=True)
also("_foreach_add.List", meta="foreach_add_list")
also("_foreach_add.Tensor", meta="foreach_add_tensor")
also("_foreach_sub.List", meta="foreach_sub_list")
also("_foreach_copy", meta="foreach_copy")
also("_foreach_addcdiv.Scalar", meta="foreach_addcdiv_scalar")
also("_foreach_addcdiv.ScalarList", meta="foreach_addcdiv_scalars")
