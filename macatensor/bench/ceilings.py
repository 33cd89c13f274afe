"""What the machine can do at most, a second: bytes of a copy and of a reduction, float32 operations of multiply-adds that
meet no memory and of a matrix product."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_BYTES = 256 << 20  # far beyond any cache
_SIDE = 1024
_OPERATIONS = 1 << 31  # 20 ms of two cores with AVX2


@dataclass(frozen=True)
class Ceilings:
    """Each a second: bytes that a copy reads and writes, bytes that a sum or maximum reads, float32 operations."""

    copy: float
    read: float
    multiply_add: float | None  # None: the device library has no such kernel
    product: float

    @property
    def arithmetic(self) -> tuple[float, str]:
        """The most operations, and by which loop."""
        if self.multiply_add is None:
            return self.product, "product"
        return self.multiply_add, "multiply-add"


@functools.cache
def ceilings(threads: int, quick: bool = False, runs: int = 25) -> Ceilings:
    """Measured once a process with that many threads, in float32: the quickest of ``runs`` of each loop.

    The copy is the better of PyTorch's and maca's, what reads the best of their sums and maxima: one thread of PyTorch's
    sum reads more slowly than a copy. The 1024 x 1024 product is PyTorch's; the multiply-adds are the device library's
    ``arithmetic_peak`` on all its threads.
    """
    from macatensor.dispatch.named_kernels import launch
    from macatensor.dispatch.request import Declined

    runs = 2 if quick else runs
    nbytes, side, operations = (8 << 20, 128, 1 << 22) if quick else (_BYTES, _SIDE, _OPERATIONS)
    source, target = torch.ones(nbytes // 4), torch.empty(nbytes // 4)
    ours, ours_target = source.to("maca"), target.to("maca")
    a, b, c = (torch.rand(side, side) for _ in range(3))

    def multiply_adds() -> None:
        launch("arithmetic_peak", [], [], {"operations": operations})

    copy = min(_best(runs, lambda: target.copy_(source)), _best(runs, lambda: ours_target.copy_(ours)))
    reads: list[Callable[[], object]] = [source.sum, source.amax, ours.sum, ours.amax]
    read = min(_best(runs, call) for call in reads)
    product = _best(runs, lambda: torch.mm(a, b, out=c))
    try:
        multiply_add: float | None = operations / _best(runs, multiply_adds)
    except Declined:
        multiply_add = None
    return Ceilings(2 * nbytes / copy, nbytes / read, multiply_add, 2 * side**3 / product)


def _best(runs: int, call: Callable[[], object]) -> float:
    """Seconds of the quickest of ``runs`` calls."""
    synchronize = torch.get_device_module("maca").synchronize
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        call()
        synchronize()
        best = min(best, time.perf_counter() - start)
    return best
