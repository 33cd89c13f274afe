"""Pointwise operators: unary, activations and their derivatives, binary, comparison, bitwise, ternary.

Bounds are ULP against a float64 reference computed from the same inputs. Those of float32 functions are what
``libmaca_ffi/shared/vector_math.h`` states beside each function, rounded up; float64 is libm's or the same
polynomial scheme. Complex results count the ULP of their magnitude.
"""

from op_table.row import (
    ALL,
    BOOL,
    COMPLEX,
    FLOATING,
    INTEGERS,
    NUMBERS,
    REAL,
    also,
    kernel,
    pointwise,
    ulp,
)

_REAL_OR_BOOL = REAL | BOOL
_WHOLE = INTEGERS | BOOL
_ROUNDED = ulp(f32=0.5, f64=0.5, c64=2, c128=2)  # one correctly rounded operation

# ---- unary: signs, rounding, classification -------------------------------------------------------------------

pointwise("abs", ALL, bound=ulp(f32=0, f64=0, c64=1, c128=1))
pointwise("neg", NUMBERS)
pointwise("sign", _REAL_OR_BOOL)
pointwise("sgn", ALL, bound=ulp(f32=0, f64=0, c64=2, c128=2))
pointwise("signbit", _REAL_OR_BOOL)
pointwise("ceil", REAL)
pointwise("floor", REAL)
pointwise("trunc", REAL)
pointwise("round", REAL)
pointwise(
    "round.decimals",
    FLOATING,
    bound=ulp(f32=2, f64=2, why="scales, rounds and scales back in the operand's precision, as PyTorch does"),
)
pointwise("frac", FLOATING)
pointwise("isnan", ALL)
pointwise("isinf", ALL)
pointwise("isposinf", _REAL_OR_BOOL)
pointwise("isneginf", _REAL_OR_BOOL)
pointwise("logical_not", ALL)
pointwise("bitwise_not", _WHOLE)
pointwise("nan_to_num", ALL)
pointwise("_conj_physical", ALL)
pointwise("conj_physical", ALL, kernel="_conj_physical")
pointwise("angle", ALL, bound=ulp(f32=1.5, f64=1.5, c64=1.5, c128=1.5), strides="angle")
pointwise("deg2rad", _REAL_OR_BOOL, bound=ulp(f32=1.5, f64=1.5))
pointwise("rad2deg", _REAL_OR_BOOL, bound=ulp(f32=1.5, f64=1.5))

# ---- unary: elementary functions ------------------------------------------------------------------------------

_COMPLEX_WHY = "complex: libm's parts multiplied, a few roundings each"

