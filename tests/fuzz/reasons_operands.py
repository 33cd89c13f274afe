"""Why an operator refuses or takes operands that no function of torch gives it, or that lie elsewhere, as reasons.py has it."""

from __future__ import annotations

OF_OPERANDS: tuple[tuple[str, str, str], ...] = (
    (
        r"aten::_?adaptive_avg_pool[23]d_backward",
        r"(the host raises RuntimeError: adaptive_avg_poolNd_backward_out_cpu_template: Expected dimensions N for `grad_output`|"
        r"raises IndexError: adaptive_avg_poolNd_backward got a gradient of N dimensions).*",
        "a gradient or an operand of other dimensions than the forward call takes",
    ),
    (
        r"aten::_amp_foreach_non_finite_check_and_unscale",
        r"the host raises RuntimeError: inv_scale must be a float tensorN",
        "a scale in float64, which the device takes as well",
    ),
    (
        r"aten::_batch_norm_(with_update_functional|no_update)",
        r"raises RuntimeError: \S+ TypeError _select_batch_norm_backend\(\): incompatible function argumentsN.*",
        "no weight or no bias, for which PyTorch's own formula asks: no function of torch calls it without",
    ),
    (
        r"aten::(_embedding_bag(_dense)?|embedding_dense)_backward",
        r"OutOfMemoryError for RuntimeError: .*",
        "both refuse; a gradient of so many rows that the mode and the dtype of indices are not looked at",
    ),
    (
        r"aten::_euclidean_dist",
        r"raises RuntimeError: cdist only supports at least ND tensors.*",
        "vectors, which cdist refuses before it calls this",
    ),
    (
        r"aten::_fft_c2[cr]",
        r"the host raises RuntimeError: in_size == signal_size.*",
        "an assertion of PyTorch's own fails on the host",
    ),
    (
        r"aten::(_foreach_|linalg__)powsum",
        r"dtype torch\.(float32|int64) for torch\.(int\d+|bool)|raises NotImplementedError: \"pow\" not implemented for 'FloatN_\w+'|"
        r"raises RuntimeError: Integers to negative integer powers.*|raises RuntimeError: value cannot be converted to type cN::\w+ without overflow",
        "a sum of integers, or of nothing, for which the host looks at no exponent and no dtype",
    ),
    (
        r"aten::(_grid_sampler_2d_cpu_fallback|grid_sampler(_[23]d)?)",
        r"raises RuntimeError: \S+ grid_sampler: (padding|interpolation) mode",
        "a mode that there is not: the host's kernel takes another",
    ),
    (
        r"aten::(native_batch_norm|_native_batch_norm_legit(_no_training|_functional)?|_batch_norm_impl_index|batch_norm_update_stats)",
        r"the host raises RuntimeError: (tNdefined\(\) && tNdim\(\) == N INTERNAL ASSERT FAILED|mixed dtype \(CPU\): expect parameter|"
        r"TensorAccessor expected N dims but tensor has N|!needs_dynamic_casting<func_t>::check\(iter\) INTERNAL ASSERT).*",
        "statistics with other sides or of another dtype: an assertion of the host's, the device reads one element a channel",
    ),
    (
        r"aten::(native_batch_norm|_native_batch_norm_legit(_no_training|_functional))",
        r"other shape.*",
        "of nothing statistics keep the sides that they are given on one of the two",
    ),
    (
        r"aten::_(pad_packed_sequence|pack_padded_sequence(_backward)?)",
        r"raises RuntimeError: 'lengths' argument should be a ND CPU intN tensor, but got ND.*",
        "lengths on the device, which PyTorch wants on the host",
    ),
    (
        r"aten::tensor_split",
        r"raises RuntimeError: tensor_split expected tensor_indices_or_sections to be on cpu.*",
        "sections on the device, which PyTorch wants on the host",
    ),
    (
        r"aten::_remove_batch_dim",
        r"raises IndexError: _remove_batch_dim got out_dim=N.*",
        "a dimension that vmap never asks for: PyTorch's own reads past the end of a list",
    ),
    (
        r"aten::lstm",
        r"SIGSEGV on the device.*",
        "of hidden states of more layers than cell states PyTorch reads beyond the latter's list, before any device is asked",
    ),
    (
        r"aten::__interpolate",
        r"SIGSEGV on the device.*",
        "of a list of no scale factors PyTorch reads the first, before any device is asked",
    ),
    (
        r"aten::_tensor_to_list",
        r"(SIG\w+|exit \w+) on the device",
        "PyTorch reads the list of lists that it gives as numbers, on the host, too, which may end the process",
    ),
    (
        r"aten::(_tensor_to_list|_reshape_from_tensor)",
        r"raises RuntimeError: The tensor has a nonNzero number of elements, but its data is.*",
        "an operator of TorchScript's interpreter reads the host's memory; tolist() is the call that works",
    ),
    (r"aten::_version", r"other int", "it counts the writes that made the operand, too"),
    (
        r"aten::_unsafe_masked_index",
        r"other shape",
        "of no index, where PyTorch's own formulas differ: the host selects nothing",
    ),
    (
        r"aten::_weight_norm_interface_backward",
        r"raises RuntimeError: The size of tensor a \(N\) must match the size of tensor.*",
        "norms that are not of the weight, which the host trusts",
    ),
    (
        r"aten::\w+_loss(_forward|_backward)?",
        r"other (shape|numbers of .*), of a reduction that is none",
        "a number that is no reduction: the host sums, of nothing into what it does not write, the device gives each element",
    ),
    (
        r"aten::(binary_cross_entropy|mse_loss|smooth_l1_loss|huber_loss)_backward",
        r"other shape|the host raises RuntimeError: The size of tensor a .*",
        "a gradient and operands that do not broadcast to the operand, as no forward call has them",
    ),
    (
        r"aten::binary_cross_entropy",
        r"the host raises RuntimeError: The size of tensor a \(N\) must match the size of tensor.*",
        "of nothing, with a target of other sizes, which torch.nn.functional refuses",
    ),
    (
        r"aten::cartesian_prod",
        r"raises RuntimeError: meshgrid expects all tensors to have the same device",
        "operands of two devices: the host's are all its own",
    ),
    (
        r"aten::(elu|leaky_relu|rrelu_with_noise|soft_margin_loss)_backward",
        r"the host raises RuntimeError: (InNplace (elu|leakyReLu) backward calculation is triggered with a negative slope|"
        r"Promotion for [\w, ]+ [Tt]ypes is not supported|Autograd not support dtype).*",
        "a slope of NaN or minus infinity, or dtypes, that no forward call lets pass",
    ),
    (
        r"aten::(frobenius_norm|norm|linalg_vector_norm)",
        r"the host raises RuntimeError: dim N appears multiple times in the list of dims",
        "one dimension twice, once counted from the end, of one element",
    ),
    (
        r"aten::(gather_backward|kron|diagflat|histogramdd|inner|_*upsample_nearest)",
        r"raises in the comparison: .*(add_dense_sparse_\w+|\"coalesce\" not|\"cpublas_axpy_impl\" not|select\(\): index N out of range|"
        r"DefaultCPUAllocator: can't allocate memory).*",
        "a result that the comparison itself cannot read on the host",
    ),
    (
        r"aten::gather_backward",
        r"the host raises RuntimeError: indices must be an intN tensor",
        "indices of int32 for a sparse gradient, of which the device makes int64",
    ),
    (
        r"aten::index_select_backward",
        r"the host raises RuntimeError: source tensor shape must match self tensor shape.*",
        "a gradient without dimensions, that autograd never gives it",
    ),
    (
        r"aten::(isin|matrix_exp)",
        r"the host raises RuntimeError: view size is not compatible with input tensor's size and stride.*",
        "PyTorch's own flattens its operand by a view, which these strides forbid",
    ),
    (
        r"aten::(_euclidean_dist|_?cdist(_forward)?)",
        r"raises RuntimeError: \S+ operands differ in dtype: \w+",
        "vectors of two dtypes, of which the host's kernel reads one as the other, or looks at neither where they are of nothing",
    ),
    (
        r"aten::_grid_sampler_2d_cpu_fallback",
        r"raises NotImplementedError: \"_grid_sampler_Nd_cpu_fallback\" not implemented for '\w+'",
        "of nothing the host's kernel looks at no dtype",
    ),
    (
        r"aten::_padded_dense_to_jagged_forward",
        r"raises IndexError: index out of range in self|the host raises RuntimeError: The size of tensor a .*",
        "offsets of another number of sequences than are padded, as no nested tensor has them",
    ),
    (
        r"aten::index",
        r"raises IndexError: (shape mismatch: indexing tensors could not be broadcast|too many indices for tensor).*",
        "a mask of a call with an out=, as no function of torch makes it: PyTorch is asked about one of zeros",
    ),
    (
        r"aten::index_put_?",
        r"raises RuntimeError: shape mismatch: value tensor of shape \[N(, N)+\] cannot be broadcast to",
        "one number in several dimensions through a mask, which PyTorch fills on the CPU alone",
    ),
    (
        r"aten::_spdiags",
        r"raises NotImplementedError: a copy to maca got a torchNsparse_coo tensor.*",
        "PyTorch has it for the CPU alone",
    ),
    (
        r"aten::(unbind|split|split_with_sizes)_copy",
        r"the host raises RuntimeError: \w+\(\): functions with out=N arguments don't support automatic differentiation.*",
        "a list of out= that wants a gradient, which is refused where each is written on the host",
    ),
    (
        r"aten::_remove_batch_dim",
        r"raises( in the comparison:)? RuntimeError: \[enforce fail at alloc_cpuNcpp:N\].*",
        "a view of 2**31 times its memory, which cannot be copied to the host to be compared",
    ),
    (
        r"aten::linalg_solve_triangular",
        r"raises RuntimeError: \S+ operands differ in dtype: \w+",
        "operands of two dtypes, of which the host's kernel reads one as the other",
    ),
    (
        r"aten::(_?linalg_eigh|linalg_eigvalsh|(linalg_)?pinv(erse)?)",
        r"the host raises _LinAlgError: linalgN(eigh|svd): (\(Batch element N\): )?The algorithm failed to converge.*",
        "a matrix for which the host's library gives up",
    ),
    (
        r"aten::(_?linalg_)?svd",
        r"the host raises _LinAlgError: linalgNsvd: (\(Batch element N\): )?The algorithm failed to converge.*",
        "a matrix for which the host's library gives up",
    ),
    (
        r"aten::max_unpool2d",
        r"raises RuntimeError: Found an invalid max index: N.*",
        "an index into nothing, at which the host's kernel does not look",
    ),
    (
        r"aten::multilabel_margin_loss(_forward)?",
        r"raises RuntimeError: \S+ targets of the input's size",
        "of nothing the host's kernel looks at no dtype of the targets",
    ),
    (
        r"aten::roll",
        r"the host raises RuntimeError: .*SymIntArrayRef expected to contain only concrete integers",
        "PyTorch's own takes the smallest integer for a symbol",
    ),
    (
        r"aten::(std|var)",
        r"raises (NotImplementedError: \"(std|var)_cpu\" not implemented for|RuntimeError: std_var_all: Unsupported dtype) '?FloatN_\w+'?",
        "numbers of 8 bits, which the host refuses but with an out= of another dtype",
    ),
    (
        r"aten::to",
        r"SIG\w+ on the device, with the calls since \d+",
        "to.prim_dtype without a dtype reads one that is not there, as memory has it, before any device is asked",
    ),
    (
        r"aten::(_no_grad_)?uniform_?",
        r"raises RuntimeError: ((from|to) is out of bounds for \w+|uniform_ expects to return a \[from, to\) range).*",
        "of nothing the host looks at no bound",
    ),
    (
        r"aten::tri[lu]_indices",
        r"other shape, of the smallest integer|the host raises RuntimeError: (Storage size calculation overflowed|Trying to create tensor with negative dimension).*",
        "an offset that overflows where the host counts",
    ),
    (
        r"aten::_masked_softmax_backward",
        r"other shape",
        "of a number, of which the host's kernel makes a vector",
    ),
    (
        r"aten::scaled_dot_product_attention",
        r"dtype torch\.bool for torch\.int64",
        "of nothing truths, of which nothing can be computed where there are any",
    ),
    (
        r"aten::unfold_backward",
        r"other shape",
        "windows of a number, of which unfold makes a vector first",
    ),
    (
        r"aten::embedding_bag",
        r"raises RuntimeError: input has to be a ND or ND Tensor, but got Tensor.*",
        "indices of two dimensions with offsets, which torch.nn.functional refuses",
    ),
    (
        r"aten::unfold_backward",
        r"raises IndexError: Dimension specified as N but tensor has no dimensions|the host raises RuntimeError: The size of tensor a .*",
        "a gradient without dimensions or of other sizes, that autograd never gives it",
    ),
    (
        r"aten::_fused_sdp_choice",
        r"other int|raises IndexError: Dimension out of range .*",
        "it tells which of the host's kernels computes attention, on the device of copies without gradients: "
        "at the sizes of a mask with one the host does not look",
    ),
    (
        r"aten::(arange|_?convolution(_backward)?|histogramdd|multinomial|_dyn_quant_matmul_4bit)",
        r"OutOfMemoryError for RuntimeError: .* / (_dyn_quant_matmul_Nbit_cpu: Group size|cannot sample n_sample > |expected stride to be a single integer value|torchNhistogramdd: if weight tensor|IntArrayRef contains an int).*",
        "both refuse; what is too large is told first",
    ),
    (
        r"aten::(layer_norm|native_layer_norm)",
        r"the host raises RuntimeError: mixed dtype \(CPU\): expect parameter.*|dtype torch\.float32 for torch\.b?float16",
        "a bias of integers, which the device converts, or statistics of halves: PyTorch has them in float32 on all devices but the CPU",
    ),
    (
        r"aten::rrelu_with_noise(_functional|_)?",
        r"the host raises RuntimeError: Expected from <= to to be true.*|other shape",
        "a range that is none, or an out= of nothing, at which no function of torch arrives",
    ),
    (
        r"aten::rrelu_with_noise",
        r"raises RuntimeError: unsupported operation: more than one element of the writtenNto tensor.*",
        "noise of another dtype whose elements share memory: the host computes it for both, and it is not copied back",
    ),
    (
        r"aten::replication_pad2d_backward",
        r"raises RuntimeError: \S+ a tensor of rank N has no batch, channels and N.*",
        "an operand of more dimensions than the forward call takes",
    ),
    (
        r"aten::unfold_backward",
        r"raises NotImplementedError: \"unfold_backward\" not implemented for 'Bool'",
        "of windows of nothing the host's kernel looks at no dtype",
    ),
    (
        r"aten::(_fft_c2c|fft_i?fft[2n]?)",
        r"raises NotImplementedError: atenN_fft_cNcNdefault has no kernel on maca \(no Fourier transform of complexN\).*",
        "along no dimension the host transforms nothing, and looks at no dtype",
    ),
    (
        r"aten::(_?fft_\w+)",
        r"the host raises RuntimeError: MKL FFT doesn't support tensors of type: Half.*",
        "of nothing the device looks at no dtype",
    ),
    (
        r"aten::adaptive_max_pool[23]d_backward",
        r"the host raises RuntimeError: adaptive_max_poolNd_backward\(\): Expected ND or ND gradOutput.*",
        "dimensions that PyTorch's own shape function does not count",
    ),
    (
        r"aten::(bucketize|searchsorted|isin)",
        r"the host raises RuntimeError: Promotion for uintN, uintN, uintN types is not supported.*",
        "unsigned integers beside others, which the device compares as they are",
    ),
    (
        r"aten::embedding_(dense_)?backward",
        r"raises IndexError: index out of range in self|the host raises RuntimeError: shape '\[N, N\]' is invalid for input of size N",
        "an index past the last row, whose gradient the host drops, or none for the gradients that there are",
    ),
    (
        r"aten::view_copy",
        r"the host raises RuntimeError: selfNstride\(N\) must be N to view \w+ as \w+ .*",
        "a lazy conjugation is resolved first, which gives elements one beside the other",
    ),
    (
        r"aten::_dyn_quant_pack_4bit_weight",
        r"the host raises RuntimeError: view size is not compatible with input tensor's size and stride.*",
        "scales with gaps, of which the host makes a vector by a view",
    ),
    (
        r"aten::addbmm",
        r"raises RuntimeError: self and matN must have the same dtype, but got \w+ and",
        "an addend of another dtype, which the host refuses but with an out=, into which it copies it first",
    ),
)
