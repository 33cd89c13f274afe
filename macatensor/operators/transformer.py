"""PyTorch's inference paths of ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer``, of other rows.

A mask is of bool and True is left out, or it is added to the scores. ``mask_type`` says whom it is for: 0 for pairs
[L, L], 1 for keys [B, L], 2 for both [B, heads, L, L].
"""

from __future__ import annotations

from typing import Any

import torch

from macatensor.dispatch.launcher import Launcher, special
from macatensor.operators.composites import composite

_F = torch.nn.functional


def _kept(mask: Any, mask_type: int | None) -> Any:
    """As ``scaled_dot_product_attention`` takes it: True is kept."""
    if mask is None:
        return None
    if mask_type == 1 and mask.dim() == 2:
        mask = mask[:, None, None, :]
    return ~mask if mask.dtype == torch.bool else mask


def _heads(projected: Any, heads: int) -> Any:
    """[B, L, E] -> [B, heads, L, E / heads]."""
    return projected.unflatten(-1, (heads, -1)).transpose(1, 2)


@composite
def native_multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:
    """Output [B, L, E] and, if wanted, probabilities: the mean over heads [B, L, S], or [B, heads, L, S]."""
    if query.dim() != 3:
        raise RuntimeError(f"expected 3-D `query`, got {query.dim()}-D tensor")
    if embed_dim % num_head:
        raise RuntimeError("Number of heads must divide evenly into embed_dim")
    if query is key and key is value:
        parts = _F.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
        parts = tuple(_F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))
    q, k, v = (_heads(part, num_head) for part in parts)
    kept = _kept(mask, mask_type)
    probabilities = None
    if need_weights:
        scores = torch.matmul(q * (q.shape[-1] ** -0.5), k.transpose(-1, -2))
        if kept is not None:
            scores = scores.masked_fill(~kept, -torch.inf) if kept.dtype == torch.bool else scores + kept
        probabilities = scores.softmax(-1)
        attended = torch.matmul(probabilities, v)
        if average_attn_weights:
            probabilities = probabilities.mean(1)
    else:
        attended = _F.scaled_dot_product_attention(q, k, v, kept)
    return _F.linear(attended.transpose(1, 2).flatten(2), proj_weight, proj_bias), probabilities


@composite
def transformer_encoder_layer(
    src: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """Attention and feed-forward of ``nn.TransformerEncoderLayer``, [B, L, E] -> [B, L, E]."""

    def norm_1(x: Any) -> Any:
        return _F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Any) -> Any:
        return _F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attend(x: Any) -> Any:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return native_multi_head_attention(
            x, x, x, embed_dim, num_heads, *projections, mask, False, mask_type=mask_type
        )[0]

    def feed(x: Any) -> Any:
        hidden = _F.linear(x, ffn_weight_1, ffn_bias_1)
        return _F.linear(_F.gelu(hidden) if use_gelu else hidden.relu(), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attend(norm_1(src))
        return x + feed(norm_2(x))
    x = norm_1(src + attend(src))
    return norm_2(x + feed(x))


@special("aten._nested_tensor_from_mask_left_aligned.default")
def _never_nested(func: Any) -> Launcher:
    """nn.TransformerEncoder asks whether to pack its batch as a nested tensor, which the device has not."""
    return lambda args, kwargs: False