pointwise("exp", ALL, bound=ulp(f32=1.5, f64=1, c64=4, c128=4))
pointwise(
    "exp2", ALL, bound=ulp(f32=1.5, f64=1, c64=8, c128=8, why="complex: z * ln 2 is rounded before exp")
)
pointwise("expm1", ALL, bound=ulp(f32=2, f64=2, c64=8, c128=8, why=_COMPLEX_WHY))
pointwise("log", ALL, bound=ulp(f32=1, f64=1, c64=4, c128=4))
pointwise("log2", ALL, bound=ulp(f32=1, f64=1, c64=4, c128=4))
pointwise("log10", ALL, bound=ulp(f32=1, f64=2, c64=4, c128=4))
pointwise("log1p", ALL, bound=ulp(f32=1.5, f64=1.5, c64=4, c128=4))
pointwise("sqrt", ALL, bound=ulp(f32=0.5, f64=1, c64=2, c128=2))
pointwise("rsqrt", ALL, bound=ulp(f32=1.5, f64=1.5, c64=4, c128=4))
pointwise("reciprocal", ALL, bound=_ROUNDED)
pointwise("sin", ALL, bound=ulp(f32=1, f64=1, c64=4, c128=4))
pointwise("cos", ALL, bound=ulp(f32=1, f64=1, c64=4, c128=4))
pointwise("tan", ALL, bound=ulp(f32=1, f64=1, c64=8, c128=8, why=_COMPLEX_WHY))
pointwise("asin", ALL, bound=ulp(f32=1, f64=1, c64=4, c128=4))
pointwise("acos", ALL, bound=ulp(f32=1, f64=1, c64=16, c128=16, why=_COMPLEX_WHY))
pointwise("atan", ALL, bound=ulp(f32=1, f64=1, c64=6, c128=6, why=_COMPLEX_WHY))
pointwise("sinh", ALL, bound=ulp(f32=1, f64=2, c64=4, c128=4))
pointwise("cosh", ALL, bound=ulp(f32=1, f64=2, c64=4, c128=4))
pointwise("tanh", ALL, bound=ulp(f32=1.5, f64=2.6, c64=8, c128=8, why=_COMPLEX_WHY))
pointwise("asinh", ALL, bound=ulp(f32=1, f64=2, c64=4, c128=4))
pointwise("acosh", ALL, bound=ulp(f32=1, f64=2, c64=4, c128=4))
pointwise("atanh", ALL, bound=ulp(f32=1, f64=2, c64=6, c128=6, why=_COMPLEX_WHY))
pointwise("sigmoid", ALL, bound=ulp(f32=2.5, f64=3, c64=4, c128=4))
pointwise("erf", _REAL_OR_BOOL, bound=ulp(f32=1.5, f64=1))
pointwise(
    "erfc",
    _REAL_OR_BOOL,
    bound=ulp(f32=4, f64=5, why="float64: libm's"),
)
pointwise(
    "erfinv",
    _REAL_OR_BOOL,
    bound=ulp(f32=1, f64=4),
    domain=(-1, 1),
)
pointwise(
    "lgamma",
    _REAL_OR_BOOL,
    bound=ulp(f32=1, f64=16, why="float64: libm's lgamma loses digits near its negative roots"),
)
pointwise(
    "digamma",
    _REAL_OR_BOOL,
    bound=ulp(
        f32=2, f64=16, why="float64: recurrence up to 10 adds nine quotients; the domain begins past the root"
    ),
    domain=(1.7, 100),
)
pointwise("i0", _REAL_OR_BOOL, bound=ulp(f32=1, f64=8, why="float64: a series of 30 terms, times exp"))
pointwise(
    "sinc",
    ALL,
    bound=ulp(f32=1, f64=256, c64=64, c128=64, why="pi x rounds, which the zeros of the sine multiply"),
    domain=(-8, 8),
)
pointwise(
    "logit",
    _REAL_OR_BOOL,
    bound=ulp(f32=1, f64=8, why="float64: the argument of the logarithm is rounded near 1"),
    domain=(0, 1),
)

# ---- activations ----------------------------------------------------------------------------------------------

pointwise("relu", REAL)
pointwise("hardtanh", REAL)
pointwise("threshold", REAL)
pointwise("leaky_relu", FLOATING, bound=_ROUNDED)
pointwise("_prelu_kernel", FLOATING, bound=_ROUNDED)
pointwise("hardshrink", FLOATING)
pointwise("softshrink", FLOATING, bound=_ROUNDED)
pointwise("hardswish", FLOATING, bound=ulp(f32=2, f64=2), domain=(-2.5, 100))
pointwise("hardsigmoid", FLOATING, bound=ulp(f32=2, f64=2), domain=(-2.5, 100))
pointwise(
    "silu", FLOATING | COMPLEX, bound=ulp(f32=4, f64=4, c64=6, c128=6, why=_COMPLEX_WHY), domain=(-88, 100)
)
pointwise(
    "gelu",
    FLOATING,
    bound=ulp(
        f32=4.5,
        f64=2048,
        f16=2,
        bf16=1,
        why="a tail of six roundings; float64: PyTorch's own 1 + erf(x) cancels for negative x",
    ),
    domain=(-3, 20),
)
pointwise(
    "mish",
    FLOATING,
    bound=ulp(
        f32=5,
        f64=16,
        why="a product and a quotient of exponentials; float64: PyTorch composes tanh of log1p of exp",
    ),
    domain=(-100, 100),
)
pointwise(
    "softplus",
    FLOATING,
    bound=ulp(f32=24, f64=24, f16=2, bf16=1, why="beta x rounds, and exp multiplies that by its argument"),
    domain=(-20, 20),
)
pointwise("elu", FLOATING, bound=ulp(f32=4, f64=4))
pointwise("celu", FLOATING, bound=ulp(f32=4, f64=4))
pointwise("log_sigmoid_forward", FLOATING, bound=ulp(f32=2.5, f64=2.5), strides="contiguous")

