"""Random numbers: Philox, counter based, so that the same seed gives the same numbers for any number of threads.

A law's parameters come at launch: drawing with another one makes no new plan. There is no bound: what is tested is
the law itself and that the numbers do not depend on threads or strides.
"""

from op_table.row import BOOL, COMPLEX, FLOATING, REAL, composite, kernel, per_term, pointwise, ulp

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
