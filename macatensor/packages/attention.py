"""Attention by PyTorch's operators with what flash_attn and ``torch.nn.attention.varlen`` add: masks aligned to the bottom
right, windows, a cap of scores, ALiBi, and results of zero where a query sees no key."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Options:
    """What holds for all sequences of a call."""

    dropout: float = 0.0
    scale: float | None = None
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    slopes: Tensor | None = None  # [H] or [B, H]


@dataclass(frozen=True)
class Keys:
    """Which of the keys belong to a sequence: from ``first`` [B] up to, without, ``end`` [B]. None: all."""

    first: Tensor | None = None
    end: Tensor | None = None

    @property
    def are_all(self) -> bool:
        return self.first is None and self.end is None


ALL = Keys()


def check(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raises RuntimeError for operands of several dtypes or heads that do not divide."""
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            f"query, key and value must have the same dtype; got {query.dtype}, {key.dtype}, {value.dtype}"
        )
    if not query.is_floating_point():
        raise RuntimeError(f"flash_attn got {query.dtype}; on maca it accepts floating point dtypes")
    if key.shape[-2] == 0 or query.shape[-2] % key.shape[-2] or key.shape[-2] != value.shape[-2]:
        raise RuntimeError(
            "Number of heads in key/value must divide number of heads in query; got "
            f"{query.shape[-2]} heads of queries, {key.shape[-2]} of keys, {value.shape[-2]} of values"
        )


def attend(query: Tensor, key: Tensor, value: Tensor, options: Options, keys: Keys = ALL) -> Tensor:
    """[B, L, H, D] of query [B, L, H, E], key [B, S, Hk, E] and value [B, S, Hk, D]."""
    if options.dropout or options.softcap:
        return attend_with_weights(query, key, value, options, keys)[0]
    heads = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    grouped = query.shape[2] != key.shape[2]
    if keys.are_all and options.slopes is None and _has_pytorchs_mask(query, key, options):
        output = functional.scaled_dot_product_attention(
            *heads, is_causal=_is_causal(query, options), scale=options.scale, enable_gqa=grouped
        )
        return output.transpose(1, 2)
    bias, seen = _bias(query, key, options, keys)
    output = functional.scaled_dot_product_attention(
        *heads, attn_mask=bias, scale=options.scale, enable_gqa=grouped
    ).transpose(1, 2)
    return output if seen is None else output.masked_fill(~seen.transpose(1, 2), 0.0)