# ---- derivatives of activations -------------------------------------------------------------------------------

_ROOT = "the derivative has a root: near it a relative error has no bound"

pointwise("threshold_backward", REAL)
pointwise("hardtanh_backward", REAL, strides="tensor_iterator")
pointwise("hardshrink_backward", FLOATING)
pointwise("softshrink_backward", FLOATING)
pointwise("leaky_relu_backward", FLOATING, bound=_ROUNDED)
kernel("_prelu_kernel_backward", FLOATING, bound=_ROUNDED)
pointwise(
    "hardswish_backward",
    FLOATING,
    bound=ulp(f32=2, f64=2, why=_ROOT),
    domain=(-3, 100),
    strides="tensor_iterator",
)
pointwise("hardsigmoid_backward", FLOATING, bound=_ROUNDED, strides="tensor_iterator")
pointwise("sigmoid_backward", FLOATING | COMPLEX, bound=ulp(f32=3, f64=3, c64=4, c128=4))
pointwise(
    "tanh_backward",
    FLOATING | COMPLEX,
    bound=ulp(
        f32=2.5,
        f64=4,
        c64=8,
        c128=8,
        why="complex: a product of two sums; float64: the reference's own 1 - y^2",
    ),
    domain=(-1, 1),
)
pointwise("gelu_backward", FLOATING, bound=ulp(f32=6, f64=256, why=_ROOT), domain=(-0.5, 4))
pointwise("silu_backward", FLOATING, bound=ulp(f32=16, f64=16, why=_ROOT), domain=(-1, 20))
pointwise("mish_backward", FLOATING, bound=ulp(f32=16, f64=128, why=_ROOT), domain=(-0.5, 20))
pointwise(
    "softplus_backward",
    FLOATING,
    bound=ulp(f32=24, f64=24, f16=2, bf16=1, why="beta x rounds, and exp multiplies that by its argument"),
    domain=(-20, 20),
    strides="tensor_iterator",
)
pointwise("elu_backward", FLOATING, bound=ulp(f32=4, f64=4), strides="tensor_iterator")
pointwise("log_sigmoid_backward", FLOATING, bound=ulp(f32=3, f64=3), domain=(0, 1))
pointwise("logit_backward", FLOATING, bound=ulp(f32=2.5, f64=2.5), domain=(0, 1), strides="tensor_iterator")

# ---- binary arithmetic ----------------------------------------------------------------------------------------

_SUM = ulp(
    f32=1,
    f64=1,
    c64=1024,
    c128=1024,
    why="with alpha: fused for real numbers where the target has FMA, two roundings else, which cancellation shows",
)

pointwise("add.Tensor", ALL, bound=_SUM, strides="tensor_iterator")
pointwise("add.Scalar", ALL, bound=_SUM)
pointwise("sub.Tensor", NUMBERS, bound=_SUM, strides="tensor_iterator")
pointwise("sub.Scalar", NUMBERS, bound=_SUM)
pointwise("rsub.Tensor", NUMBERS, bound=_SUM)
pointwise("rsub.Scalar", NUMBERS, bound=_SUM)
pointwise("mul.Tensor", ALL, bound=_ROUNDED)
pointwise("mul.Scalar", ALL, bound=_ROUNDED)
pointwise("div.Tensor", ALL, bound=ulp(f32=0.5, f64=0.5, c64=4, c128=4))
pointwise("div.Scalar", ALL, bound=ulp(f32=0.5, f64=0.5, c64=4, c128=4))

_QUOTIENT = "whole quotients: PyTorch divides in the operand's precision before it rounds down"

