"""Why the device may differ from the host: what has a reason here is no defect."""

from __future__ import annotations

import re

# operators whose kernels of PyTorch's for the CPU die of what is asked here; the device alone is asked
# or which write past memory, so that it dies later
# (to.prim_dtype without a dtype reads one that is not there: a crash, MemoryError or another's error, as memory has it)
# (tril.out and triu.out take the strides of an out= for those of a batch of matrices, one behind the other)
HOST_DIES: tuple[str, ...] = (
    "aten::_logcumsumexp.out", "aten::to.prim_dtype", "aten::tril.out", "aten::triu.out"
)  # fmt: skip

_DTYPE = r"\"?\w+\"? not implemented for '\w+'.*"

# of an operator, and of what was found: patterns, and why
REASONS: tuple[tuple[str, str, str], ...] = (
    (
        r"aten::(float_)?pow(er)?_?|aten::renorm_?",
        r"other numbers of .*, of an exponent that float32 rounds to 0",
        "the host's vectors round it, and its last few elements do not",
    ),
    (r".*", r"the host dies: .*|.*, as on the host", "PyTorch's own kernel ends the process"),
    (
        r".*",
        r".*(on the same device|indices should be either on).*",
        "operands of two devices: the host's are all its own",
    ),
    (
        r".*",
        r"NotImplementedError for \w+: " + _DTYPE,
        "both refuse; of several reasons the dtype is told first",
    ),
    (
        r".*",
        r"\w+ for NotImplementedError: .* / " + _DTYPE,
        "both refuse; of several reasons the dtype is told last",
    ),
    (r".*", r"the host raises \w+: " + _DTYPE, "a dtype that PyTorch's kernels for the CPU lack"),
    (
        r".*",
        r".*(NotImplementedError: Could not run 'aten|/ Could not run 'aten).*",
        "the CPU has no kernel of it",
    ),
    (
        r".*",
        r".*(PrivateUseNHooksInterface|CPU tensors can be pinned).*",
        "pinned memory of a factory is the host's alone",
    ),
    (
        r"aten::(_foobar|slow_conv3d|_dyn_quant\w*|_weight_int\w*|_convert_weight_to_int\w*|_fused_(adagrad|sgd|adamw?)_?|glu_\w*jvp|"
        r"_transform_bias_rescale_qkv|_saturate_weight_to_fp16|_nnpack_\w*|_flash\w*|_scaled_dot_product_flash_attention_for_cpu\w*)",
        r"(raises (NotImplemented|Runtime)Error|NotImplementedError for \w+): .*",
        "an operator of one back end, that no function of torch calls on maca",
    ),
    (
        r".*",
        r"NotImplementedError for \w+: \S+ has no kernel on maca.*",
        "both refuse; what maca lacks is told first",
    ),
    (
        r".*",
        r"(Runtime|Index|Value|NotImplemented)Error for (Runtime|Index|Value|NotImplemented|_LinAlg)Error: .*",
        "both refuse; of several faults another is told first",
    ),
    (r"aten::(get_device|is_cpu|is_cuda)", r"other (int|bool)", "it tells the device"),
    (r"aten::_autocast_to_\w+", r"dtype .*", "it asks for the device"),
    (
        r"aten::(max|min)",
        r"raises RuntimeError: (max|min)\(\): Expected reduction dim to be specified .*",
        "of nothing: refused with an out=, too",
    ),
    (
        r"aten::(upsample_linear1d|masked_scatter_backward)",
        r"the host raises RuntimeError: (It is expected output_size|masked_select: expected BoolTensor|shape '\[).*",
        "operands that no function of torch gives it, and PyTorch's meta kernels let pass",
    ),
    (
        r".*",
        r".*INTERNAL ASSERT FAILED at .*(CompositeViewCopyKernels|LossNcpp).*",
        "an assertion of PyTorch's own fails on the host",
    ),
    (
        r".*",
        r"the host raises RuntimeError: derivative for .* is not implemented",
        "a gradient that PyTorch's kernel lacks",
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
        r"aten::(\w*norm|dist|linalg_\w*norm|linalg__powsum|triplet_margin_loss)",
        r"infinite at other places of .*",
        "squares are summed in float64 here",
    ),
    (
        r".*",
        r"the host raises RuntimeError: (Expected out tensor to have dtype|output with shape|value cannot be converted).*",
        "an out= of another dtype, or a number that a kernel's dtype does not hold: here it is cast as for other operators",
    ),
    (
        r".*",
        r"the host raises RuntimeError: (expected scalar type|Found dtype|MKL FFT error|itensor_view_from_dense expects).*",
        "operands that a library of the CPU's refuses",
    ),
    (
        r"aten::_foreach_\w+",
        r"the host raises RuntimeError: (unsupported operation|Subtraction|Boolean alpha|linalgNvector_norm).*",
        "the host computes tensors one by one and meets the fault, the device all at once",
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
    (r"aten::(put|index_put|scatter|index_copy)_?", r"other numbers .*", "of values for one place any"),
    (r"aten::_?(log_)?softmax_backward_data", r"dtype .*", "an input_dtype that autograd never gives"),
    (
        r"aten::native_layer_norm_backward",
        r"the host raises RuntimeError: (Expected|Given normalized_shape=).*",
        "operands that no function of torch gives it: the host's kernel looks at sizes and a bias that it does not read",
    ),
    (
        r"aten::_stack",
        r"(other numbers|NaN|infinite) .*",
        "PyTorch's own reads past operands that share memory",
    ),
    (
        r"aten::linalg_lstsq",
        r"the host raises RuntimeError: false INTERNAL ASSERT FAILED .*",
        "NaN, which a library of the CPU's takes for an illegal argument",
    ),
    (
        r"aten::(special_)?sinc_?",
        r"(other numbers|NaN at other places) of torch.float32",
        "at whole numbers a rounding of pi, and of the largest a product that overflows: float64's here",
    ),
    (
        r"aten::(bernoulli|random)_?",
        r"raises RuntimeError: \S+ (an operand does not broadcast to the result|no complex draws|random_ has no complex numbers)",
        "of nothing the host's kernel looks at no probability and at no dtype",
    ),
    (
        r"aten::special_\w+_polynomial_\w",
        r"NaN at other places of .*",
        "infinite numbers meet in another order in a recurrence",
    ),
    (
        r".*",
        r"other strides",
        "of a resized out=, or along a side of one: as of the functional operator's result",
    ),
    (
        r"aten::(_reshape_alias_copy|_amp_foreach_\w+|_foreach_copy|_cholesky_solve_helper|multi_margin_loss_backward|"
        r"_cdist_backward|_pdist_(forward|backward)|gelu_backward|\w+_loss_backward|histogramdd|_histogramdd\w*|_add_relu_?|"
        r"rrelu_with_noise_backward|_thnn_\w+|_transformer_encoder_layer_fwd|_unsafe_(masked_)?index\w*|"
        r"_?(log_)?softmax_backward_data|_softmax_backward_data|native_dropout|lu_unpack|_index_put_impl_?|_weight_norm|"
        r"_segment_reduce_backward|(sigmoid|tanh)_backward|_batch_norm_impl_index_backward)",
        r"raises (RuntimeError|NotImplementedError): .*|dtype .*",
        "operands that no function of torch gives it: refused here, where the host's kernel trusts them",
    ),
    (
        r"aten::(split\w*_copy|_compute_linear_combination)",
        r"other shape",
        "PyTorch's own kernel resizes no list of out=",
    ),
    (
        r".*",
        r"the host raises RuntimeError: unsupported operation: more than one.*",
        "an out= that shares memory with itself until it is resized",
    ),
    (
        r"aten::normal",
        r"dtype torch\.float\d+ for torch\.u?int\d+",
        "standard deviations of whole numbers: as PyTorch's meta kernel has it; the host refuses them but where there are none",
    ),
    (r"aten::normal", r"other shape", "a standard deviation of one number and an out= of more"),
    (
        r".*",
        r"raises RuntimeError: Expected (out )?tensor to have (maca(:N)? Device(Type)?|(cpu Device|device cpu), but got (tensor with )?maca).*",
        "operands of two devices: the host's are all its own",
    ),
    (r"aten::cum(prod|max|min)\w*_backward", r"other numbers .*", "results that are not of these operands"),
    (
        r"aten::(_cum(max|min)_helper|_compute_linear_combination)",
        r"raises NotImplementedError: \S+ has no kernel on maca \(the op table has no row.*",
        "parts of public operators that have kernels of their own here; the host's trust sizes that only these check",
    ),
    (
        r"aten::(batch_norm_update_stats|_weight_norm_interface)",
        r"raises RuntimeError: \S+ Contradiction operands of sizes or dtypes that it does not take.*",
        "statistics or norms of other sizes, past whose end the host's kernel reads and writes",
    ),
    (
        r"aten::(_grid_sampler_2d_cpu_fallback_backward|_?adaptive_(avg|max)_pool[23]d_backward|unfold_backward)",
        r"raises RuntimeError: (\S+ grid_sampler: padding mode|max pooling: index N in a plane of N|narrow\(\) cannot be .*|"
        r"\S+ batch or channels differ)|raises IndexError: Dimension out of range.*",
        "modes, places and windows that are not of the forward call, which the host's kernel trusts",
    ),
    (r"aten::native_dropout_backward", r"dtype .*", "a mask that is not of bool, to which the host promotes"),
    (
        r"aten::cumprod_backward",
        r"raises IndexError: Dimension out of range.*",
        "a gradient of fewer dimensions than its operand: of a subclass PyTorch sums it alone, on the host with the operand",
    ),
    (
        r".*",
        r"OutOfMemoryError for RuntimeError: .* / .*DefaultCPUAllocator: can't allocate memory.*",
        "too large for both; the device's error has a class of its own, which derives from the host's",
    ),
    (
        r"aten::_neg_view(_copy)?",
        r"raises RuntimeError: Negation, the `N` operator, on a bool tensor.*",
        "a lazy negation of bool, which nothing on the host can compute either: it fails there when it is read",
    ),
    (
        r"aten::_native_batch_norm_legit(_no_training|_functional)?",
        r"raises RuntimeError: (Attempting to broadcast a dimension|\S+ (batch norm keeps the shape of its operand|channels lie in dimension N|weight has not one element a channel)).*",
        "of nothing the host's kernel looks at no weight and at no statistics",
    ),
    (
        r"aten::(_safe_softmax|embedding_dense_backward|cdist|pdist|silu_backward|_foreach_powsum)",
        r"raises NotImplementedError: \"\w+\" not implemented for '(Char|Byte|Short|Int|Long|Bool|Half|BFloatN|Float\w+|Complex\w+)'",
        "of nothing the host's kernel looks at no dtype; of something it refuses these, too",
    ),
    (
        r"aten::glu_backward",
        r"the host raises RuntimeError: result type \w+ can't be cast to the desired output type (Char|Byte|Short|Int|Long)",
        "of nothing: whole numbers are refused where there are any",
    ),
    (
        r"aten::_scaled_mm_v2",
        r"raises RuntimeError: \S+ Contradiction operands of sizes or dtypes that it does not take.*",
        "recipes of scales that no function of torch gives it: refused here, where the host's kernel looks at none of them",
    ),
    (
        r"aten::_stack",
        r"RuntimeError for TypeError: result type .* / torchNcat\(\): input types can't be cast.*",
        "both refuse; on the host it is a cat, whose error has another class",
    ),
    (
        r"aten::_weight_norm_interface",
        r"the host raises RuntimeError: dim == N \|\| dim == vNdim\(\).*",
        "an assertion of the host's: its kernel norms along the first or the last dimension, the device along any",
    ),
    (
        r"aten::cholesky",
        r"raises RuntimeError: \S+ not square matrices",
        "of nothing the host's deprecated operator looks at no sides; linalg_cholesky refuses them on both",
    ),
    (
        r"aten::embedding_backward",
        r"raises RuntimeError: \S+ an operand does not broadcast to the result",
        "a gradient of other dimensions than indices and embedding, which the host's kernel counts only",
    ),
    (
        r"aten::embedding_renorm_",
        r"raises IndexError: index out of range in self",
        "a negative index, which the host's kernel counts from the end and the lookup that follows refuses",
    ),
    (
        r"aten::\w+_",
        r"raises RuntimeError: Autograd not support dtype: (Char|Byte|Short|Int|Long|Bool)",
        "a view of whole numbers, written in place from what has a gradient: PyTorch repeats the view but for its own devices",
    ),
    (
        r"aten::index_put",
        r"raises NotImplementedError: \S+_index_put_impl_\S+ has no kernel on maca \(no index tensor\).*",
        "of no index: an assertion of PyTorch's own fails where there is something to write",
    ),
    (
        r"aten::(lin|log)space",
        r"raises RuntimeError: torchN(lin|log)space\(\): inferred dtype cN::complex<\w+> can't be safely cast .*",
        "of one step: the host's kernel does not look at the end",
    ),
    (
        r"aten::(nan)?quantile",
        r"the host raises RuntimeError: quantile\(\) q values must be in the range.*",
        "PyTorch looks at the numbers of q on the CPU alone: elsewhere that would wait for the device",
    ),
    (
        r"aten::native_channel_shuffle",
        r"raises RuntimeError: view size is not compatible with input tensor's size and stride.*",
        "PyTorch's own for all devices but the CPU is made of views, which these strides forbid",
    ),
    (
        r"aten::(triu|tril|narrow_copy|linalg_lu|conj_physical)_?",
        r"raises RuntimeError: unsupported operation: more than one element of the writtenNto tensor.*",
        "a target whose elements share memory: the host writes it, in which order nobody says",
    ),
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
        r"aten::group_norm",
        r"other numbers of torch\.float32",
        "the gradient of a sum of normalized numbers, which is the rounding of 0",
    ),
    (
        r"aten::_batch_norm_impl_index",
        r"other numbers of torch\.int64",
        "of nothing the host leaves statistics that nobody wrote",
    ),
    (
        r"aten::soft_margin_loss_backward",
        r"infinite at other places of torch\.float32",
        "a product of the largest numbers, which overflows in another order",
    ),
    (
        r"aten::normal",
        r"raises NotImplementedError: \"normal_kernel_cpu\" not implemented for '(Char|Byte|Short|Int|Long|Bool)'",
        "means of whole numbers, which the host refuses but with an out= of another dtype",
    ),
    (
        r"aten::glu_jvp",
        r"the host raises RuntimeError: start \(N\) \+ length \(N\) exceeds dimension size.*",
        "halves of another size, that autograd never gives it",
    ),
    (
        r"aten::linalg_pinv",
        r"other numbers of torch\.float(32|64)",
        "an rcond of nearly 0 keeps singular values that are the rounding of others",
    ),
    (
        r"aten::linalg__powsum",
        r"dtype torch\.float32 for torch\.int64",
        "a sum of integers, which PyTorch's formula for other devices makes floats first",
    ),
    (
        r"aten::linalg__powsum",
        r"the host raises RuntimeError: Unknown Complex ScalarType for \w+",
        "a sum of complex numbers as integers, which PyTorch's formula for other devices casts",
    ),
    (
        r"aten::_fft_(r2c|c2c)",
        r"raises RuntimeError: result type Complex\w+ can't be cast to the desired output type \w+",
        "an out= of real numbers, that torch.fft refuses before it calls this",
    ),
    (
        r"aten::_(log_)?softmax",
        r"the host raises RuntimeError: softmax with half to float conversion is not supported on CPU",
        "half to float in one pass: as PyTorch asks it of other devices",
    ),
    (
        r"aten::choose_qparams_optimized",
        r"raises RuntimeError: The tensor has a nonNzero number of elements, but its data is",
        "PyTorch's own for every device reads the host's memory",
    ),
    (
        r"aten::_softmax_backward_data",
        r"(other numbers|NaN at other places) of .*",
        "an out= that is not contiguous, which the host's kernel writes as if it were",
    ),
    (
        r"aten::cum(max|min)",
        r"raises RuntimeError: \S+ the scanned dimension is out of range",
        "of nothing the host's kernel looks at no dimension",
    ),
    (
        r"aten::_embedding_bag_dense_backward",
        r"raises IndexError: Dimension out of range.*",
        "a gradient without columns, which the host's kernel looks at where there are weights",
    ),
    (
        r"aten::(_?native_batch_norm(_legit)?|_batch_norm_with_update)",
        r"dtype torch\.float32 for torch\.b?float16",
        "statistics of halves: PyTorch has them in float32 on all devices but the CPU",
    ),
    (
        r"aten::(_native_batch_norm_legit|batch_norm_update_stats)",
        r"the host raises RuntimeError: input tensor must have at least one element, but got input_sizes =",
        "of nothing, which torch.nn.functional.batch_norm takes on both",
    ),
    (
        r"aten::_trilinear",
        r"other shape|raises RuntimeError: einsum\(\): the number of subscripts .*",
        "sums over no dimension, or dimensions that nobody expands, which bilinear never asks",
    ),
    (
        r"aten::_addmm_activation",
        r"raises NotImplementedError: \"_addmm_activation\" not implemented for '(Char|Byte|Short|Int|Long)'",
        "an operator of PyTorch's own that fuses layers of floats",
    ),
    (
        r"aten::cumprod_backward",
        r"dtype torch\.float\d+ for torch\.uint\d+",
        "a gradient of unsigned integers, that autograd never gives it",
    ),
    (
        r"aten::mish_backward",
        r"the host raises RuntimeError: result type Float can't be cast to the desired output type \w+",
        "an operand of integers, that autograd never gives it",
    ),
    (
        r"aten::randint_like",
        r"raises RuntimeError: high must be a scalar tensor and on CPU",
        "operands of two devices: the host's are all its own",
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
        r"aten::nuclear_norm",
        r"the host raises _LinAlgError: linalgNsvd: .*",
        "NaN of a matrix that the host's library takes for one that fails to converge",
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
        r"aten::linalg_(eigh|eigvalsh|pinv|matrix_rank|cond)|aten::_linalg_eigh",
        r"raises _LinAlgError: linalgNeigh: .*",
        "a matrix of two rows with NaN, of which the host's library gives numbers; with more it refuses, too",
    ),
    (
        r"aten::scaled_dot_product_attention",
        r"raises RuntimeError: Expected size for first two dimensions of batchN tensor to be: .*",
        "of nothing the host looks at no sizes",
    ),
)


def reason(operator: str, found: str) -> str:
    """Why an operator differs in that way; "" where nobody said."""
    for of, text, why in REASONS:
        if re.fullmatch(of, operator) and re.fullmatch(text, found):
            return why
    return ""
