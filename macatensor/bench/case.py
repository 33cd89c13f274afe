"""A kernel's case: operands on the host, of which maca gets copies, and what a call must move and compute at least, so that its
rate can be held against the ceilings that are measured in the same run. A quick run has the same cases on smaller operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Function = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]
Operands = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """``function`` of the operands that ``make`` makes; ``bar`` is a ratio to native PyTorch's time."""

    name: str
    function: Function
    make: Callable[[], Operands]
    bar: float | None
    nbytes: int = 0
    flops: int = 0
    reads_only: bool = False  # what it writes is nothing beside what it reads
    is_small: bool = False  # a call takes microseconds
    is_backward: bool = False  # timed is the gradient of all operands
    is_contiguous: bool = False  # of one layout, on maca too, where four dimensions would become NHWC


def rand(count: int, *size: int, dtype: torch.dtype = torch.float32) -> Callable[[], Operands]:
    """Makes ``count`` tensors of one size, uniform in [0, 1)."""
    return lambda: tuple(torch.rand(size, dtype=dtype) for _ in range(count))


def nhwc(count: int, *size: int) -> Callable[[], Operands]:
    """Makes ``count`` images, [N, C, H, W] in channels-last, uniform in [0, 1)."""

    def make() -> Operands:
        return tuple(torch.rand(size).contiguous(memory_format=torch.channels_last) for _ in range(count))

    return make