pointwise("div.Tensor_mode", _REAL_OR_BOOL, bound=ulp(f32=1, f64=1, why=_QUOTIENT), strides="tensor_iterator")
pointwise("div.Scalar_mode", _REAL_OR_BOOL, bound=ulp(f32=1, f64=1, why=_QUOTIENT))
pointwise("floor_divide", REAL, bound=ulp(f32=1, f64=1, why=_QUOTIENT), strides="tensor_iterator")
pointwise("floor_divide.Scalar", REAL, bound=ulp(f32=1, f64=1, why=_QUOTIENT))
pointwise("remainder.Tensor", REAL, bound=ulp(f32=1, f64=1))
pointwise("remainder.Scalar", REAL, bound=ulp(f32=1, f64=1))
pointwise("remainder.Scalar_Tensor", REAL, bound=ulp(f32=1, f64=1))
pointwise("fmod.Tensor", REAL)
pointwise("fmod.Scalar", REAL)
pointwise("maximum", _REAL_OR_BOOL)
pointwise("minimum", _REAL_OR_BOOL)
pointwise("fmax", _REAL_OR_BOOL)
pointwise("fmin", _REAL_OR_BOOL)
pointwise("copysign.Tensor", _REAL_OR_BOOL, strides="tensor_iterator")
pointwise("copysign.Scalar", _REAL_OR_BOOL)
pointwise("heaviside", _REAL_OR_BOOL, strides="tensor_iterator")
pointwise("nextafter", FLOATING, why="steps by the dtype's own unit: PyTorch's kernel is the reference")
pointwise("hypot", FLOATING, bound=ulp(f32=1, f64=1))
pointwise("atan2", _REAL_OR_BOOL, bound=ulp(f32=1, f64=1))

_POWER = "cube, reciprocal square and root round once an operation, as PyTorch's special cases do"

pointwise("pow.Tensor_Tensor", NUMBERS, bound=ulp(f32=1, f64=1, c64=32, c128=32, why=_COMPLEX_WHY))
pointwise("pow.Tensor_Scalar", NUMBERS, bound=ulp(f32=2, f64=2, c64=16, c128=16, why=_POWER))
pointwise(
    "pow.Scalar", NUMBERS, bound=ulp(f32=1, f64=1, c64=32, c128=32, why=_COMPLEX_WHY), strides="contiguous"
)
pointwise("xlogy.Tensor", _REAL_OR_BOOL, bound=ulp(f32=2, f64=2), domain=(0, 1e6), strides="tensor_iterator")
pointwise("xlogy.Scalar_Other", _REAL_OR_BOOL, bound=ulp(f32=2, f64=2), domain=(0, 1e6))
pointwise("xlogy.Scalar_Self", _REAL_OR_BOOL, bound=ulp(f32=2, f64=2), domain=(0, 1e6))
pointwise(
    "special_xlog1py",
    _REAL_OR_BOOL,
    bound=ulp(f32=2.5, f64=2.5),
    domain=(-0.99, 1e6),
    strides="tensor_iterator",
)
pointwise("special_xlog1py.other_scalar", _REAL_OR_BOOL, bound=ulp(f32=2.5, f64=2.5), domain=(-0.99, 1e6))
pointwise("special_xlog1py.self_scalar", _REAL_OR_BOOL, bound=ulp(f32=2.5, f64=2.5), domain=(-0.99, 1e6))

_CROSSING = "the sum crosses zero, where a relative error has no bound"

pointwise(
    "logaddexp", FLOATING, bound=ulp(f32=4, f64=4, why=_CROSSING), domain=(1, 50), strides="tensor_iterator"
)
pointwise(
    "logaddexp2", FLOATING, bound=ulp(f32=4, f64=4, why=_CROSSING), domain=(1, 50), strides="tensor_iterator"
)
pointwise("polar", frozenset({"float32", "float64"}), bound=ulp(f32=2, f64=2, c64=2, c128=2))
pointwise("complex", frozenset({"float16", "float32", "float64"}))

# ---- comparison, logic, bits ----------------------------------------------------------------------------------

for _name in ("eq", "ne"):
    pointwise(f"{_name}.Tensor", ALL)
    pointwise(f"{_name}.Scalar", ALL)
for _name in ("lt", "le", "gt", "ge"):
    pointwise(f"{_name}.Tensor", _REAL_OR_BOOL)
    pointwise(f"{_name}.Scalar", _REAL_OR_BOOL)
for _name in ("logical_and", "logical_or", "logical_xor"):
    pointwise(_name, ALL, strides="tensor_iterator")
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    pointwise(f"{_name}.Tensor", _WHOLE)
    pointwise(f"{_name}.Scalar", _WHOLE)
    pointwise(f"{_name}.Scalar_Tensor", _WHOLE)
