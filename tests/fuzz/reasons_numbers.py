"""Why an operator's numbers may differ from the host's, as reasons.py has it."""

from __future__ import annotations

OF_NUMBERS: tuple[tuple[str, str, str], ...] = (
    (
        r"aten::((_foreach_)?(float_)?pow(er)?_?|renorm_?)",
        r"(other numbers|NaN at other places) of .*, of an exponent that float32 rounds to 0",
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
        r"aten::(histc|histogram|bincount)",
        r"other numbers of torch.b?float16",
        "counts are exact here, on the host sums of 16 bits, of places whose product may overflow",
    ),
    (
        r"aten::(\w*norm|dist|linalg_\w*norm|linalg__powsum|triplet_margin_loss|hinge_embedding_loss|mean)",
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
        r"other numbers of torch.float(32|64)|NaN at other places of torch.(bfloat16|float(16|32|64)|complex64)",
        "at whole numbers a rounding of pi, and of the largest a product that overflows, of the smallest a quotient: float64's here",
    ),
    (
        r"aten::special_\w+_polynomial_\w+",
        r"NaN at other places of .*",
        "infinite numbers meet in another order in a recurrence",
    ),
    (
        r"aten::cum(prod|max|min)\w*_backward",
        r"(other numbers|(NaN|infinite) at other places) .*",
        "results that are not of these operands",
    ),
    (
        r"aten::(_?linalg_(lu_factor|qr|solve|solve_triangular|lu_factor_ex|solve_ex)|_?(linalg_)?slogdet|logdet|linalg_lu|_linalg_det|_lu_with_info|cholesky_solve|geqrf|linalg_householder_product)",
        r"(NaN|infinite) at other places of .*",
        "infinite numbers or NaN in a matrix: an elimination meets them in another order",
    ),
    (
        r"aten::(linalg_)?(matmul|mm|bmm|addmm|baddbmm|addbmm|chain_matmul|multi_dot|tensordot|einsum|inner|addmv|mv)_?",
        r"NaN at other places of torch.complex\d+",
        "a sum that is infinite: BLAS multiplies it by alpha, 1 + 0j, and 0 times infinity is NaN",
    ),
    (
        r"aten::(_foreach_)?(add|sub|subtract|rsub|diff)_?",
        r"NaN at other places of torch.complex\d+",
        "the host multiplies by alpha, 1 + 0j, and 0 times infinity is NaN",
    ),
    (
        r"aten::_?logcumsumexp",
        r"other numbers of torch\.float(32|64)|NaN at other places of torch\.complex(64|128)",
        "imaginary parts that differ by twice pi, and infinite numbers, which meet in another order",
    ),
    (
        r"aten::(group_norm|(special_|_safe_|_)?softmax|cosine_similarity)",
        r"other numbers of torch\.(bfloat16|float(16|32))",
        "the gradient of a sum of normalized numbers, which is the rounding of 0, or norms whose squares overflow on the host",
    ),
    (
        r"aten::_batch_norm_impl_index",
        r"(other numbers of torch\.((int|float)64|bool)|NaN at other places of torch\.(float(32|64)|complex128)).*",
        "of nothing the host leaves statistics that nobody wrote",
    ),
    (
        r"aten::\w*batch_norm\w*",
        r"(other numbers|NaN at other places) of .*, of the largest numbers",
        "a variance past the largest number of float32, which is float64's here",
    ),
    (
        r"aten::_native_batch_norm_legit",
        r"(other numbers|NaN at other places) of .*, of an operand with gaps",
        "the host's kernel sums the numbers in the gaps, too",
    ),
    (
        r"aten::_scaled_dot_product_flash_attention_for_cpu",
        r"other numbers of .*, of an operand with gaps",
        "the host's kernel reads rows as if they lay side by side; scaled_dot_product_attention gives it no others",
    ),
    (
        r"aten::(linalg_)?matrix_exp",
        r"(NaN|infinite) at other places of .*, of the largest numbers",
        "a matrix whose norm overflows, of which the host makes the identity",
    ),
    (
        r"aten::(mul|multiply)_",
        r"NaN at other places of .*, by a number that halves do not hold",
        "the host's in-place kernel rounds it to infinity first, and 0 times infinity is NaN",
    ),
    (
        r"aten::upsample_bicubic2d",
        r"NaN at other places of torch\.(b?float16|float(32|64))",
        "past the last row the host takes rows before it 0 times, and 0 times infinity is NaN",
    ),
    (
        r"aten::_?upsample_nearest\w*",
        r"other numbers of .*, of a scale that float32 rounds to 0",
        "1 by it is infinite, a step that leads to no pixel",
    ),
    (
        r"aten::(elu|selu|celu)(_backward)?",
        r"NaN at other places of torch\.(b?float16|float(32|64))",
        "a slope at NaN: NaN in the host's vectors, that of positive numbers in its last few elements",
    ),
    (
        r"aten::linalg_matrix_rank",
        r"other numbers of .*",
        "a tolerance of 0, which counts singular values that are the rounding of 0",
    ),
    (
        r"aten::_safe_softmax",
        r"NaN at other places of torch\.b?float16",
        "numbers that a half does not hold, which the host makes halves first",
    ),
    (
        r"aten::mse_loss_backward",
        r"(NaN|infinite) at other places of torch\.float64",
        "a gradient of a wider dtype than the operands have, in which the host computes",
    ),
    (
        r"aten::(searchsorted|bucketize)",
        r"other numbers of torch\.int(32|64)",
        "a number that the sequence's integers do not hold, which the host makes one of them first",
    ),
    (
        r"aten::special_airy_ai",
        r"(other numbers|NaN at other places) of torch\.float32",
        "far down the negative axis a phase that float32 does not hold, which is float64's here",
    ),
    (
        r"aten::(sum|nansum|nanmean)",
        r"(NaN|infinite) at other places of torch\.(float32|b?float16)(, that cancel)?",
        "sums of the largest numbers overflow on the way, in another order",
    ),
    (
        r"aten::nansum",
        r"other numbers of torch\.u?int\d+",
        "numbers that an integer does not hold, of which C++ defines none",
    ),
    (
        r"aten::(_foreach_)?(add|sub|subtract|rsub)_?",
        r"(NaN|infinite) at other places of torch\.b?float16",
        "the host rounds the product with alpha to a half, which overflows",
    ),
    (
        r"aten::soft_margin_loss(_backward)?",
        r"(NaN|infinite) at other places of torch\.(bfloat16|float(16|32|64))",
        "a power that overflows: the host divides infinity by infinity",
    ),
    (
        r"aten::(linalg_pinv|pinverse)",
        r"other numbers of torch\.(bfloat16|float(32|64))",
        "an rcond of nearly 0, or below, keeps singular values that are the rounding of others",
    ),
    (
        r"aten::_softmax_backward_data",
        r"(other numbers|NaN at other places) of .*",
        "an out= that is not contiguous, which the host's kernel writes as if it were",
    ),
    (
        r"aten::(remainder|fmod)_?",
        r"NaN at other places of torch\.(bfloat16|float(32|64)|complex32)",
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
        r"aten::_log_softmax_backward_data",
        r"(other numbers|(NaN|infinite) at other places) of .*, of another input_dtype",
        "autograd gives the operand's, at no other does the host look",
    ),
    (
        r"aten::(linalg_(matrix_)?norm|nuclear_norm)",
        r"other numbers of torch\.float(32|64), of a nuclear norm's gradient",
        "a matrix without full rank has any singular vectors for its singular values of 0",
    ),
    (
        r"aten::(special_)?logsumexp",
        r"(other numbers|NaN at other places) of .*, of complex numbers into real ones",
        "the host casts the sum before its logarithm, the device the logarithm: of its real part, or of its size",
    ),
    (
        r"aten::linalg_lu",
        r"other numbers of .*",
        "a pivot among NaN, of which none is the largest",
    ),
    (
        r"aten::logit(_backward)?",
        r"(NaN|infinite) at other places of torch\.b?float16",
        "1 - eps rounded to a half is 1 on the host: a value or a slope at 1 that is cut off here, as on CUDA",
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
        r"(other numbers|(NaN|infinite) at other places) of torch\.(bfloat16|float(32|64))",
        "complex numbers summed as real ones, which PyTorch's formula for other devices casts first",
    ),
    (
        r"aten::(special_)?(psi|erfcx|i0|(scaled_)?(modified_)?bessel_\w\d|digamma|airy_ai|cos)",
        r"other numbers of torch\.float64",
        "integers, which both compute in float32 whatever the out=",
    ),
    (
        r"aten::(_euclidean_dist|_?cdist(_forward)?)",
        r"(NaN|infinite) at other places of .*",
        "PyTorch's own expands the squares into a product, where infinity meets infinity",
    ),
    (
        r"aten::(_foreach_)?pow",
        r"NaN at other places of torch\.complex(64|128), of True",
        "powers of 1 are 1; the host knows it of the number and not of True",
    ),
    (
        r"aten::_foreach_pow",
        r"(NaN|infinite) at other places of torch\.float16",
        "the host rounds base and exponent to halves",
    ),
    (
        r"aten::(xlogy|special_xlog(1p)?y)",
        r"(NaN|infinite) at other places of torch\.float(16|32)",
        "beside halves the host rounds the number to one, whatever the out=",
    ),
    (
        r"aten::_?unique(2|_dim)?",
        r"other numbers of torch\.int64|NaN at other places of torch\.float(16|32|64)",
        "of NaN, which all differ, any order",
    ),
    (
        r"aten::logit_backward",
        r"other numbers of torch\.float(32|64)",
        "an eps of NaN: the host's vectors give 0 and its last few elements a slope",
    ),
    (
        r"aten::(special_)?logit(_backward)?",
        r"infinite at other places of torch\.(bfloat16|float(32|64))",
        "the slope at -0, infinite: negative in the host's vectors, positive in its last few elements",
    ),
    (
        r"aten::(relu6|(hardtanh|hardshrink|softshrink)(_backward)?)",
        r"(other numbers|(NaN|infinite) at other places) of torch\.(b?float16|float(32|64)|float8_e5m2)",
        "at NaN the host's vectors give 0 and its last few elements the gradient",
    ),
    (
        r"aten::sgn_?",
        r"NaN at other places of torch\.complex64",
        "of the smallest numbers, whose squares are 0 on the host, which divides by their sum",
    ),
    (
        r"aten::mode",
        r"(NaN|infinite) at other places of torch\.b?float\d+",
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
        r"aten::(nan)?median",
        r"other numbers of torch\.int\d+",
        "of nothing NaN as an integer, which C++ does not define",
    ),
    (
        r"aten::_add_relu_?",
        r"NaN at other places of torch\.float(32|64)",
        "NaN, of which the host's vectors make 0 and its last few elements NaN",
    ),
    (
        r"aten::hardswish(_backward)?",
        r"NaN at other places of torch\.(b?float16|float(32|64))",
        "at NaN the host gives the gradient",
    ),
    (
        r"aten::_foreach_reciprocal_?",
        r"NaN at other places of torch\.complex64",
        "of the smallest numbers, whose squares are 0 on the host, which divides by their sum",
    ),
    (
        r"aten::\w+",
        r"(other numbers|NaN at other places|infinite at other places) of .*, dropped at random",
        "each device draws its own",
    ),
    (
        r"aten::_scaled_dot_product_flash_attention_for_cpu",
        r"NaN at other places of torch\.float32",
        "queries without numbers, by whose count the host divides for its scale",
    ),
    (
        r"aten::gelu|aten::_log_softmax(_backward_data)?",
        r"(other numbers|NaN at other places) of torch\.(b?float16|float(32|64)), into an out= with gaps",
        "oneDNN's or the host's kernel writes it as if it were contiguous",
    ),
    (
        r"aten::(rsub|sub|subtract)_?",
        r"(other numbers|infinite at other places) of .*, of the smallest integer",
        "an alpha that the host negates as an integer, which leaves it negative",
    ),
    (
        r"aten::(as_strided_scatter|copy|_index_put_impl_?)",
        r"other numbers of .*, where (elements share memory|values are not summed)",
        "of values for one place any",
    ),
    (
        r"aten::_unsafe_masked_index",
        r"other numbers of torch\.float32",
        "a negative index, which PyTorch's formula for other devices takes for 0 and the host counts from the end",
    ),
    (r"aten::blackman_window", r"other numbers of torch\.b?float16", "its first number is the rounding of 0"),
    (
        r"aten::group_norm",
        r"other numbers of torch\.float64",
        "groups of one of the largest numbers: its difference from the mean is the rounding of 0",
    ),
    (
        r"aten::histogram",
        r"NaN at other places of torch\.float32",
        "an edge that is the rounding of 0 on the host, and 0 here",
    ),
    (
        r"aten::kaiser_window",
        r"NaN at other places of torch\.float32",
        "a beta for which both Bessel functions overflow",
    ),
    (
        r"aten::linalg_cond",
        r"(infinite at other places|other numbers) of torch\.(bfloat16|float(32|64)|complex(64|128))",
        "a singular matrix, whose least singular value is the rounding of 0",
    ),
    (
        r"aten::linalg_ldl_factor(_ex)?",
        r"other numbers of torch\.int32|NaN at other places of torch\.(float(32|64)|complex\d+)",
        "pivots among NaN, of which none is the largest",
    ),
    (
        r"aten::(linalg_)?matrix_exp(_backward)?",
        r"(NaN|infinite) at other places of torch\.b?float16.*",
        "the host sums powers in 16 bits, which overflow",
    ),
    (
        r"aten::(nan)?median",
        r"(other numbers|NaN at other places) of torch\.(b?float16|u?int\d+)",
        "a dimension of stride 0, along which the host's kernel reads other memory",
    ),
    (
        r"aten::softplus_backward",
        r"(NaN|infinite) at other places of torch\.(b?float16|float(32|64))",
        "a power or a gradient near the largest number, which the host multiplies before it divides",
    ),
    (
        r"aten::(std|var)",
        r"(NaN|infinite) at other places of torch\.float(16|32|64)",
        "squares near the largest number, into an out= of another dtype: the host sums in that, the device in float64 "
        "for a result of the operand's",
    ),
    (
        r"aten::(to|type_as|copy_?|_foreach_copy_)",
        r"other numbers of torch\.int(32|64)",
        "a number that uint32 or uint64 does not hold, of which C++ defines no integer",
    ),
    (r"aten::topk", r"(other numbers|(NaN|infinite) at other places) of .*, unsorted", "in any order"),
    (
        r"aten::(max_pool1d|choose_qparams_optimized)",
        r"(other numbers|(NaN|infinite) at other places) of .*, of a lazy negation",
        "the host's kernel reads the numbers without their sign",
    ),
    (
        r"aten::cross",
        r"other numbers of .*, of a tensor by itself",
        "vectors along one another, whose cross product is the rounding of 0",
    ),
    (
        r"aten::(trapezoid|trapz)",
        r"NaN at other places of torch\.(complex\d+|float32)",
        "products of the largest numbers overflow on the way",
    ),
    (
        r"aten::(_foreach_)?(r?sqrt|log10|log2|log|asin)_?",
        r"(other numbers of torch\.float(32|64)|infinite at other places of torch\.complex(64|128)), of a lazy negation",
        "complex numbers on the negative axis: negating, the host's vectors make 0 of the minus 0 that its last few elements keep",
    ),
    (
        r"aten::multilabel_margin_loss",
        r"NaN at other places of torch\.float(16|32)",
        "a mean of nothing, which the host does not write",
    ),
    (
        r"aten::_weight_norm_interface_backward",
        r"NaN at other places of torch\.float32",
        "norms of other sizes than the weight's, past whose end the host's kernel reads",
    ),
    (
        r"aten::pairwise_distance",
        r"infinite at other places of torch\.(bfloat16|float32)",
        "squares are summed in float64 here",
    ),
    (
        r"aten::cumprod_?",
        r"NaN at other places of torch\.bfloat16",
        "products past the largest number on the way, in another order",
    ),
    (
        r"aten::all",
        r"other numbers of torch\.uint8",
        "complex numbers, which the host makes whole for an out= of bytes before it looks at them",
    ),
    (
        r"aten::_reshape_alias(_copy)?",
        r"other numbers of torch\.float32",
        "sizes past the end of the memory, where each has what lies there",
    ),
    (
        r"aten::binary_cross_entropy_backward",
        r"NaN at other places of torch\.float16",
        "0 by a product of halves that is 0 on the host",
    ),
)
