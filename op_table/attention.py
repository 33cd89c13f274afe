"""Attention: our own blocked kernels, forward and backward; memory grows with the sequence, not with its square."""

from op_table.row import FLOATING, also, composite, kernel, per_term

# The sum is over |probability * value|. A score carries an error of about eps * |score|, which exp turns into a
# relative error of the probability: up to 20 eps at the scores that random queries and keys give.
kernel(
    "scaled_dot_product_attention",
    FLOATING,
    kernel="sdpa_forward",
    bound=per_term("exp multiplies the rounding of scores by their size", f32=32, f64=32, f16=2, bf16=2),
)

# What nn.MultiheadAttention and nn.TransformerEncoderLayer call when no gradient is wanted.
_LAYERS = (
    "matrix products, which dominate, attention and norms: 6 to 14 launches of rows that are fused themselves"
)
composite("_native_multi_head_attention", via="native_multi_head_attention", why=_LAYERS)
composite(
    "_transform_bias_rescale_qkv",
    via="transform_bias_rescale_qkv",
    why="a sum, a transposition and a product by a number",
)
composite("_transformer_encoder_layer_fwd", via="transformer_encoder_layer", why=_LAYERS)

also("scaled_dot_product_attention", free_strides=0)
