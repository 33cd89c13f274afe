"""Where the values of a tape lie: none on another that lives, and no more memory than eager's."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from macatensor.compiling import tapes
from macatensor.compiling.backend import maca
from macatensor.runtime.ffi import native

Value = tuple[int, int, int, bool]
SIZES = [0, 1, 512, 3000, 16384, 16385, 70_000, 1 << 20]


def random_values(rng: random.Random) -> tuple[list[Value], list[tuple[int, int]], int]:
    steps = rng.randint(1, 30)
    values: list[Value] = []
    for _ in range(rng.randint(1, 40)):
        born = rng.randrange(-1, steps)
        if born < 0:
            values.append((rng.choice(SIZES), -1, -1, False))
        elif rng.random() < 0.15:
            values.append((rng.choice(SIZES), born, steps + 1, True))
        else:
            values.append((rng.choice(SIZES), born, rng.randint(born + 1, steps), False))
    pairs = [(rng.randrange(len(values)), rng.randrange(len(values))) for _ in range(200)]
    return values, pairs, steps


@pytest.mark.parametrize("seed", range(0, 600, 100))
def test_no_two_living_values_overlap(seed: int) -> None:
    taken_over = 0
    for number in range(seed, seed + 100):
        values, heirs, steps = random_values(random.Random(number))
        homes, pieces, scratch = native.plan_memory(values, heirs)
        for (size, born, died, is_result), (piece, offset) in zip(values, homes):
            if born < 0:
                assert piece == -1
                continue
            whole, begins, ends, result = pieces[piece]
            assert 0 <= offset and offset + size <= whole and begins <= born and died <= ends
            assert offset % 512 == 0
            assert not is_result or values[result] == (size, born, died, is_result)
        for i, a in enumerate(values):
            for j, b in enumerate(values[:i]):
                if a[1] < 0 or b[1] < 0 or homes[i][0] != homes[j][0]:
                    continue
                apart = homes[i][1] + a[0] <= homes[j][1] or homes[j][1] + b[0] <= homes[i][1]
                if apart or a[2] <= b[1] or b[2] <= a[1]:
                    continue
                assert ((i, j) in heirs and b[1] + 1 == a[2]) or ((j, i) in heirs and a[1] + 1 == b[2])
                taken_over += 1
        live = [
            sum(p[0] for p in pieces if p[3] < 0 and p[1] <= step < p[2]) for step in range(-1, steps + 1)
        ]
        assert scratch == max(live)
        large = [  # each by itself, as eager would have it
            sum(v[0] for v in values if not v[3] and v[0] > 16384 and v[1] <= step < v[2])
            for step in range(-1, steps + 1)
        ]
        small = sum((v[0] + 511) // 512 * 512 + 512 for v in values if v[0] <= 16384)
        assert scratch <= max(large) + small
    assert taken_over


def test_a_value_takes_over_what_ends() -> None:
    """Elementwise results lie where an operand did, in programs and apart; not where another operand crosses it."""
    n = 1 << 12
    x = torch.randn(64, 64).maca()

    def scratch(*functions: Any) -> int:
        def run(given: list[Any]) -> list[Any]:
            for function in functions:
                given = [function(*given)]
            return [given[0].cumsum(0)]

        tape = tapes.record(run, [x])
        (found,) = tape([x])
        (expected,) = run([x])
        assert torch.equal(found.cpu(), expected.cpu())
        return tape.scratch_bytes // (4 * n)

    assert scratch(lambda t: t.cumsum(0)) == 1
    assert scratch(lambda t: t.cumsum(0), torch.exp) == 1
    assert scratch(lambda t: t.cumsum(0), lambda t: (t + 1) * 2) == 1
    assert scratch(lambda t: t.cumsum(0), lambda t: t + t.t()) == 2
    assert scratch(lambda t: t.cumsum(0), lambda t: t.softmax(1)) == 2


def test_what_is_read_again_is_not_overwritten() -> None:
    """Within a program, too: a later part reads the operand whose memory the result would take."""
    x = torch.randn(200, 100).maca()

    def run(given: list[Any]) -> list[Any]:
        y = given[0].cumsum(0)
        first = y * 2
        second = (first + 1) * y
        return [first.cumsum(1), second.cumsum(1), second]

    tape = tapes.record(run, [x])
    for a, b in zip(tape([x]), run([x])):
        assert torch.equal(a.cpu(), b.cpu())


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(c, 32, 3, padding=1) for c in (3, 32, 32, 32))
        self.norms = nn.ModuleList(nn.BatchNorm2d(32) for _ in range(4))
        self.end = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for convolution, norm in zip(self.convolutions, self.norms):
            y = norm(convolution(x))
            x = F.relu(y + x if y.shape == x.shape else y)
        found: torch.Tensor = self.end(x.mean((2, 3)))
        return found


class Perceptron(nn.Sequential):
    def __init__(self) -> None:
        sizes = [300, 500, 700, 200, 10]
        layers = [
            nn.Sequential(nn.Linear(a, b), nn.GELU(), nn.LayerNorm(b)) for a, b in zip(sizes, sizes[1:])
        ]
        super().__init__(*layers)


@pytest.mark.parametrize("make, shape", [(Network, (8, 3, 32, 32)), (Perceptron, (256, 300))])
def test_training_needs_no_more_memory_than_eager(make: Any, shape: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = make().to("maca")
    x, y = torch.randn(shape).maca(), torch.randint(10, shape[:1]).maca()
    device = torch.get_device_module("maca")

    def peak(called: Any) -> int:
        def step() -> None:
            model.zero_grad()
            F.cross_entropy(called(x), y).backward()

        for _ in range(3):
            step()
        device.reset_peak_memory_stats()
        before = device.memory_allocated()
        step()
        return int(device.max_memory_allocated()) - before

    eager = peak(model)
    compiled = peak(torch.compile(model, backend=maca, fullgraph=True))
    assert compiled <= eager * 1.01 + 65536  # small values share a piece


def test_failures_give_all_memory_back() -> None:
    x = torch.ones(1 << 20, device="maca")
    tape = tapes.record(lambda given: [given[0].cumsum(0).cumsum(0).exp().cumsum(0)], [x])
    torch.maca.empty_cache()
    before = torch.maca.memory_allocated()
    share = (torch.maca.memory_reserved() + (3 << 20)) / torch.maca.mem_get_info()[1]
    torch.maca.set_per_process_memory_fraction(share)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            tape([x])
    finally:
        torch.maca.set_per_process_memory_fraction(1.0)
    assert torch.maca.memory_allocated() == before
    assert tape([x])[0].shape == x.shape
