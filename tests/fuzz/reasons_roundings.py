"""Why numbers may differ where a rounding decides, or a kernel of the host's writes what it should not, as reasons.py has it."""

from __future__ import annotations

OF_ROUNDINGS: tuple[tuple[str, str, str], ...] = (
    (
        r"aten::((linalg_)?cross|(_foreach_)?lerp_?)",
        r"(NaN|infinite) at other places of torch\.(b?float16|float32)",
        "products of the largest numbers overflow on the way, unless they are fused with a sum",
    ),
    (
        r"aten::(mse_loss|sigmoid)_backward",
        r"infinite at other places of torch\.float16",
        "the host rounds a factor of the product to a half, which overflows",
    ),
    (
        r"aten::_softmax_backward_data",
        r"infinite at other places of torch\.float16",
        "an input_dtype of whole numbers, through which the device casts; autograd gives the operand's",
    ),
    (
        r"aten::std(_mean)?",
        r"(NaN|infinite) at other places of torch\.(bfloat16|float32)",
        "the mean and the squares of numbers near the largest, which are summed in float64 here",
    ),
    (
        r"aten::_*upsample_(linear1d|bilinear(2d)?)",
        r"NaN at other places of torch\.(b?float16|float(32|64))",
        "along a side that keeps its size the host takes the neighbour 0 times, and 0 times infinity is NaN",
    ),
    (
        r"aten::logspace",
        r"NaN at other places of torch\.complex(64|128)",
        "complex powers of a base past the largest number of float32, which is infinite on the host",
    ),
    (
        r"aten::pow_?",
        r"NaN at other places of torch\.float16",
        "the root of minus infinity: NaN on the host, too, but of halves",
    ),
    (
        r"aten::special_laguerre_polynomial_l",
        r"other numbers of torch\.float32",
        "a recurrence of thousands of steps, in float64 here",
    ),
    (
        r"aten::(div|divide|true_divide)_?",
        r"other numbers of torch\.float16",
        "a quotient just below a whole number, which the host rounds to a half before it cuts it off",
    ),
    (
        r"aten::(layer_norm|rms_norm)",
        r"other numbers of torch\.float(16|32), of one number",
        "the one number's difference from the mean, or whose slope, is the rounding of 0",
    ),
    (
        r"aten::(linalg_lu_factor(_ex)?|_lu_with_info|_linalg_slogdet)",
        r"other numbers of torch\.(float(32|64)|int32)",
        "equal pivots, or a matrix without full rank, whose last pivots are the rounding of 0",
    ),
    (
        r"aten::linalg_inv(_ex)?",
        r"(NaN|infinite) at other places of torch\.float(32|64)",
        "a singular matrix, whose last pivot is 0 or the rounding of it",
    ),
    (
        r"aten::linalg_svdvals",
        r"(other numbers|NaN at other places) of torch\.float32",
        "a matrix without full rank: any singular vectors for its values of 0 in the gradient, and NaN of the host's library for complex numbers",
    ),
    (
        r"aten::(acos|a(rc)?cosh|atanh|angle|(special_)?log1p)_?",
        r"other numbers of torch\.float(32|64), of a lazy (negation|conjugate)",
        "complex numbers at a cut: of lazily negated or conjugated ones the host's vectors make 0 of the minus 0 that its last few elements keep",
    ),
    (
        r"aten::pow",
        r"other numbers of torch\.float64, of a lazy negation",
        "complex numbers on the negative axis: negating, the host's vectors make 0 of the minus 0 that its last few elements keep",
    ),
    (
        r"aten::pairwise_distance",
        r"(NaN at other places|infinite at other places|other numbers) of torch\.float(16|32), of an exponent that float32 does not hold",
        "NaN, or rounded to 0 or infinity: of one number the host gives its size, of more 1",
    ),
    (
        r"aten::renorm_?",
        r"other numbers of torch\.float32, of an exponent that float32 does not hold",
        "an exponent that float32 rounds to infinity, of which the host makes a norm of 1",
    ),
    (
        r"aten::isin",
        r"other numbers of torch\.bool, said to be unique",
        "assume_unique of what is not unique",
    ),
    (
        r"aten::(huber|smooth_l1)_loss_backward",
        r"other numbers of torch\.(bfloat16|float(32|64)), of a bound below 0",
        "a delta or beta that no forward call lets pass",
    ),
    (
        r"aten::(linalg_)?matrix_exp",
        r"other numbers of torch\.float32, of the largest numbers",
        "a power far past 1: the roundings of its squarings add up, on the host the more",
    ),
    (
        r"aten::(linalg_)?matrix_exp",
        r"other numbers of torch\.bfloat16",
        "of zeros the host gives numbers near -1e30 instead of the identity",
    ),
    (
        r"aten::(adaptive_avg_pool3d_backward|narrow_copy|_softmax)",
        r"(other numbers|NaN at other places) of torch\.(b?float16|float(32|64)), into an out= with gaps",
        "an out= that is not contiguous, which the host's kernel writes as if it were",
    ),
    (
        r"aten::linalg_solve_triangular",
        r"other numbers of torch\.float32, into a lazily negated out=",
        "a lazily negated out=, in which the host's library solves without its sign",
    ),
    (
        r"aten::_unsafe_masked_index",
        r"other numbers of torch\.bool",
        "indices out of range, which its name leaves to the caller: below 0 on one side, the host takes what lies there",
    ),
    (
        r"aten::(smooth_l1|huber)_loss_backward",
        r"infinite at other places of torch\.float32",
        "a gradient near the largest number, which is multiplied before the mean's factor",
    ),
    (
        r"aten::_?adaptive_avg_pool[23]d_backward",
        r"(NaN|infinite) at other places of torch\.float32",
        "gradients near the largest number, of which each is divided first on the host, and a row's sum here",
    ),
    (
        r"aten::batch_norm",
        r"other numbers of torch\.float16, of a gradient",
        "the gradient of a weight is a sum of normalized numbers, which is the rounding of 0",
    ),
    (
        r"aten::_fft_(r2c|c2c|c2r)",
        r"other numbers of torch\.float(32|64), of a normalization that is none",
        "a number that is no normalization: the host divides by the number of elements, the device by nothing",
    ),
    (
        r"aten::(_?linalg_)?slogdet",
        r"other numbers of torch\.float(32|64), of equal rows or columns",
        "a determinant of 0, or the rounding of it",
    ),
    (
        r"aten::log_softmax",
        r"other numbers of torch\.float32, of equal numbers",
        "the gradient of their sum, which is the rounding of 0",
    ),
    (
        r"aten::triplet_margin_loss",
        r"other numbers of torch\.float32, of the largest numbers",
        "a distance near the largest number, whose squares overflow on the host: it divides by infinity for a gradient of 0",
    ),
    (
        r"aten::gather_backward",
        r"other numbers of torch\.(float(32|64)|int64), of negative indices",
        "a sparse gradient's indices that gather refuses: where both are made dense they lead before its memory",
    ),
    (
        r"aten::_scaled_dot_product_attention_math",
        r"other numbers of torch\.float32, of equal keys",
        "the gradient of a query is the rounding of 0",
    ),
    (
        r"aten::scaled_dot_product_attention",
        r"NaN at other places of torch\.float32, of scores past the largest number",
        "scores that are all NaN, of fewer keys than a vector holds, the host takes for masked ones, "
        "and one overflows there before its scale brings it back",
    ),
    (
        r"aten::lerp_?",
        r"NaN at other places of torch\.complex64",
        "infinite numbers: every other number of the host's vectors has its formula, one of two, by the weight of the number before",
    ),
    (
        r"aten::prod",
        r"other numbers of torch\.float16, of products below the least normal half",
        "the host rounds to a half after each factor, and below that a half has few digits",
    ),
    (
        r"aten::glu_backward_jvp",
        r"(other numbers|(NaN|infinite) at other places) of torch\.float32",
        "a gradient of the operand that is not of the others, which the host reads and the device computes from them",
    ),
    (
        r"aten::nansum",
        r"other numbers of torch\.float32, that cancel",
        "a sum that is the rounding of 0 on the host, and float64's here",
    ),
    (
        r"aten::_euclidean_dist",
        r"other numbers of torch\.(b?float16|float32), of a tensor by itself",
        "equal vectors, between which lies 0: of expanded squares the host has the rounding of it",
    ),
    (
        r"aten::_cdist_backward",
        r"NaN at other places of torch\.float(32|64), of an exponent below 0",
        "an exponent that no forward call lets pass, of which minus infinity is infinite here and a power on the host",
    ),
    (
        r"aten::smooth_l1_loss",
        r"infinite at other places of torch\.float16, of the largest numbers",
        "the host rounds the difference to a half, which overflows before half the beta is subtracted",
    ),
    (
        r"aten::linalg_cholesky_ex",
        r"NaN at other places of torch\.float(32|64), of the largest numbers",
        "what stands beyond the minor at which both say that the matrix is not positive definite",
    ),
)
