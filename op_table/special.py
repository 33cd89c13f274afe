"""Special functions. All compute in float64 and round once, so that float32 and halves are nearly always correct.

The methods are those of Cephes, which PyTorch follows too; the kernels name the formulas.
"""

from op_table.row import BOOL, FLOATING, INTEGERS, also, composite, kernel, pointwise, ulp

_WHOLE = INTEGERS | BOOL
_ANY = FLOATING | _WHOLE
_WIDE = frozenset({"float32", "float64"}) | _WHOLE  # PyTorch has these for no half

# ---- gamma ----------------------------------------------------------------------------------------------------

_INCOMPLETE = ulp(
    f32=1,
    f64=512,
    why="float64: the prefix x^a e^-x multiplies its exponent's rounding by the exponent; tests stop at a = 20,"
    " from where PyTorch's asymptotic series takes pi in float32",
)
pointwise("igamma", FLOATING, bound=_INCOMPLETE)
pointwise("igammac", FLOATING, bound=_INCOMPLETE)
pointwise(
    "polygamma",
    _ANY,
    bound=ulp(
        f32=4,
        f64=64,
        why="pi x rounds in the operand's type below 1/2, as in PyTorch; float64: powers of sums",
    ),
    domain=(0.125, 50),
)
_POWERS = "float64: powers of a sum's terms, each a rounding of libm's pow"
for _name in ("special_zeta", "special_zeta.other_scalar", "special_zeta.self_scalar"):
    pointwise(
        _name, _WIDE, bound=ulp(f32=1, f64=16, why=_POWERS), domain=(1.125, 30), strides="tensor_iterator"
    )

# ---- the normal distribution ----------------------------------------------------------------------------------

pointwise("special_entr", _ANY, bound=ulp(f32=1.5, f64=2))
pointwise(
    "special_ndtri",
    _WIDE,
    bound=ulp(f32=1, f64=16, why="float64: 1 - y is the argument of a logarithm's root"),
    domain=(0, 1),
)
pointwise(
    "special_log_ndtr",
    _WIDE,
    bound=ulp(
        f32=1, f64=256, why="float64: past 1 the result is the small difference of 1 and PyTorch's erfc"
    ),
    domain=(-40, 5),
)
pointwise(
    "special_erfcx",
    _WIDE,
    bound=ulp(
        f32=1, f64=1024, why="float64: 8 for positive x; PyTorch's own rounds x^2 before exp for negative x"
    ),
)

# ---- Bessel and Airy ------------------------------------------------------------------------------------------

_SERIES = ulp(f32=1, f64=16, why="float64: a Chebyshev series of 30 terms, times exp")
for _name in ("i0e", "i1", "i1e"):
    pointwise(f"special_{_name}", _ANY, bound=_SERIES)
for _name in ("modified_bessel_i0", "modified_bessel_i1"):
    pointwise(f"special_{_name}", _WIDE, bound=_SERIES)
for _name in (
    "modified_bessel_k0",
    "modified_bessel_k1",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
):
    pointwise(f"special_{_name}", _WIDE, bound=_SERIES)
_OSCILLATES = "ULP of |f| + |x f'|, since there are roots; float64: PyTorch rounds x - pi/4"
for _name in ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "airy_ai"):
    pointwise(f"special_{_name}", _WIDE, bound=ulp(f32=1, f64=32, why=_OSCILLATES), domain=(-60, 60))
pointwise("special_spherical_bessel_j0", _WIDE, bound=ulp(f32=1, f64=2))

# ---- orthogonal polynomials -----------------------------------------------------------------------------------

_RECURRENCE = ulp(
    f32=1,
    f64=64,
    why="float64: two roundings a degree, where PyTorch's compiler fuses; tests go past the last root",
)
for _name in (
    *(f"{_shift}chebyshev_polynomial_{_kind}" for _shift in ("", "shifted_") for _kind in "tuvw"),
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
):
    for _overload in ("", ".x_scalar", ".n_scalar"):
        pointwise(f"special_{_name}{_overload}", _WIDE, bound=_RECURRENCE, strides="tensor_iterator")

# ---- parts ----------------------------------------------------------------------------------------------------

kernel("frexp.Tensor", FLOATING)
_GATE = ulp(f32=4, f64=4)
kernel("glu", FLOATING, bound=_GATE)
kernel("glu_backward", FLOATING, bound=_GATE, strides="contiguous")
kernel(
    "glu_jvp",
    FLOATING,
    bound=ulp(f32=1024, f64=1024, f16=4, bf16=2, why="two products of any sign are added"),
)

composite(
    "glu_backward_jvp",
    via="glu_backward_jvp",
    why="forward derivatives of a backward pass alone, where PyTorch has products and no kernel",
)

also(
    "special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_airy_ai",
    terms="disturbance",
)
also("glu_jvp", meta="glu_jvp")
