"""Why an operator refuses what the host takes, or takes what it refuses, as reasons.py has it; dtypes and sizes as well."""

from __future__ import annotations

OF_CALLS: tuple[tuple[str, str, str], ...] = (
    (
        r"aten::(_foobar|slow_conv3d(_forward)?|slow_conv_transpose[23]d|_dyn_quant\w*|_weight_int\w*|_convert_weight_to_int\w*|_fused_(adagrad|sgd|adamw?)_?|glu_\w*jvp|"
        r"_transform_bias_rescale_qkv|_saturate_weight_to_fp16|_nnpack_\w*|_flash\w*|_scaled_dot_product_flash_attention_for_cpu\w*|_slow_conv2d_(forward|backward)|slow_conv_dilated[23]d)",
        r"(raises (NotImplemented|Runtime)Error|NotImplementedError for \w+): .*",
        "an operator of one back end, that no function of torch calls on maca",
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
        r"aten::_foreach_\w+",
        r"the host raises RuntimeError: (unsupported operation|Subtraction|linalgNvector_norm).*",
        "the host computes tensors one by one and meets the fault, the device all at once",
    ),
    (r"aten::_?(log_)?softmax_backward_data", r"dtype .*", "an input_dtype that autograd never gives"),
    (
        r"aten::native_(layer_norm_backward|group_norm)",
        r"the host raises RuntimeError: (Expected|Given normalized_shape=).*",
        "operands that no function of torch gives it: the host's kernel looks at sizes and a bias that it does not read",
    ),
    (
        r"aten::linalg_(lstsq|ldl_factor(_ex)?|eigvals)",
        r"the host raises RuntimeError: false INTERNAL ASSERT FAILED .*|"
        r"raises RuntimeError: torchNlinalgN(lstsq: the input matrix contains nonNfinite values|eig: input tensor should not contain infs or NaNsN)",
        "NaN, which a library of the CPU's takes for an illegal argument, ends the process at, or of which it makes numbers",
    ),
    (
        r"aten::(bernoulli|random)_?",
        r"raises RuntimeError: \S+ (an operand does not broadcast to the result|an operand has more dimensions than the shape it broadcasts to|"
        r"no complex draws|random_ has no complex numbers)",
        "of nothing the host's kernel looks at no probability and at no dtype",
    ),
    (
        r"aten::(_reshape_alias_copy|_amp_foreach_\w+|_foreach_copy|_cholesky_solve_helper|multi_margin_loss_backward|"
        r"_cdist_backward|_pdist_(forward|backward)|gelu_backward|\w+_loss_backward|histogramdd|_histogramdd\w*|_add_relu_?|"
        r"rrelu_with_noise_backward|_thnn_\w+|_transformer_encoder_layer_fwd|_unsafe_(masked_)?index\w*|"
        r"_?(log_)?softmax_backward_data|_softmax_backward_data|native_dropout|lu_unpack|_index_put_impl_?|_weight_norm|"
        r"_segment_reduce_backward|(sigmoid|tanh)_backward|_batch_norm_impl_index_backward|_embedding_bag_dense_backward|"
        r"_fused_rms_norm\w*|_new_zeros_with_same_feature_meta|re(flection|plication)_pad1d_backward|log_sigmoid_backward|_prelu_kernel_backward)",
        r"raises (RuntimeError|NotImplementedError): .*|dtype .*",
        "operands that no function of torch gives it: refused here, where the host's kernel trusts them",
    ),
    (
        r"aten::(split\w*_copy|_compute_linear_combination)",
        r"other shape|raises RuntimeError: result type \w+ can't be cast to the desired output type \w+",
        "PyTorch's own kernel resizes no list of out=",
    ),
    (
        r"aten::normal",
        r"dtype torch\.float\d+ for torch\.(u?int\d+|bool)|raises RuntimeError: result type Short can't be cast to the desired output type Bool",
        "standard deviations of whole numbers: as PyTorch's meta kernel has it; the host refuses them but where there are none",
    ),
    (r"aten::normal", r"other shape", "a standard deviation of one number and an out= of more"),
    (
        r"aten::(_cum(max|min)_helper|_compute_linear_combination)",
        r"raises NotImplementedError: \S+ has no kernel on maca \(the op table has no row.*",
        "parts of public operators that have kernels of their own here; the host's trust sizes that only these check",
    ),
    (
        r"aten::(batch_norm_update_stats|_weight_norm_interface|native_batch_norm_backward)",
        r"raises RuntimeError: (shape '\[N\]' is invalid for input of size N|\S+ Contradiction operands of sizes or dtypes that it does not take.*|"
        r"\S+ mean has not one element a channel)",
        "statistics or norms of other sizes, past whose end the host's kernel reads and writes",
    ),
    (
        r"aten::(_grid_sampler_2d_cpu_fallback_backward|_?adaptive_(avg|max)_pool[23]d_backward|unfold_backward)",
        r"raises RuntimeError: (\S+ grid_sampler: (padding|interpolation) mode|max pooling: index N in a plane of N|narrow\(\) cannot be .*|"
        r"\S+ batch or channels differ|\S+ the gradient is not the one of unfold)|raises IndexError: (Dimension out of range|select\(\): index N out of range).*",
        "modes, places and windows that are not of the forward call, which the host's kernel trusts",
    ),
    (r"aten::native_dropout_backward", r"dtype .*", "a mask that is not of bool, to which the host promotes"),
    (
        r"aten::cumprod_backward",
        r"raises IndexError: Dimension out of range.*",
        "a gradient of fewer dimensions than its operand: of a subclass PyTorch sums it alone, on the host with the operand",
    ),
    (
        r"aten::_neg_view(_copy)?",
        r"raises( in the comparison:)? (RuntimeError: Negation, the `N` operator, on a bool tensor|NotImplementedError: \"neg_(conj_)?cpu\" not implemented).*",
        "a lazy negation of bool, float8 or conjugated halves, which nothing on the host can compute either: it fails there when it is read",
    ),
    (
        r"aten::(native_batch_norm|_native_batch_norm_legit(_no_training|_functional)?|_batch_norm_with_update(_functional)?|_batch_norm_no_update)",
        r"raises RuntimeError: (Attempting to broadcast a dimension|expected scalar type|\S+ (batch norm keeps the shape of its operand|channels lie in dimension N|"
        r"(weight|bias|running_mean|running_var) has (not one element a channel|more than one side)|AssertionError running_mean and running_var must not be None)).*",
        "of nothing the host's kernel looks at no weight, at no statistics and at no dtype of theirs; of something it reads past the end of a bias",
    ),
    (
        r"aten::(_safe_softmax|scaled_dot_product_attention|msort|embedding_(dense_)?backward|_?cdist(_forward)?|_euclidean_dist|pdist|silu_backward|"
        r"_foreach_powsum|nonzero_static|sort|argsort|sum|nansum)",
        r"raises NotImplementedError: \"\w+\" not implemented for '(Char|Byte|Short|Int|Long|Bool|Half|BFloatN|Float\w+|Complex\w+)'|"
        r"raises NotImplementedError: \S+ has no kernel on maca \((gradients are floating|torchNfloatN_\w+ has no code).*",
        "of nothing, one element to sort, or elements that are one in memory, the host's kernel looks at no dtype; of something it refuses these, too",
    ),
    (
        r"aten::glu_backward",
        r"the host raises RuntimeError: result type \w+ can't be cast to the desired output type (Char|Byte|Short|Int|Long|UIntN)",
        "of nothing: whole numbers are refused where there are any",
    ),
    (
        r"aten::_scaled_mm_v2",
        r"raises (RuntimeError: \S+ Contradiction operands of sizes or dtypes that it does not take|ValueError: out_dtype must match output matrix type).*",
        "recipes of scales that no function of torch gives it: refused here, where the host's kernel looks at none of them",
    ),
    (
        r"aten::_(stack|chunk_cat)",
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
        r"aten::embedding_(dense_)?backward",
        r"raises RuntimeError: \S+ an operand (does not broadcast to the result|has more dimensions than the shape it broadcasts to)",
        "a gradient of other dimensions than indices and embedding, which the host's kernel counts only",
    ),
    (
        r"aten::(_no_grad_)?embedding_renorm_?",
        r"raises IndexError: index out of range in self",
        "a negative index, which the host's kernel counts from the end and the lookup that follows refuses",
    ),
    (
        r"aten::\w+_",
        r"raises RuntimeError: Autograd not support dtype: (Char|Byte|Short|Int|Long|UIntN|Bool)",
        "a view of whole numbers, written in place from what has a gradient: PyTorch repeats the view but for its own devices",
    ),
    (
        r"aten::index_put_?",
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
        r"raises RuntimeError: (view size is not compatible with input tensor's size and stride|cannot reshape tensor of N elements).*",
        "PyTorch's own for all devices but the CPU is made of views, which these strides and sides of 0 forbid",
    ),
    (
        r"aten::(triu|tril|pow|embedding_renorm|narrow_copy|linalg_lu|linalg_matrix_power|conj_physical|cummax|cummin|randperm|nan_to_num|nansum|"
        r"_efficientzerotensor|std|var)_?",
        r"raises RuntimeError: unsupported operation: more than one element of the writtenNto tensor.*",
        "a target whose elements share memory: the host writes it, in which order nobody says",
    ),
    (
        r"aten::linalg_matrix_rank",
        r"raises RuntimeError: unsupported operation: more than one element of the writtenNto tensor.*",
        "an out= whose elements share memory, which the host resizes to the ranks without their tolerances, and back",
    ),
    (
        r"aten::(normal|huber_loss)",
        r"raises NotImplementedError: \"normal_kernel_cpu\" not implemented for '(Char|Byte|Short|Int|Long|Bool)'|"
        r"raises RuntimeError: result type Float can't be cast to the desired output type (Char|Byte|Short|Int|Long)",
        "whole numbers, which the host refuses but with an out= of another dtype",
    ),
    (
        r"aten::glu_(backward_)?jvp",
        r"other shape|the host raises (RuntimeError: (narrow\(\) cannot be applied to a Ndim tensorN|start \(N\) \+ length \(N\) exceeds dimension size|The size of tensor a \(N\) must match|Subtraction, the `N` operator, with a bool tensor)|IndexError: (start out|Dimension (out of range|specified as N but))).*|"
        r"raises IndexError: Dimension out of range .*",
        "halves of another size, of other dimensions or truths, that autograd never gives it",
    ),
    (
        r"aten::linalg__powsum",
        r"dtype torch\.float32 for torch\.int64",
        "a sum of integers, which PyTorch's formula for other devices makes floats first",
    ),
    (
        r"aten::(linalg__|_foreach_)powsum",
        r"the host raises RuntimeError: Unknown Complex ScalarType for \w+",
        "a sum of complex numbers as integers, which PyTorch's formula for other devices casts",
    ),
    (
        r"aten::_fft_(r2c|c2c)",
        r"raises RuntimeError: (result type Complex\w+ can't be cast to the desired output type \w+|permute\(sparse_coo\): number of dimensions .*)",
        "an out= of real numbers, or one dimension twice, that torch.fft refuses before it calls this",
    ),
    (
        r"aten::_(log_)?softmax",
        r"the host raises RuntimeError: softmax with half to float conversion is not supported on CPU",
        "half to float in one pass: as PyTorch asks it of other devices",
    ),
    (
        r"aten::choose_qparams_optimized",
        r"raises RuntimeError: choose_qparams_optimized got (numel|n_bins)=.*",
        "more elements than there are, or none, of which PyTorch's own reads what lies beyond; steps of which it does not end",
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
        r"aten::(_?native_batch_norm(_legit)?|_batch_norm_with_update|_batch_norm_impl_index|batch_norm_update_stats)",
        r"dtype torch\.float32 for torch\.b?float16",
        "statistics of halves: PyTorch has them in float32 on all devices but the CPU",
    ),
    (
        r"aten::(_?native_batch_norm(_legit(_functional)?)?|batch_norm_update_stats)",
        r"the host raises (RuntimeError: input tensor must have at least one element, but got input_sizes =|ValueError: running_mean and running_var must either both be None or neither be None)",
        "of nothing, which torch.nn.functional.batch_norm takes on both",
    ),
    (
        r"aten::_trilinear",
        r"other shape|other numbers of torch\.float64|dtype torch\.float(32|64) for torch\.\w+|raises NotImplementedError: \"bmm\" not implemented for 'UIntN'|raises RuntimeError: (Promotion for FloatN Types|einsum\(\): (the number of subscripts|subscript \w has size)|expected scalar type) .*|"
        r"the host raises \w+: (dim N appears multiple times in the list|Dimension out of range|result type \w+ can't be cast to the desired output type UIntN|Function TrilinearBackwardN returned an invalid gradient).*",
        "sums over no dimension or twice over one, dimensions that nobody expands, or mixed dtypes, which bilinear never asks",
    ),
    (
        r"aten::_addmm_activation",
        r"raises NotImplementedError: \"_addmm_activation\" not implemented for '(Char|Byte|Short|Int|Long)'",
        "an operator of PyTorch's own that fuses layers of floats",
    ),
    (
        r"aten::cumprod_backward",
        r"dtype torch\.(float|int|complex)\d+ for torch\.((u?int|b?float|complex)\d+|bool)|other shape|"
        r"raises (RuntimeError: (The size of tensor a|stack expects each tensor to be equal size|Promotion for uintN, uintN, uintN types)|IndexError: slice\(\) cannot be applied).*|"
        r"the host raises RuntimeError: The size of tensor a \(N\) must match.*",
        "a gradient of another dtype or of other sizes, that autograd never gives it",
    ),
    (
        r"aten::mish_backward",
        r"the host raises RuntimeError: result type (Half|BFloatN|Float|Double|Complex(Half|Float|Double)) can't be cast to the desired output type \w+|"
        r"dtype torch\.float32 for torch\.b?float16|dtype torch\.float64 for torch\.(float32|b?float16)",
        "an operand of integers or of another dtype, that autograd never gives it",
    ),
    (
        r"aten::randint_like",
        r"raises RuntimeError: high must be a scalar tensor and on CPU",
        "operands of two devices: the host's are all its own",
    ),
    (
        r"aten::nuclear_norm",
        r"the host raises _LinAlgError: linalgNsvd: .*",
        "NaN of a matrix that the host's library takes for one that fails to converge",
    ),
    (
        r"aten::linalg_(eigh|eigvalsh|pinv|matrix_rank|cond)|aten::_linalg_eigh",
        r"raises _LinAlgError: linalgNeigh: .*",
        "a matrix of two rows with NaN, of which the host's library gives numbers; with more it refuses, too",
    ),
    (
        r"aten::scaled_dot_product_attention",
        r"other shape(, of nothing)?|raises IndexError: Dimension out of range .*|"
        r"raises RuntimeError: (Expected size for first two dimensions of batchN tensor to be: .*|matN and matN shapes cannot be multiplied .*|"
        r"expected mN and mN to have the same dtype.*|_scaled_dot_product_attention: Explicit attn_mask should not be set.*|"
        r"The size of tensor a .*|dropout probability has to be between N and N.*|Number of heads in key and value must divide.*|_scaled_dot_product_attention_math with enable_gqa got keys .*)",
        "of nothing the host looks at no sizes, no dtypes, no dropout and at no mask",
    ),
    (
        r"aten::(_reshape_alias|as_strided_)",
        r"raises RuntimeError: (setStorage: sizes|Storage size calculation overflowed).*",
        "sizes or an offset past the end of the memory, which the host trusts",
    ),
    (
        r"aten::_unsafe_index",
        r"raises IndexError: index N is out of bounds for .*|the host raises RuntimeError: _unsafe_index found unexpected index type (Bool|Byte)",
        "an index that nobody looked at: one that is out of bounds reads past memory on the host, and bool is taken here",
    ),
    (
        r"aten::_embedding_bag_backward",
        r"the host raises RuntimeError: Expected contiguous tensor, but got nonNcontiguous tensor for argument #N '(offsets|indices)'.*",
        "offsets with gaps, of which torch.nn.functional.embedding_bag makes others before it calls the operator of this gradient",
    ),
    (
        r"aten::_new_zeros_with_same_feature_meta",
        r"RuntimeError for MemoryError: _new_zeros_with_same_feature_meta got self_num_batch_dims=N .*",
        "both refuse; PyTorch's own makes a list of so many dimensions first",
    ),
    (
        r"aten::_fft_(r2c|c2c)",
        r"the host raises RuntimeError: permute\(\): duplicate dims are not allowed.*",
        "negative dimensions, from which torch.fft makes others before it calls this",
    ),
    (
        r"aten::_weight_norm_interface_backward",
        r"other shape",
        "norms that are not of the weight, which the host trusts",
    ),
    (
        r"aten::fractional_max_pool3d_backward",
        r"the host raises (IndexError: Dimension out of range|RuntimeError: fractional_max_poolNd_backward_out\(\): gradOutput \w+ unexpected).*",
        "gradients without elements, of fewer dimensions or windows than autograd gives it",
    ),
    (
        r"aten::nll_loss(2d|2d_forward|_nd)",
        r"the host raises RuntimeError: only batches of spatial (targets|inputs) supported.*",
        "of nothing, in more dimensions than torch.nn.functional.nll_loss gives it",
    ),
    (
        r"aten::multilabel_margin_loss_backward",
        r"the host raises RuntimeError: argument #N 'is_target' is out of range",
        "a mask that is not of the forward call",
    ),
    (
        r"aten::pixel_unshuffle",
        r"other shape",
        "of nothing PyTorch's own kernel for the CPU leaves the sizes as they are",
    ),
    (
        r"aten::scaled_dot_product_attention",
        r"the host raises RuntimeError: scaled_dot_product_attention_flash_attention: Currently do not support dropout > N",
        "a negative dropout, with which the host picks a kernel that takes none, and its formula for other devices drops nothing",
    ),
    (
        r"aten::(adaptive_)?avg_pool1d",
        r"the host raises RuntimeError: a view of a leaf Variable that requires grad is being used.*",
        "an out= that wants a gradient: PyTorch's own copies into it in sight of autograd",
    ),
    (
        r"aten::linalg_matrix_exp",
        r"the host raises RuntimeError: view size is not compatible with input tensor's size and stride.*",
        "PyTorch's own flattens the batch by a view, which these strides forbid",
    ),
    (
        r"aten::roll",
        r"raises RuntimeError: \S+ dimension N of a tensor of rank N",
        "of nothing PyTorch's own looks at no dimension",
    ),
    (
        r"aten::addbmm_",
        r"raises RuntimeError: output with shape \[N(, N)*\] doesn't match the broadcast shape.*",
        "a target of other sizes, which the host resizes in place and other devices refuse",
    ),
    (
        r"aten::(ctc_loss|segment_reduce)",
        r"raises RuntimeError: (ctc_loss: target N is not in \[N, N\)|segment_reduce\(\): a segment ends at N of N elements)",
        "targets or offsets that are none, which the host's kernel trusts",
    ),
    (
        r"aten::(index_put_?|(softshrink|softplus)_backward)",
        r"raises NotImplementedError: \S+ has no kernel on maca \(torchNfloatN_\w+ has no code.*",
        "sums and slopes of numbers of 8 bits, for which maca has no arithmetic",
    ),
    (
        r"aten::linalg_lu_factor",
        r"raises RuntimeError: torchNlinalgNlu_factor: \(Batch element N\): U\[N,N\] is zero .*",
        "a matrix of a batch that is singular, or has NaN, of which none is the largest: the pivot may be a 0",
    ),
    (
        r"aten::linalg_(lu_factor|solve)",
        r"(the host )?raises RuntimeError: torchNlinalgNlu_factor: U\[N,N\] is zero .*|the host raises _LinAlgError: torchNlinalgNsolve: .*",
        "a singular matrix, whose last pivot is 0 or the rounding of it",
    ),
    (
        r"aten::pow",
        r"raises RuntimeError: result type FloatN_\w+ can't be cast to the desired output type \w+",
        "powers of 1, which the host fills without a look at the dtype",
    ),
    (
        r"aten::fused_moving_avg_obs_fake_quant",
        r"raises RuntimeError: (expected scalar type Float but found Double|\S+ Contradiction operands of sizes or dtypes that it does not take)",
        "a call that neither observes nor quantizes, in which the host looks at no dtype",
    ),
    (
        r"aten::_fake_quantize_learnable_per_tensor_affine_backward",
        r"the host raises RuntimeError: a Tensor with N elements cannot be converted to Scalar",
        "a scale of more than one number, which the forward call refuses",
    ),
    (
        r"aten::pixel_shuffle",
        r"the host raises RuntimeError: (Function PixelShuffleBackwardN returned an invalid gradient|Unsupported memory formatN).*",
        "the gradient of nothing, or five dimensions in the order of NDHWC, which PyTorch's own for the CPU does not take",
    ),
    (
        r"aten::Complex",
        r"other complex",
        "a number with a part that is NaN, which the comparison finds unlike itself",
    ),
    (
        r"aten::soft_margin_loss",
        r"dtype torch\.float(32|64) for torch\.\w+",
        "operands of two dtypes, which PyTorch's meta kernel promotes and the host's does not",
    ),
    (
        r"aten::index(_put)?",
        r"raises (RuntimeError: sym_strides\(\) called on an undefined Tensor|NotImplementedError: .*\(no index tensor\).*)",
        "indices among which is no tensor of a dimension, as brackets never give them",
    ),
)
