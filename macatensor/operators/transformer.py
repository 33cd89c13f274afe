"""PyTorch's inference paths of ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer``, of other rows.

A mask is of bool and True is left out, or it is added to the scores. ``mask_type`` says whom it is for: 0 for pairs
[L, L], 1 for keys [B, L], 2 for both [B, heads, L, L].
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._ops import OpOverload

from macatensor.dispatch.launcher import special
from macatensor.operators.composites import composite
from macatensor.runtime.boxed import Launcher

_F = torch.nn.functional


def _kept(mask: Tensor | None, mask_type: int | None) -> Tensor | None:
    """As ``scaled_dot_product_attention`` takes it: True is kept."""
    if mask is None:
        return None
    if mask_type == 1 and mask.dim() == 2:
        mask = mask[:, None, None, :]
    return ~mask if mask.dtype == torch.bool else mask


def _heads(projected: Tensor, heads: int) -> Tensor:
    """[B, L, E] -> [B, heads, L, E / heads]."""
    result: Tensor = projected.unflatten(-1, (heads, -1)).transpose(1, 2)
    return result


@composite
def native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
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
def transform_bias_rescale_qkv(
    qkv: Tensor, qkv_bias: Tensor, num_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value [B, heads, T, width], in one memory, of their projections [B, T, 3 * heads * width] and of the
    bias that these lack; the query divided by the root of its width."""
    if qkv.dim() != 3 or qkv_bias.shape != qkv.shape[-1:]:
        raise RuntimeError(
            f"expected projections [B, T, 3 * E] and a bias [3 * E], got {list(qkv.shape)} and {list(qkv_bias.shape)}"
        )
    if num_heads < 1 or qkv.shape[-1] % (3 * num_heads):
        raise RuntimeError(f"expected 3 * {num_heads} to divide the {qkv.shape[-1]} features of projections")
    width = qkv.shape[-1] // (3 * num_heads)
    parts = (qkv + qkv_bias).unflatten(-1, (3, num_heads, width)).permute(2, 0, 3, 1, 4).contiguous()
    q, k, v = parts.unbind()
    return q.mul_(width**-0.5) if width else q, k, v


@composite
def transformer_encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Attention and feed-forward of ``nn.TransformerEncoderLayer``, [B, L, E] -> [B, L, E]."""

    def norm_1(x: Tensor) -> Tensor:
        return _F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return _F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attend(x: Tensor) -> Tensor:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return native_multi_head_attention(
            x, x, x, embed_dim, num_heads, *projections, mask, False, mask_type=mask_type
        )[0]

    def feed(x: Tensor) -> Tensor:
        hidden = _F.linear(x, ffn_weight_1, ffn_bias_1)
        return _F.linear(_F.gelu(hidden) if use_gelu else hidden.relu(), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attend(norm_1(src))
        return x + feed(norm_2(x))
    x = norm_1(src + attend(src))
    return norm_2(x + feed(x))


@special("aten._nested_tensor_from_mask_left_aligned.default")
def _never_nested(func: OpOverload) -> Launcher:
    """nn.TransformerEncoder asks whether to pack its batch as a nested tensor, which the device has not."""
    return lambda args, kwargs: False
