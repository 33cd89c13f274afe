"""Linear algebra on LAPACK, in float32, float64 and their complex numbers."""

from op_table.row import HALVES, NUMBERS, also, composite, kernel, per_term

_LAPACK = frozenset({"float32", "float64", "complex64", "complex128"})
_REAL = frozenset({"float32", "float64"})

# LAPACK is backward stable: its result is the exact one of operands that differ by a few n eps; the parity samples
# have n of up to 7.
_STABLE = per_term(
    "backward stable: exact for operands that differ by a few n eps", f32=8, f64=8, c64=8, c128=8
)
# of these the terms are the largest of the whole matrix
_EIGEN = per_term("an iteration of rotations, each of them backward stable", f32=64, f64=64, c64=64, c128=64)

# factorizations and what is solved with them
for _name in (
    "linalg_cholesky_ex",
    "cholesky_inverse",
    "_cholesky_solve_helper",
    "linalg_lu_factor_ex",
    "linalg_lu",
    "linalg_lu_solve",
    "linalg_inv_ex",
    "_linalg_det",
    "_linalg_slogdet",
    "_linalg_solve_ex",
    "linalg_solve_triangular",
    "triangular_solve",
    "linalg_qr",
    "geqrf",
    "linalg_householder_product",
    "ormqr",
    "linalg_ldl_factor_ex",
    "linalg_ldl_solve",
):
    kernel(_name, _LAPACK, bound=_STABLE)
# PyTorch's meta kernels give some row-major matrices, as on CUDA
for _name in ("_linalg_eigh", "_linalg_eigvals", "linalg_eigvals"):
    kernel(_name, _LAPACK, bound=_EIGEN)
kernel("linalg_eig", _LAPACK, bound=_EIGEN, strides="column_major")
kernel("_linalg_svd", _LAPACK, bound=_EIGEN, strides="column_major")
kernel("cholesky", _LAPACK, bound=_STABLE)
kernel("lu_unpack", _LAPACK)
kernel(
    "linalg_matrix_exp",
    _LAPACK | HALVES,
    bound=per_term(
        "products of matrices, squared where the norm is large; the halves round once",
        f32=8,
        f64=8,
        c64=8,
        c128=8,
        f16=1,
        bf16=1,
    ),
)

composite(
    "linalg_lstsq",
    via="linalg_lstsq",
    why="one kernel; which results there are depends on the driver and, for residuals, on the ranks found",
)
composite("linalg_pinv.atol_rtol_tensor", why="a singular value decomposition and products; PyTorch's own")
composite("_linalg_check_errors", via="linalg_check_errors", why="reads a result and raises; no launch")
composite("renorm", via="renorm", why="six launches: a norm, five pointwise; in no profile we have")

# pointwise along one dimension; the halves are computed in float32
kernel(
    "linalg_cross",
    NUMBERS,
    bound=per_term("two products and a difference", f32=1.5, f64=1.5, f16=1, bf16=1, c64=6, c128=6),
)

# distances are computed from differences, never from a matrix product: two nearby points lose nothing
_DISTANCE = per_term("sums in sixteen lanes, then a power", f32=6, f64=6)
kernel("_cdist_forward", _REAL, bound=_DISTANCE)
kernel("_cdist_backward", _REAL, bound=_DISTANCE)
kernel("_pdist_forward", _REAL, bound=_DISTANCE)
kernel("_pdist_backward", _REAL, bound=_DISTANCE)
composite("_euclidean_dist", via="euclidean_dist", why="one kernel, that of _cdist_forward")

also("geqrf", meta="geqrf")
also("_linalg_eigh", terms="matrix", form="eigenvectors")
also("_linalg_eigvals linalg_eigvals linalg_eig", terms="matrix", form="sorted")
also("_linalg_eigvals linalg_eigvals", sampled_as="linalg_eig")
also("_linalg_svd", terms="matrix", form="singular_vectors")
also("linalg_matrix_exp linalg_lstsq linalg_pinv", terms="matrix")
