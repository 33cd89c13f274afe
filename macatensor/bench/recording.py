"""What recording a training step costs, and what a long record holds in memory."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from macatensor.accuracy.recording.sessions import record
from macatensor.bench.leak import resident
from macatensor.bench.measure import quartiles
from macatensor.bench.models import GPT_SIZES, TINY_SIZES
from macatensor.bench.result import Result
from macatensor.demo.models import GPT

BARS = {0: 1.3, 1: 2.0}  # by record_level, against the plain step
MEMORY = 200 << 20
OPERATORS = 100_000


def _step(device: str, quick: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    sizes = TINY_SIZES if quick else GPT_SIZES
    model = GPT(sizes).to(device)
    tokens = torch.randint(sizes.vocabulary, (4, sizes.context + 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()

    return run


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    torch.get_device_module("maca").synchronize()
    return time.perf_counter() - start


def steps(rounds: int, quick: bool) -> list[Result]:
    """The GPT's training step recorded at levels 0 and 1, each round against a plain one beside it."""
    results = []
    for device in ("maca", "cpu"):
        step = _step(device, quick)
        ratios: dict[int, list[float]] = {level: [] for level in BARS}
        taken: dict[int, list[float]] = {level: [] for level in BARS}
        plain: list[float] = []
        step(), step()
        for _ in range(rounds):
            for level in BARS:
                plain.append(_seconds(step))
                with tempfile.TemporaryDirectory() as folder, record(folder, record_level=level):
                    if not quick:
                        _seconds(step)  # stacks, which this line is part of, are put into words once
                    taken[level].append(_seconds(step))
                ratios[level].append(taken[level][-1] / plain[-1])
        results += [
            Result(
                f"record.gpt.{device}.level{level}", "the plain step", statistics.median(ratios[level]), bar,
                statistics.median(plain), statistics.median(taken[level]),
                spread=(min(ratios[level]), max(ratios[level])), middle=quartiles(ratios[level]),
            )
            for level, bar in BARS.items()
        ]  # fmt: skip
    return results


def memory(rounds: int, quick: bool) -> list[Result]:
    """Growth of the process over a level-1 record of 100,000 operators, forward and backward."""
    count = OPERATORS // 50 if quick else OPERATORS
    x = torch.randn(64, requires_grad=True)
    with tempfile.TemporaryDirectory() as folder, record(folder, record_level=1) as session:
        recorder = session.recorder
        torch.tanh(x).sum().backward()
        before = resident()
        peak = before
        while recorder.written < count:
            for _ in range(100):
                torch.tanh(x * 2).sum().backward()
            peak = max(peak, resident())
    return [
        Result("record.memory", f"{count:,} calls at level 1", max(0, peak - before), MEMORY, unit="B"),
    ]


def recording(rounds: int, quick: bool) -> list[Result]:
    """Cost and memory."""
    return [*steps(rounds, quick), *memory(rounds, quick)]