for _name in ("bitwise_left_shift", "bitwise_right_shift"):
    pointwise(f"{_name}.Tensor", INTEGERS)
    pointwise(f"{_name}.Tensor_Scalar", INTEGERS)
    pointwise(f"{_name}.Scalar_Tensor", INTEGERS)
for _name in ("__lshift__", "__rshift__"):
    pointwise(f"{_name}.Tensor", INTEGERS)
    pointwise(f"{_name}.Scalar", INTEGERS)
pointwise("gcd", INTEGERS)
pointwise("lcm", INTEGERS)

# ---- three operands -------------------------------------------------------------------------------------------

pointwise("where.self", ALL)
pointwise("masked_fill.Scalar", ALL)
pointwise("masked_fill.Tensor", ALL)
pointwise("clamp", REAL)
pointwise("clamp.Tensor", REAL)
pointwise("clamp_min", REAL)
pointwise("clamp_min.Tensor", REAL)
pointwise("clamp_max", REAL)
pointwise("clamp_max.Tensor", REAL)

_TERMS = "terms of opposite sign cancel, for complex numbers always; the real domain has one sign"

_LERP = ulp(f32=4, f64=4, c64=1024, c128=1024, why=_TERMS)
_FUSED = ulp(f32=4, f64=4, c64=1024, c128=1024, why=_TERMS)
pointwise("lerp.Scalar", FLOATING | COMPLEX, bound=_LERP, domain=(0, 1))
pointwise("lerp.Tensor", FLOATING | COMPLEX, bound=_LERP, domain=(0, 1))
pointwise("addcmul", NUMBERS, bound=_FUSED, domain=(0.1, 10))
pointwise("addcdiv", FLOATING | COMPLEX, bound=_FUSED, domain=(0.1, 10))

also(
    "abs sign sgn ceil floor trunc round frac hardtanh threshold leaky_relu hardshrink softshrink "
    "hardswish hardsigmoid elu threshold_backward hardtanh_backward hardshrink_backward "
    "softshrink_backward leaky_relu_backward hardsigmoid_backward elu_backward remainder fmod maximum "
    "minimum fmax fmin where masked_fill.Scalar clamp clamp_min clamp_max",
    jumps=True,
)
# from the result of a negative slope the argument's sign cannot be told
also("leaky_relu_backward elu_backward", least=0)
also("where", mask="condition")
also("nan_to_num", meta="nan_to_num")
also("addcdiv", meta="addcdiv")
also("sigmoid silu mish", magnitude_elsewhere="overflown")
also("erfinv", formula="erfinv")
also("pow.Tensor_Scalar", meta="pow_scalar")
also("relu", jumps=True, meta="relu")
also("threshold", idempotent=True)
also("threshold_backward", meta="threshold_backward")
also("celu", least=1e-300)  # it divides by alpha, and PyTorch refuses a 0
also("gelu", formula="gelu", terms="disturbance", magnitude_elsewhere="argument")
also("log_sigmoid_forward", keeps=True)
also("hardswish_backward", terms="disturbance", jumps=True)
also("sigmoid_backward mul div", underflows=True)
also("tanh_backward", formula="tanh_backward", magnitude_elsewhere="gradient", underflows=True)
also(
    "gelu_backward",
    formula="gelu_backward",
    terms="disturbance",
    magnitude_elsewhere="gradient_and_argument",
)
also("silu_backward", terms="disturbance", magnitude_elsewhere="overflown_gradient")
also("mish_backward", terms="disturbance", magnitude_elsewhere="gradient_and_argument")
also("log_sigmoid_backward", magnitude_elsewhere="gradient")
also("add", cancels=True)
also("sub.Tensor", cancels=True, meta="sub_tensor")
also("sub.Scalar", cancels=True, meta="sub_scalar")
also("rsub.Tensor", cancels=True, meta="rsub_tensor")
also("rsub.Scalar", cancels=True, meta="rsub_scalar")
also("heaviside", meta="heaviside")
also("polar", meta="polar")
also("complex", meta="complex")
also("masked_fill.Tensor", jumps=True, number="value")
also("masked_fill", promotes=("self",), expanded=True)
also("where", promotes=("self", "other"), moves=("self", "other"))
also("masked_fill.Scalar", moves=("self",))
also("lerp", terms="disturbance", cancels=True)
also("addcmul addcdiv", terms="sum", cancels=True)
