"""Why an operator's numbers may differ from the host's, as reasons.py has it."""

from __future__ import annotations

OF_NUMBERS: tuple[tuple[str, str, str], ...] = (
    (
        r"aten::(float_)?pow(er)?_?|aten::renorm_?",
        r"other numbers of .*, of an exponent that float32 rounds to 0",
        "the host's vectors round it, and its last few elements do not",
    ),
    (
        r"aten::_?fft_\w+",
        r"(NaN|infinite) at other places of .*",
        "infinite numbers meet in another order in a transform",
    ),
    (
        r"aten::_?linalg_(svd|eigh?|qr|eigvalsh)|aten::(geqrf|svd|qr)",
        r"(other numbers|NaN at other places) .*",
        "vectors that are unique up to a phase, and of NaN any",
    ),
    (
        r"aten::(histc|bincount)",
        r"other numbers of torch.b?float16",
        "counts are exact here, on the host sums of 16 bits",
    ),
    (
        r"aten::(\w*norm|dist|linalg_\w*norm|linalg__powsum|triplet_margin_loss|mean)",
        r"(NaN|infinite) at other places of .*",
        "squares, and numbers of a mean, are summed in float64 here",
    ),
    (
        r"aten::(kthvalue|mode|median|nanmedian|sort|topk|argsort|min|max)",
        r"other numbers of torch.int64",
        "of equal numbers any position",
    ),
    (
        r"aten::(nan)?(quantile|median)",
        r"other numbers of torch.float(32|64)",
        "of equal numbers any has the gradient",
    ),
    (
        r"aten::(var|std)_mean",
        r"NaN at other places of .*",
        "a mean of infinite numbers, which the host corrects number by number",
    ),
    (
        r"aten::special_(shifted_)?chebyshev_polynomial_\w",
        r"other numbers of torch.float(32|64)",
        "cosines of multiples of an angle, in float64 here; an out= of float64 takes float32 of the host",
    ),
    (
        r"aten::(put|index_put|scatter|index_copy)_?",
        r"(other numbers|infinite at other places) .*",
        "of values for one place any",
    ),
    (
        r"aten::_stack",
        r"(other numbers|NaN|infinite) .*",
        "PyTorch's own reads past operands that share memory",
    ),
    (
        r"aten::(special_)?sinc_?",
        r"(other numbers|NaN at other places) of torch.float32",
        "at whole numbers a rounding of pi, and of the largest a product that overflows: float64's here",
    ),
    (
        r"aten::special_\w+_polynomial_\w",
        r"NaN at other places of .*",
        "infinite numbers meet in another order in a recurrence",
    ),
    (r"aten::cum(prod|max|min)\w*_backward", r"other numbers .*", "results that are not of these operands"),
    (
        r"aten::(linalg_(lu_factor|qr|solve)|linalg_lu|_lu_with_info|cholesky_solve|geqrf)",
        r"NaN at other places of .*",
        "infinite numbers or NaN in a matrix: an elimination meets them in another order",
    ),
    (
        r"aten::(linalg_)?(matmul|mm|bmm|addmm|baddbmm|addbmm|chain_matmul|multi_dot|tensordot|einsum|inner|addmv|mv)_?",
        r"NaN at other places of torch.complex\d+",
        "a sum that is infinite: BLAS multiplies it by alpha, 1 + 0j, and 0 times infinity is NaN",
    ),
    (
        r"aten::(add|sub|subtract|rsub|diff)_?",
        r"NaN at other places of torch.complex\d+",
        "the host multiplies by alpha, 1 + 0j, and 0 times infinity is NaN",
    ),
    (
        r"aten::_?logcumsumexp",
        r"other numbers of torch\.float(32|64)",
        "imaginary parts that differ by twice pi",
    ),
    (
        r"aten::(group_norm|(special_)?softmax)",
        r"other numbers of torch\.float(16|32)",
        "the gradient of a sum of normalized numbers, which is the rounding of 0",
    ),
    (
        r"aten::_batch_norm_impl_index",
        r"other numbers of torch\.(int|float)64",
        "of nothing the host leaves statistics that nobody wrote",
    ),
    (
        r"aten::soft_margin_loss_backward",
        r"(NaN|infinite) at other places of torch\.float(16|32|64)",
        "a power that overflows: the host divides infinity by infinity",
    ),
    (
        r"aten::linalg_pinv",
        r"other numbers of torch\.float(32|64)",
        "an rcond of nearly 0 keeps singular values that are the rounding of others",
    ),
    (
        r"aten::_softmax_backward_data",
        r"(other numbers|NaN at other places) of .*",
        "an out= that is not contiguous, which the host's kernel writes as if it were",
    ),
    (
        r"aten::(remainder|fmod)_?",
        r"NaN at other places of torch\.float(32|64)",
        "a quotient past the largest number, which the host's vectors multiply back",
    ),
    (
        r"aten::(linalg_)?(matmul|mm|bmm|addmm|baddbmm|addbmm|chain_matmul|multi_dot|tensordot|einsum|inner|addmv|mv|dot|vdot)_?",
        r"(NaN|infinite) at other places of torch\.(float32|float64|b?float16)",
        "sums of the largest numbers overflow on the way, in the order of a BLAS",
    ),
    (
        r"aten::prod",
        r"(NaN|infinite) at other places of .*",
        "products of the largest numbers overflow on the way and meet zeros, in another order",
    ),
    (
        r"aten::linalg_lu",
        r"other numbers of .*",
        "a pivot among NaN, of which none is the largest",
    ),
    (
        r"aten::logit_backward",
        r"infinite at other places of torch\.b?float16",
        "1 - eps rounded to a half is 1 on the host: a slope at 1 that is cut off here, as on CUDA",
    ),
    (
        r"aten::gelu(_backward)?_?",
        r"(NaN|infinite) at other places of torch.(float32|b?float16)",
        "powers of a large number overflow on the host, and 0 times infinity is NaN; the slope is 1 or 0",
    ),
    (
        r"aten::(linalg_)?pinv(erse)?",
        r"NaN at other places of .*",
        "infinite numbers or NaN in a matrix, of which the host's library makes numbers",
    ),
    (
        r"aten::linalg_lstsq",
        r"other numbers of torch\.float(32|64)",
        "of a batch the host's gelsy keeps the pivots of the matrix before: where that has others it solves nothing",
    ),
    (
        r"aten::(linalg__|_foreach_)powsum",
        r"other numbers of torch\.float(32|64)",
        "complex numbers summed as real ones, which PyTorch's formula for other devices casts first",
    ),
    (
        r"aten::(special_)?(psi|erfcx|bessel_\w\d|scaled_modified_bessel_\w\d|digamma)",
        r"other numbers of torch\.float64",
        "integers, which both compute in float32 whatever the out=",
    ),
    (
        r"aten::_euclidean_dist",
        r"(NaN|infinite) at other places of .*",
        "PyTorch's own expands the squares into a product, where infinity meets infinity",
    ),
    (
        r"aten::_foreach_pow",
        r"infinite at other places of torch\.float16",
        "the host rounds the base to a half",
    ),
    (
        r"aten::_?unique2?",
        r"other numbers of torch\.int64",
        "of NaN, which all differ, any order",
    ),
    (
        r"aten::logit_backward",
        r"other numbers of torch\.float(32|64)",
        "an eps of NaN: the host's vectors give 0 and its last few elements a slope",
    ),
    (
        r"aten::(special_)?logit",
        r"infinite at other places of torch\.float(32|64)",
        "the slope at -0, infinite: negative in the host's vectors, positive in its last few elements",
    ),
    (
        r"aten::hardtanh_backward",
        r"other numbers of torch\.b?float16",
        "at NaN the host's vectors give 0 and its last few elements the gradient",
    ),
    (
        r"aten::sgn_?",
        r"NaN at other places of torch\.complex64",
        "of the smallest numbers, whose squares are 0 on the host, which divides by their sum",
    ),
    (
        r"aten::mode",
        r"NaN at other places of torch\.b?float\d+",
        "the host sorts, and by an order that NaN breaks: it counts equal numbers as several",
    ),
    (
        r"aten::histogram",
        r"other numbers of torch\.float(32|64)",
        "an edge that is the rounding of 0 on the host, and 0 here",
    ),
    (
        r"aten::(not_equal|ne)_?",
        r"other numbers of torch\.float8_e4m3fn",
        "an infinite number, which that dtype does not have: the host takes the largest for it",
    ),
    (
        r"aten::median",
        r"other numbers of torch\.int\d+",
        "of nothing NaN as an integer, which C++ does not define",
    ),
)
