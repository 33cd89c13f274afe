"""Rotary position embeddings, in float32 whatever the dtype of what is rotated."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate_half(x: Tensor, interleaved: bool = False) -> Tensor:
    """(-b, a) of halves (a, b) of the last dimension, or of its pairs where ``interleaved``."""
    if not interleaved:
        first, second = x.chunk(2, dim=-1)
        return torch.cat((-second, first), dim=-1)
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def apply_rotary_emb_torch(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """x [B, L, H, D] rotated by tables [L, R / 2] or [B, L, R / 2] in its first R numbers of each head."""
    return _turned(x, cos, sin, interleaved)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    width = 2 * cos.shape[-1]
    if width > x.shape[-1]:
        raise AssertionError(f"rotary_dim must be <= headdim; got {width} and {x.shape[-1]}")
    computed = torch.promote_types(x.dtype, torch.float32)
    cos, sin = cos.unsqueeze(-2).to(computed), sin.unsqueeze(-2).to(computed)
    part = x[..., :width].to(computed)
    a, b = (part[..., ::2], part[..., 1::2]) if interleaved else part.chunk(2, dim=-1)
    turned = a * cos - b * sin, a * sin + b * cos
    rotated = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    rotated = rotated.to(x.dtype)
    return rotated if width == x.shape[-1] else torch.cat((rotated, x[..., width:]), -1)


def _positions(x: Tensor, offsets: int | Tensor, bounds: Tensor | None) -> Tensor:
    """[L] or [B, L] or [total]: where each token of ``x`` stands in its sequence."""
    if bounds is None:
        position = torch.arange(x.shape[1], device=x.device)
        return position + (offsets if isinstance(offsets, int) else offsets.view(-1, 1))
    token = torch.arange(x.shape[0], device=x.device)
    bounds = bounds.long()
    sequence = torch.bucketize(token, bounds[1:], right=True).clamp(max=bounds.shape[0] - 2)
    position = token - bounds[sequence]
    return position + (offsets if isinstance(offsets, int) else offsets[sequence])


def rotate(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    offsets: int | Tensor = 0,
    bounds: Tensor | None = None,
) -> Tensor:
    """x [B, L, H, D], or [total, H, D] with ``bounds`` [B + 1], rotated by the rows of the tables [positions, R / 2] at its
    positions, ``offsets`` [B] later. An IndexError where a position is beyond the tables."""
    if isinstance(offsets, int) and bounds is None:
        rows = slice(offsets, offsets + x.shape[1])
        if rows.stop > cos.shape[0]:
            raise IndexError(f"rotary tables have {cos.shape[0]} rows; got position {rows.stop - 1}")
        return _turned(x, cos[rows], sin[rows], interleaved)
    position = _positions(x, offsets, bounds).long()
    return _turned(x, cos[position], sin[position], interleaved)


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """x [B, L, H, D], or [total, H, D] with ``cu_seqlens`` [B + 1], rotated in the first R numbers of each head by tables
    [positions, R / 2]: pairs of neighbours where ``interleaved``, else of halves. ``seqlen_offsets`` [B] or a number: where
    the sequences begin. With ``inplace`` x itself is written and returned. The gradient goes to x alone."""
    rotated = rotate(x, cos.detach(), sin.detach(), interleaved, seqlen_offsets, cu_seqlens)
    return x.copy_(rotated) if inplace else rotated


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_qkv_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cos_k: Tensor | None = None,
    sin_k: Tensor | None = None,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
    num_heads_q: int | None = None,
) -> Tensor:
    """Rotates queries and keys of qkv [B, L, 3, H, D], or [B, L, H + 2 Hk, D] with ``num_heads_q`` H, in place, and returns
    it. ``cos_k`` and ``sin_k`` are tables for the keys. Raises AssertionError for other shapes."""
    if qkv.dim() == 5:
        if qkv.shape[2] != 3:
            raise AssertionError(f"qkv must be [B, L, 3, H, D]; got {list(qkv.shape)}")
        parts = qkv[:, :, 0], qkv[:, :, 1]
    else:
        if qkv.dim() != 4 or num_heads_q is None or (qkv.shape[2] - num_heads_q) % 2:
            raise AssertionError(
                f"qkv of {list(qkv.shape)} needs num_heads_q, of which {num_heads_q} does not fit"
            )
        key = num_heads_q + (qkv.shape[2] - num_heads_q) // 2
        parts = qkv[:, :, :num_heads_q], qkv[:, :, num_heads_q:key]
    tables = (cos, sin), (cos if cos_k is None else cos_k, sin if sin_k is None else sin_k)
    for part, (cosine, sine) in zip(parts, tables):
        apply_rotary_emb(part, cosine, sine, interleaved, True, seqlen_offsets)
    return qkv


def apply_rotary_emb_kv_(
    kv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, seqlen_offsets: int | Tensor = 0
) -> Tensor:
    """Rotates the keys of kv [B, L, 2, H, D] in place, and returns it."""
    apply_rotary_emb(kv[:, :, 0], cos, sin, interleaved, True, seqlen_offsets)
    return kv


class RotaryEmbedding(torch.nn.Module):
    """Rotary embeddings of ``dim`` numbers of each head, with tables that grow with the sequence. ``scale_base``: XPos, whose
    tables for queries grow and those for keys shrink with the position."""

    inv_freq: Tensor
    scale: Tensor | None

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.base, self.interleaved, self.scale_base = dim, float(base), interleaved, scale_base
        even = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
        self.register_buffer("inv_freq", 1.0 / self.base ** (even / dim), persistent=False)
        scale = None if scale_base is None else (even + 0.4 * dim) / (1.4 * dim)
        self.register_buffer("scale", scale, persistent=False)
        self._seq_len_cached = 0
        self._cos_cached: Tensor | None = None
        self._sin_cached: Tensor | None = None
        self._cos_k_cached: Tensor | None = None
        self._sin_k_cached: Tensor | None = None

    def _tables(self, length: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        cos, sin = self._cos_cached, self._sin_cached
        if (
            cos is None
            or sin is None
            or length > self._seq_len_cached
            or cos.device != like.device
            or cos.dtype != like.dtype
            or (self.training and cos.is_inference())
        ):
            self._seq_len_cached = length
            # in float32: a model in bfloat16 would lose positions
            even = torch.arange(0, self.dim, 2, device=like.device, dtype=torch.float32)
            position = torch.arange(length, device=like.device, dtype=torch.float32)
            angle = torch.outer(position, 1.0 / self.base ** (even / self.dim))
            cosine, sine = angle.cos(), angle.sin()
            if self.scale_base is not None:
                power = ((position - length // 2) / self.scale_base).unsqueeze(-1)
                scale = ((even + 0.4 * self.dim) / (1.4 * self.dim)) ** power
                self._cos_k_cached, self._sin_k_cached = (
                    (cosine / scale).to(like.dtype),
                    (sine / scale).to(like.dtype),
                )
                cosine, sine = cosine * scale, sine * scale
            cos, sin = cosine.to(like.dtype), sine.to(like.dtype)
            self._cos_cached, self._sin_cached = cos, sin
        return cos, sin, self._cos_k_cached, self._sin_k_cached

    def forward(
        self,
        qkv: Tensor,
        kv: Tensor | None = None,
        seqlen_offset: int | Tensor = 0,
        max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Rotates qkv, of shapes as :func:`apply_rotary_emb_qkv_`, in place; with kv [B, L, 2, H, D] qkv is the query
        [B, L, H, D] alone, and both are returned. A tensor ``seqlen_offset`` needs ``max_seqlen``, up to which tables go."""
        length = self._seq_len_cached
        if max_seqlen is not None:
            length = max_seqlen
        elif isinstance(seqlen_offset, int):
            length = qkv.shape[1] + seqlen_offset
        cos, sin, cos_k, sin_k = self._tables(length, qkv)
        if kv is None:
            return apply_rotary_emb_qkv_(
                qkv, cos, sin, cos_k, sin_k, self.interleaved, seqlen_offset, num_heads_q
            )
        query = apply_rotary_emb(qkv, cos, sin, self.interleaved, True, seqlen_offset)
        key_cos, key_sin = (cos if cos_k is None else cos_k), (sin if sin_k is None else sin_k)
        return query, apply_rotary_emb_kv_(kv, key_cos, key_sin, self.interleaved, seqlen_offset)
