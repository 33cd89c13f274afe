"""Random numbers: Philox, counter based, so that the same seed gives the same numbers for any number of threads.

A law's parameters come at launch: drawing with another one makes no new plan. There is no bound: what is tested is
the law itself and that the numbers do not depend on threads or strides.
"""

from math import exp, sqrt

from op_table.row import (
    BOOL,
    COMPLEX,
    DRAWN,
    FLOATING,
    REAL,
    Filled,
    Law,
    also,
    composite,
    kernel,
    per_term,
    pointwise,
    ulp,
)

kernel("uniform", FLOATING, random=True, launch_scalars=("from", "to"))
kernel("normal_", FLOATING | COMPLEX, kernel="normal", random=True, launch_scalars=("mean", "std"))
kernel("normal_functional", FLOATING | COMPLEX, kernel="normal", random=True, launch_scalars=("mean", "std"))
kernel("normal.Tensor_float", FLOATING, kernel="normal_mean", random=True, launch_scalars=("std",))
kernel("normal.float_Tensor", FLOATING, kernel="normal_std", random=True, launch_scalars=("mean",))
kernel("normal.Tensor_Tensor", FLOATING, kernel="normal_both", random=True, strides="contiguous")
kernel("log_normal", FLOATING, random=True, launch_scalars=("mean", "std"))
kernel("cauchy", FLOATING, random=True, launch_scalars=("median", "sigma"))
kernel("exponential", FLOATING, random=True, launch_scalars=("lambd",))
kernel("geometric", REAL, random=True, launch_scalars=("p",))
kernel("random", REAL | BOOL, random=True)
kernel("random.to", REAL | BOOL, random=True, launch_scalars=("to",))
kernel("random.from", REAL | BOOL, random=True, launch_scalars=("from", "to"))
kernel("bernoulli.p", REAL | BOOL, random=True, launch_scalars=("p",))
kernel("bernoulli.Tensor", REAL | BOOL, kernel="bernoulli_of", random=True)
kernel("bernoulli", FLOATING, kernel="bernoulli_of", random=True)
kernel("multinomial", FLOATING, random=True)
kernel("poisson", FLOATING, random=True)
kernel("binomial", FLOATING, random=True)
kernel("_standard_gamma", FLOATING, random=True)
composite(
    "_sample_dirichlet",
    via="sample_dirichlet",
    why="gamma samples over their sum, as CUDA makes them; four launches in no profile we have",
    random=True,
)
_WIDE = frozenset({"float32", "float64"})  # PyTorch has these for no half
_SERIES = "float64: powers and logarithms of sums; float32: PyTorch rounds 1 - x and its series to it"
pointwise("_standard_gamma_grad", _WIDE, bound=ulp(f32=1, f64=256, why=_SERIES), domain=(0.0625, 30))
pointwise("_dirichlet_grad", _WIDE, bound=ulp(f32=1, f64=256, why=_SERIES), domain=(0.0625, 0.9375))
kernel("native_dropout", FLOATING, random=True, launch_scalars=("p",))
kernel(
    "native_dropout_backward",
    FLOATING,
    strides="dense_like_first",
    bound=per_term("two roundings", f32=1),
    launch_scalars=("scale",),
)
kernel("rrelu_with_noise", FLOATING, random=True)
composite("rrelu_with_noise_backward", why="one product with the noise; rrelu is in no profile we have")

also("normal.Tensor_Tensor", meta="normal_both")
also("binomial", meta="binomial")
also("_standard_gamma", meta="standard_gamma")
also("_standard_gamma_grad _dirichlet_grad", meta="gradient_of_samples")
also("native_dropout_backward", terms="sum", underflows=True)

also("uniform", numbers="uniform")
also(
    "normal_ normal_functional normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor", numbers="normal"
)
also("log_normal", numbers="log_normal")
also("exponential", numbers="exponential")
also("bernoulli.p bernoulli.Tensor bernoulli.default", numbers="bernoulli")
also("random.default random.to random.from", numbers="random")

_GAMMA = 2.5
also("uniform", law=Law((Filled(), -1.0, 3.0), 1, 4 / sqrt(12), -1, 3))
also("normal_ normal_functional", law=Law((Filled(), 1.0, 2.0), 1, 2))
also("normal.Tensor_float", law=Law((Filled(1.0), 2.0), 1, 2))
also("normal.float_Tensor", law=Law((1.0, Filled(2.0)), 1, 2))
also("normal.Tensor_Tensor", law=Law((Filled(1.0), Filled(2.0)), 1, 2))
also("log_normal", law=Law((Filled(), 0.0, 0.5), exp(0.125), exp(0.125) * sqrt(exp(0.25) - 1), 0))
also("cauchy", law=Law((Filled(), 1.0, 2.0), 1, 2, median=True))
also("exponential", law=Law((Filled(), 2.0), 0.5, 0.5, 0))
also("geometric", law=Law((Filled(), 0.25), 4, sqrt(0.75) / 0.25, 1))
also("random.to random.from", exact_numbers=True)
also("random.default", law=Law((Filled(),), 0, 0))
also("random.to", law=Law((Filled(), 100), 49.5, sqrt((100**2 - 1) / 12), 0, 99))
also("random.from", law=Law((Filled(), 10, 100), 54.5, sqrt((90**2 - 1) / 12), 10, 99))
also("bernoulli.p", law=Law((Filled(), 0.25), 0.25, sqrt(0.1875), 0, 1))
also("bernoulli.Tensor", law=Law((Filled(), Filled(0.25, dtype="float32")), 0.25, sqrt(0.1875), 0, 1))
also("bernoulli.default", law=Law((Filled(0.25),), 0.25, sqrt(0.1875), 0, 1))
also("poisson", law=Law((Filled(4.0),), 4, 2, 0))
also("binomial", law=Law((Filled(8.0), Filled(0.25)), 2, sqrt(1.5), 0, 8))
also("_standard_gamma", law=Law((Filled(_GAMMA),), _GAMMA, sqrt(_GAMMA), 0))
also("_sample_dirichlet", law=Law((Filled(_GAMMA, columns=2),), 0.5, sqrt(0.25 / (2 * _GAMMA + 1)), 0, 1))
also("native_dropout", law=Law((Filled(1.0), 0.25, True), 1, sqrt(0.25 / 0.75), 0, 1.34))
also("multinomial", law=Law(((1.0, 2.0, 0.0, 1.0), DRAWN, True), 1.25, 1.0897, 0, 3))
also(
    "rrelu_with_noise",
    law=Law((Filled(-1.0), Filled(), 0.25, 0.75, True), -0.5, 0.5 / sqrt(12), -0.76, -0.24),
)
also("random.default", law_of_bool=Law((Filled(),), 0.5, 0.5, 0, 1))
also("random.to", law_of_bool=Law((Filled(), 2), 0.5, 0.5, 0, 1))
also("random.from", law_of_bool=Law((Filled(), 0, 2), 0.5, 0.5, 0, 1))
