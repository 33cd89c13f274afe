"""Operators whose kernels on the CPU may be asked what is wrong with operands, and those that must not be.

PyTorch checks what a public function is given and then calls internal operators, whose CPU kernels trust it: given
operands that contradict each other, directly or by a bad ``out=``, they read past the ends of memory or divide by zero.
Which kernel checks and which trusts is known of each from its source or from calling it with odd operands, and no
signature tells.
"""

from __future__ import annotations

# Internal operators whose CPU kernels check their operands as those of public ones do.
CHECKING = frozenset(
    """
    __ilshift__ __irshift__ __lshift__ __rshift__ _adaptive_avg_pool2d _adaptive_avg_pool3d _add_relu _add_relu_
    _aminmax _assert_async _conj _conj_copy _conj_physical
    _fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_channel_affine_backward
    _fake_quantize_learnable_per_tensor_affine _fake_quantize_learnable_per_tensor_affine_backward
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _foreach_abs _foreach_acos _foreach_add
    _foreach_addcdiv _foreach_addcmul _foreach_asin _foreach_atan _foreach_ceil _foreach_clamp_max
    _foreach_clamp_min _foreach_clone _foreach_copy_ _foreach_cos _foreach_cosh _foreach_div _foreach_erf
    _foreach_erfc _foreach_exp _foreach_expm1 _foreach_floor _foreach_frac _foreach_lerp _foreach_lgamma
    _foreach_log _foreach_log10 _foreach_log1p _foreach_log2 _foreach_max _foreach_maximum _foreach_minimum
    _foreach_mm _foreach_mul _foreach_neg _foreach_norm _foreach_pow _foreach_powsum _foreach_reciprocal
    _foreach_round _foreach_rsqrt _foreach_sigmoid _foreach_sign _foreach_sin _foreach_sinh _foreach_sqrt
    _foreach_sub _foreach_tan _foreach_tanh _foreach_trunc _foreach_zero _functional_assert_async
    _fused_moving_avg_obs_fq_helper _fused_sdp_choice _int_mm _linalg_check_errors _linalg_det _linalg_eigh
    _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd _log_softmax _make_dep_token _neg_view
    _reshape_alias _scaled_mm _scaled_mm_v2 _softmax _spdiags _to_copy _to_sparse _to_sparse_bsc _to_sparse_bsr
    _to_sparse_csc _to_sparse_csr _trilinear _unique _unique2 _unsafe_view _upsample_bicubic2d_aa _upsample_bilinear2d_aa
    _upsample_lanczos2d_aa _upsample_lanczos2d_aa_backward _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    elu_backward leaky_relu_backward native_dropout_backward
    """.split()
)

# Operators whose CPU kernels trust their operands.
TRUSTING = frozenset(
    """
    _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward _addmm_activation
    _amp_foreach_non_finite_check_and_unscale_ _amp_update_scale_ _batch_norm_no_update _batch_norm_with_update
    _batch_norm_with_update_functional _cdist_backward _cdist_forward _cholesky_solve_helper _chunk_cat
    _compute_linear_combination
    _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo _convert_weight_to_int4pack
    _convert_weight_to_int4pack_for_cpu _ctc_loss _ctc_loss_backward _cummax_helper _cummin_helper _dirichlet_grad _dyn_quant_matmul_4bit
    _dyn_quant_pack_4bit_weight _efficientzerotensor _embedding_bag _embedding_bag_backward
    _embedding_bag_dense_backward _embedding_bag_forward_only _embedding_bag_per_sample_weights_backward
    _empty_affine_quantized _empty_per_channel_affine_quantized _euclidean_dist _fft_c2c _fft_c2r _fft_r2c
    _foobar _foreach_copy _fused_adagrad_ _fused_adam_ _fused_adamw_ _fused_rms_norm
    _fused_rms_norm_backward _fused_sgd_ _grid_sampler_2d_cpu_fallback
    _grid_sampler_2d_cpu_fallback_backward _histogramdd_bin_edges _histogramdd_from_bin_cts
    _histogramdd_from_bin_tensors _index_put_impl _index_put_impl_ _jagged_to_padded_dense_forward
    _log_softmax_backward_data _logcumsumexp _make_per_channel_quantized_tensor
    _make_per_tensor_quantized_tensor _masked_softmax _masked_softmax_backward _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _native_multi_head_attention
    _neg_view_copy _nested_compute_contiguous_strides_offsets _nnpack_spatial_convolution
    _padded_dense_to_jagged_forward _pdist_backward _pdist_forward _prelu_kernel _prelu_kernel_backward
    _reshape_alias_copy _safe_softmax _sample_dirichlet _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward _segment_reduce_backward _slow_conv2d_backward
    _slow_conv2d_forward _softmax_backward_data _stack _standard_gamma _standard_gamma_grad
    _test_functorch_fallback _test_optional_filled_intlist _test_optional_floatlist _test_optional_intlist
    _thnn_fused_gru_cell _thnn_fused_gru_cell_backward _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl
    _transform_bias_rescale_qkv _transformer_encoder_layer_fwd _unsafe_index _unsafe_index_put
    _unsafe_masked_index _unsafe_masked_index_put_accumulate _upsample_bicubic2d_aa_backward
    _upsample_bilinear2d_aa_backward _upsample_nearest_exact1d_backward
    _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward _validate_compressed_sparse_indices
    _weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int8pack_mm _weight_norm_interface
    _weight_norm_interface_backward
    adaptive_avg_pool3d_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward avg_pool2d_backward
    avg_pool3d_backward batch_norm_backward batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt
    batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_stats batch_norm_update_stats
    binary_cross_entropy_backward
    convolution_backward diagonal_backward embedding_dense_backward fractional_max_pool2d_backward
    fractional_max_pool3d_backward gelu_backward glu_backward glu_backward_jvp grid_sampler_2d_backward
    grid_sampler_3d_backward hardshrink_backward hardsigmoid_backward hardswish_backward hardtanh_backward
    huber_loss_backward log_sigmoid_backward logit_backward lu_unpack
    masked_scatter_backward max_pool2d_with_indices_backward max_pool3d_with_indices_backward mish_backward
    mkldnn_rnn_layer mkldnn_rnn_layer_backward mse_loss_backward multi_margin_loss_backward
    multilabel_margin_loss_backward native_batch_norm native_batch_norm_backward native_dropout
    native_group_norm native_group_norm_backward native_layer_norm native_layer_norm_backward
    nll_loss2d_backward nll_loss_backward range reflection_pad1d_backward reflection_pad2d_backward
    reflection_pad3d_backward replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward
    rrelu_with_noise_backward select_backward sigmoid_backward silu_backward slice_backward slow_conv3d_forward
    slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d smooth_l1_loss_backward
    soft_margin_loss_backward softplus_backward softshrink_backward tanh_backward threshold_backward
    tril triu unfold_backward upsample_bicubic2d_backward upsample_bilinear2d_backward upsample_linear1d_backward
    upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
    upsample_trilinear3d_backward
    """.split()
)


def cpu_checks(operator: str) -> bool:
    """May the CPU kernel of ``operator`` ("add", "_stack") see operands that nobody has proven?

    One that neither set names is a public function, or younger than this table: then PyTorch's mark of its own
    operators, an underscore, decides.
    """
    if operator not in CHECKING | TRUSTING:
        operator = operator.removesuffix("_")  # in place: as the operator that makes a new tensor
    return operator in CHECKING or (operator not in TRUSTING and not operator.startswith("_"))
