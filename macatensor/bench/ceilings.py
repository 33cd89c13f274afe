"""What the machine can do at most: bytes a second of a copy, operations a second of products that stay in cache."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

import torch

_BYTES = 256 << 20  # far beyond any cache
_SIDE = 1024


@dataclass(frozen=True)
class Ceilings:
    """Bytes (read and written) a second, and float32 operations a second."""

    bytes_per_second: float
    flops_per_second: float


@functools.cache
def ceilings(threads: int) -> Ceilings:
    """Measured once a process with that many threads: the best of several PyTorch copies and matrix products."""
    source, target = torch.ones(_BYTES // 4), torch.empty(_BYTES // 4)
    a, b, c = (torch.rand(_SIDE, _SIDE) for _ in range(3))
    copy = min(_seconds(lambda: target.copy_(source)) for _ in range(9))
    product = min(_seconds(lambda: torch.mm(a, b, out=c)) for _ in range(9))
    return Ceilings(2 * _BYTES / copy, 2 * _SIDE**3 / product)


def _seconds(call: object) -> float:
    start = time.perf_counter()
    call()  # type: ignore[operator]
    return time.perf_counter() - start
