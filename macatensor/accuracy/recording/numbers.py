"""The numbers of a tensor at level 1: extremes, mean, norm, NaN and Inf counts and a hash, by PyTorch's operators.

The hash tells tensors apart whatever their strides, device and number of threads: the sum modulo 2^64 of ``x * (x ^
MIX)``, where ``x`` is ``scramble((word + index * STEP) mod 2^32)`` for each element's bits ``word`` (8-byte elements
have two words, the high one with an index of its own) at its place ``index`` in row-major order.
"""

from __future__ import annotations

import json
import math
from typing import NamedTuple

import torch

STEP, HIGH, MIX = 0x9E3779B1, 0x85EBCA77, 0x5BD1E995
_MASK = 0xFFFFFFFF
_CHUNK = 1 << 22  # elements taken apart at once: PyTorch's operators need some 100 bytes for each


class Numbers(NamedTuple):
    """Of the finite elements, complex ones as pairs; None where there is none."""

    min: float | None
    max: float | None
    mean: float | None
    norm: float | None
    nan: int
    inf: int
    hash: str

    def text(self) -> str:
        """As members of a JSON object."""
        if self.min is None:
            return f'"nan":{self.nan},"inf":{self.inf},"hash":"{self.hash}"'
        if math.isfinite(self.norm or 0.0):  # then all are: repr is what json writes, in a fifth of its time
            return (
                f'"min":{self.min!r},"max":{self.max!r},"mean":{self.mean!r},"norm":{self.norm!r},'
                f'"nan":{self.nan},"inf":{self.inf},"hash":"{self.hash}"'
            )
        return json.dumps(self._asdict(), separators=(",", ":"))[1:-1]


def by_operators(tensor: torch.Tensor) -> Numbers:
    """The numbers by PyTorch's operators, on the tensor's own device."""
    plain = tensor.resolve_conj().resolve_neg()
    if plain.is_complex():
        plain = torch.view_as_real(plain.to(torch.complex64) if plain.dtype == torch.complex32 else plain)
        if tensor.dtype == torch.complex32:
            plain = plain.half()
    flat = plain.reshape(-1)
    total, nan, inf, finite = 0, 0, 0, 0
    low, high, sums, squares = math.inf, -math.inf, [], []
    for start in range(0, flat.numel(), _CHUNK):
        part = flat[start : start + _CHUNK]
        total += int(_hash(part, start))
        wide = part.to(torch.float64)
        kept = torch.isfinite(wide)
        nan += int(torch.isnan(wide).sum())
        inf += int(torch.isinf(wide).sum())
        wide = wide[kept]
        if wide.numel():
            finite += wide.numel()
            low, high = min(low, float(wide.min())), max(high, float(wide.max()))
            sums.append(float(wide.sum()))
            squares.append(float(torch.linalg.vector_norm(wide)))
    text = f"{total & 0xFFFFFFFFFFFFFFFF:016x}"
    if not finite:
        return Numbers(None, None, None, None, nan, inf, text)
    return Numbers(low, high, math.fsum(sums) / finite, math.hypot(*squares), nan, inf, text)


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _hash(flat: torch.Tensor, start: int) -> torch.Tensor:
    size = flat.dtype.itemsize
    bits = flat.contiguous().view(_BITS[size]).to(torch.int64)
    index = torch.arange(start, start + flat.numel(), device=flat.device, dtype=torch.int64) * STEP
    if size < 8:
        return _scrambled((bits & ((1 << 8 * size) - 1)) + index)
    low = _scrambled((bits & _MASK) + index)
    return low + _scrambled((bits >> 32 & _MASK) + index + HIGH)


def _scrambled(x: torch.Tensor) -> torch.Tensor:
    x = x & _MASK
    x = x ^ x >> 16
    x = x * 0x7FEB352D & _MASK
    x = x ^ x >> 15
    x = x * 0x846CA68B & _MASK
    x = x ^ x >> 16
    return (x * (x ^ MIX)).sum()
