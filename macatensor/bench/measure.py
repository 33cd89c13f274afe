"""Interleaved timing of contenders, so that all of them see the same machine."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

import macatensor

Call = Callable[[], object]
T = TypeVar("T")

# Seconds between blocks. PyTorch's OpenMP workers spin for some milliseconds after a parallel region and would take
# a core from whoever comes next.
SETTLE = 0.03
_SLOW, _LONGEST = 1.0, 60.0  # seconds


@dataclass(frozen=True)
class Timing:
    """Seconds per call of each contender, one number a round."""

    rounds: Mapping[str, Sequence[float]]

    def seconds(self, name: str) -> float:
        """The median round."""
        return statistics.median(self.rounds[name])

    def ratios(self, name: str, baseline: str) -> list[float]:
        """Round by round, since both ran within the same second."""
        return [a / b for a, b in zip(self.rounds[name], self.rounds[baseline])]

    def ratio(self, name: str, baseline: str) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(self.ratios(name, baseline))

    def spread(self, name: str, baseline: str) -> tuple[float, float]:
        """The smallest and the largest ratio."""
        ratios = self.ratios(name, baseline)
        return min(ratios), max(ratios)

    def middle(self, name: str, baseline: str) -> tuple[float, float]:
        """The quartiles of the ratios: where the middle half of the rounds lies."""
        return quartiles(self.ratios(name, baseline))


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Of few values: the ones a quarter from either end."""
    ordered = sorted(values)
    skipped = len(ordered) // 4
    return ordered[skipped], ordered[-1 - skipped]


def block(call: Call, count: int) -> float:
    """Seconds per call over ``count`` calls and the device's completion."""
    repeat = range(count)
    start = time.perf_counter()
    for _ in repeat:
        call()
    torch.get_device_module("maca").synchronize()
    return (time.perf_counter() - start) / count


def interleave_short(
    contenders: Mapping[str, Call], rounds: int, blocks: int = 40, seconds: float = 0.001
) -> Timing:
    """Times calls of some microseconds: each round goes ``blocks`` times round the contenders.

    A block is so short that most escape the scheduler; the lower quartile of a round's blocks is what the calls cost
    on a core of their own, on a busy machine too.
    """
    counts = {}
    for name, call in contenders.items():
        block(call, 200)  # builds plans, warms caches
        counts[name] = max(1, round(seconds / min(block(call, 20) for _ in range(5))))
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    gc.collect(1)
    gc.disable()
    try:
        for _ in range(rounds):
            found: dict[str, list[float]] = {name: [] for name in contenders}
            for _ in range(blocks):
                for name, call in contenders.items():
                    found[name].append(block(call, counts[name]))
            for name, values in found.items():
                taken[name].append(sorted(values)[len(values) // 4])
    finally:
        gc.enable()
    return Timing(taken)


def interleave(contenders: Mapping[str, Call], rounds: int, seconds: float, settle: float = SETTLE) -> Timing:
    """Times each contender once a round for about ``seconds``, in up to eight blocks of whole calls.

    Before that come a pause and two untimed calls: threads of the others have gone to sleep, its own are awake, its
    data is back in the cache. A round counts the lower quartile of the blocks, as in :func:`interleave_short`: some
    escape what else runs on the machine. The order turns round every other round. After a minute no round begins but the
    first three, and calls of seconds are not repeated untimed: PyTorch's bfloat16 product of 2048 takes 20 s with AVX2.
    """
    counts, untimed = {}, {}
    for name, call in contenders.items():
        block(call, 1)  # builds plans; a call may return before the device is done with it
        once = block(call, 1)
        if once < _SLOW:
            once = min(block(call, 1) for _ in range(3))
        counts[name] = max(1, round(seconds / once))
        untimed[name] = 2 if once < _SLOW else 0
    names = list(contenders)
    taken: dict[str, list[float]] = {name: [] for name in names}
    gc.collect(1)  # of what was made lately: a full one takes 0.1 s
    gc.disable()  # a collection in one block and not in another would be noise
    try:
        end = time.perf_counter() + _LONGEST
        for i in range(rounds):
            if i >= 3 and time.perf_counter() > end:
                break
            for name in names if i % 2 == 0 else reversed(names):
                time.sleep(settle)
                if untimed[name]:
                    block(contenders[name], untimed[name])
                blocks = min(counts[name], 8)
                found = sorted(block(contenders[name], counts[name] // blocks) for _ in range(blocks))
                taken[name].append(found[blocks // 4])
            gc.collect(1)
    finally:
        gc.enable()
    return Timing(taken)


def counting_fallbacks(call: Callable[[], T]) -> tuple[T, int]:
    """What the call gives, and how many operators of it went to the host. Outside timed blocks: reading counters takes some
    microseconds."""
    with macatensor.fallback("silent"):
        before = macatensor.counters()["fallbacks"]
        given = call()
        return given, macatensor.counters()["fallbacks"] - before
