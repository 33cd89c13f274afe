"""Does memory stay where it is? A million launches, ten thousand distinct signatures."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys

import torch

import macatensor
from macatensor.bench.result import Result
from macatensor.runtime.plan_caches import LIMIT

# Pages that the heap keeps for reasons of its own. A leak of one Python object (56 bytes) a launch would be 56 MB,
# one of a plan (some kilobytes) a signature 20 MB and more.
ALLOWANCE = 2 << 20
PHASES = 6


def leak(rounds: int, quick: bool) -> list[Result]:
    """Growth of the process's resident memory and of device memory, in bytes."""
    launches = 5_000 if quick else 1_000_000
    # whole cache fillings, so that every measurement finds the cache equally full
    signatures = 512 if quick else -(-10_000 // LIMIT) * LIMIT
    device = torch.get_device_module("maca")
    a, b = torch.rand(16).to("maca"), torch.rand(16).to("maca")
    base = torch.zeros(3 * signatures + 2, device="maca")

    _signatures(base, 1, signatures)  # fills the cache up to its bound
    _launches(a, b, launches // 10)
    device_before = device.memory_allocated()
    # The heap grows a little, and less each time, until its free blocks fit what comes and goes. A leak grows as much
    # every time; so phases repeat until one fits, and the last one counts.
    grown = 0
    phases = 1 if quick else PHASES
    for phase in range(phases):
        before = resident()
        _signatures(base, 1 + signatures * (1 + phase % 2), signatures)
        grown = resident() - before
        if grown <= ALLOWANCE:
            break
    between = resident()
    _launches(a, b, launches)
    after, device_after = resident(), device.memory_allocated()
    evicted = macatensor.counters()["plan_evictions"]
    return [
        Result("leak.signatures", f"{signatures:,} new signatures", max(0, grown), ALLOWANCE, unit="B",
               note=f"cache bound {LIMIT:,} plans an operator; evictions so far {evicted:,}"),
        Result("leak.launches", f"{launches:,} launches", max(0, after - between), ALLOWANCE, unit="B"),
        Result("leak.device", "device memory over both", max(0, device_after - device_before), 0, unit="B"),
    ]  # fmt: skip


def _signatures(base: torch.Tensor, first: int, count: int) -> None:
    for n in range(first, first + count):
        torch.neg(base[:n])


def _launches(a: torch.Tensor, b: torch.Tensor, count: int) -> None:
    for _ in range(count):
        a + b


def resident() -> int:
    """Bytes of physical memory of this process, after giving free heap pages back."""
    gc.collect()
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except AttributeError:  # not glibc
            pass
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    # macOS: bytes, and the peak, so growth is not hidden
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