def attend_with_weights(
    query: Tensor, key: Tensor, value: Tensor, options: Options, keys: Keys = ALL
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the logsumexp of scores [B, H, L] in float32, and the weights [B, H, L, S], negative where dropout has
    dropped them."""
    computed = torch.promote_types(query.dtype, torch.float32)
    k, v = (_repeated(t, query) for t in (key, value))
    scale = 1.0 / math.sqrt(query.shape[-1]) if options.scale is None else options.scale
    scores = query.transpose(1, 2).to(computed) @ k.mT.to(computed) * scale
    if options.softcap:
        scores = torch.tanh(scores / options.softcap) * options.softcap
    bias, seen = _bias(query, key, options, keys)
    if bias is not None:
        scores = scores.masked_fill(~bias, -math.inf) if bias.dtype is torch.bool else scores + bias
    weights = torch.softmax(scores, -1)
    logsumexp = torch.logsumexp(scores, -1)
    if seen is not None:
        weights = weights.masked_fill(~seen, 0.0)
        logsumexp = logsumexp.masked_fill(~seen.squeeze(-1), math.inf)
    kept = functional.dropout(weights, options.dropout)
    output = (kept.to(query.dtype) @ v).transpose(1, 2)
    if options.dropout:
        weights = torch.where((kept == 0) & (weights != 0), -weights, weights)
    return output, logsumexp, weights.to(query.dtype)


def is_fused(query: Tensor, key: Tensor, value: Tensor, options: Options) -> bool:
    """May :func:`fused` compute it, without a matrix of scores? Its logsumexp has float32's digits, too few for float64."""
    is_plain = not options.dropout and not options.softcap and options.slopes is None
    has_elements = query.shape[1] > 0 and key.shape[1] > 0
    fits = query.dtype is not torch.float64 and query.shape[-1] == value.shape[-1] and has_elements
    return is_plain and fits and _has_pytorchs_mask(query, key, options)


def _has_pytorchs_mask(query: Tensor, key: Tensor, options: Options) -> bool:
    """None, or a causal one that PyTorch aligns alike: of a square, or of one query, of which it hides nothing."""
    left, right = _window(options)
    return left < 0 and (right < 0 or (right == 0 and query.shape[1] in (1, key.shape[1])))


def _is_causal(query: Tensor, options: Options) -> bool:
    """Where :func:`_has_pytorchs_mask`: does it hide keys?"""
    return _window(options)[1] == 0 and query.shape[1] > 1


def _summed(t: Tensor, key: Tensor) -> Tensor:
    """[B, H, S, D] as [B, Hk, S, D]: gradients of what :func:`_repeated` gave."""
    groups = t.shape[1] // key.shape[2]
    return t.unflatten(1, (-1, groups)).sum(2) if groups > 1 else t


def _repeated(t: Tensor, query: Tensor) -> Tensor:
    """Keys or values [B, S, Hk, D] as [B, H, S, D], a head for each of ``query``'s."""
    groups = query.shape[2] // t.shape[2]
    return (t.repeat_interleave(groups, 2) if groups > 1 else t).transpose(1, 2)


def fused(query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """The output [B, L, H, D] and the logsumexp [B, H, L] in float32, by one launch."""
    heads = query.transpose(1, 2), _repeated(key, query), _repeated(value, query)
    output, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
        *heads, 0.0, _is_causal(query, options), scale=options.scale
    )
    return output.transpose(1, 2), logsumexp


def fused_gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    options: Options,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of query, key and value, from what :func:`fused` gave."""
    heads = query.transpose(1, 2), _repeated(key, query), _repeated(value, query)
    of_query, of_key, of_value = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
        grad.transpose(1, 2), *heads, output.transpose(1, 2), logsumexp, 0.0, _is_causal(query, options),
        scale=options.scale,
    )  # fmt: skip
    of_key, of_value = (_summed(t, key) for t in (of_key, of_value))
    return of_query.transpose(1, 2), of_key.transpose(1, 2), of_value.transpose(1, 2)


def gradients(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, options: Options
) -> tuple[Tensor, Tensor, Tensor]:
    """Of query, key and value, without dropout, cap and slopes. The weights are computed anew: a logsumexp has float32's
    digits."""
    computed = torch.promote_types(query.dtype, torch.float32)
    # [B, H, L or S, D]
    q, g, o = (t.transpose(1, 2).to(computed) for t in (query, grad, output))
    k, v = (_repeated(t, query).to(computed) for t in (key, value))
    scale = 1.0 / math.sqrt(query.shape[-1]) if options.scale is None else options.scale
    scores = q @ k.mT * scale
    allowed, seen = _bias(query, key, options, ALL)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    weights = torch.softmax(scores, -1)
    if seen is not None:
        weights = weights.masked_fill(~seen, 0.0)
    of_scores = weights * (g @ v.mT - (g * o).sum(-1, keepdim=True)) * scale
    of_query, of_key, of_value = of_scores @ k, of_scores.mT @ q, weights.mT @ g
    of_key, of_value = (_summed(t, key) for t in (of_key, of_value))
    return (
        of_query.transpose(1, 2).to(query.dtype),
        of_key.transpose(1, 2).to(key.dtype),
        of_value.transpose(1, 2).to(value.dtype),
    )


def _window(options: Options) -> tuple[int, int]:
    """Left and right; negative: unlimited."""
    left, right = options.window
    return (left, 0) if options.causal else (left, right)


def _bias(query: Tensor, key: Tensor, options: Options, keys: Keys) -> tuple[Tensor | None, Tensor | None]:
    """What is added to the scores, or a mask of those that count; and which queries see a key [B or 1, 1, L, 1]. A
    query that sees none is given all keys, for its softmax to be finite; its result is zero in any case."""
    left, right = _window(options)
    length, width = query.shape[1], key.shape[1]
    if left < 0 and right < 0 and options.slopes is None and keys.are_all:
        return None, None
    column = torch.arange(width, device=query.device)
    ends: int | Tensor = width if keys.end is None else keys.end.view(-1, 1, 1, 1)
    # [B or 1, 1, L, 1]: the key beside which a query stands
    row = torch.arange(length, device=query.device).view(1, 1, length, 1) + (ends - length)
    allowed = column < ends if keys.end is not None else torch.ones_like(row + column, dtype=torch.bool)
    if keys.first is not None:
        allowed = allowed & (column >= keys.first.view(-1, 1, 1, 1))
    if right >= 0:
        allowed = allowed & (column <= row + right)
    if left >= 0:
        allowed = allowed & (column >= row - left)
    allowed = allowed.expand(torch.broadcast_shapes(allowed.shape, (1, 1, length, width)))
    seen = allowed.any(-1, keepdim=True)
    allowed = allowed | ~seen
    if options.slopes is None:
        return allowed, seen
    slopes = options.slopes.view(-1, options.slopes.shape[-1], 1, 1)
    computed = torch.promote_types(query.dtype, torch.float32)
    distance = (row - column).abs().to(computed)
    return (-slopes.to(computed) * distance).masked_fill(~allowed, -math.inf), seen
