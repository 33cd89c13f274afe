"""Arithmetic parts of a fused program run in vector registers: every bit is that of the operators one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from macatensor.compiling import tapes

PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "numbers": lambda a, b: (((a * 1.1 + 0.2) * 1.3 - 0.4) / 1.5 + 0.6).neg(),
    "numbers first": lambda a, b: 2.0 / (1.0 - (3.0 * a + 1.0)),
    "second operand": lambda a, b: a - (b - a * b),
    "alpha": lambda a, b: torch.add(b, torch.sub(a * 2, b, alpha=3), alpha=0.5),
    "minus one": lambda a, b: torch.sub(torch.add(b, a * b, alpha=-1), a, alpha=-1),
    "reversed": lambda a, b: torch.rsub(torch.rsub(a * 2, b), 1.5, alpha=0.25),
    "minus zero": lambda a, b: ((a + -0.0) * -0.0 + -0.0).neg() - b * -0.0,
    "squares": lambda a, b: (a + b) * (a + b) + (a - b).square(),
    "relu": lambda a, b: (torch.relu(a * b + a) - b).relu(),
    "quotients": lambda a, b: a / (b / (a + b)),
    "read later": lambda a, b: ((a + b) * a - b).exp() + (a + b),
}
SIZES = [2, 7, 130, 1000, 1024, 3 * 1024 + 37]


def numbers(size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    values = torch.randn(size, dtype=dtype, generator=torch.Generator().manual_seed(seed)) * 3
    special = [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, torch.finfo(dtype).tiny / 2]
    values[: min(size, 6)] = torch.tensor(special[: min(size, 6)], dtype=dtype)
    return values[torch.randperm(size, generator=torch.Generator().manual_seed(seed + 1))].maca()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PROGRAMS)
def test_registers_give_the_same_bits(name: str, dtype: torch.dtype) -> None:
    function = PROGRAMS[name]
    for size in SIZES:
        a, b = numbers(size, dtype, size), numbers(size, dtype, size + 1)
        tape = tapes.record(lambda given: [function(*given)], [a, b])
        assert tape.launches == 1
        (found,), wanted = tape([a, b]), function(a, b)
        assert torch.equal(found.cpu().view(torch.uint8), wanted.cpu().view(torch.uint8)), size


def test_rows_and_columns_are_broadcast() -> None:
    a, b = numbers(37 * 1024, torch.float32, 1).view(37, 1024), numbers(37, torch.float32, 2).view(37, 1)
    tape = tapes.record(lambda given: [(given[0] * given[1] + given[1]) - given[0]], [a, b])
    (found,) = tape([a, b])
    assert torch.equal(found.cpu().view(torch.int32), ((a * b + b) - a).cpu().view(torch.int32))


def test_written_operands_are_read_before() -> None:
    def program(given: list[Any]) -> list[Any]:
        a, b = given
        first = a * 2 + b
        a.mul_(3).add_(first)
        return [first - a]

    a, b = numbers(2048, torch.float32, 3), numbers(2048, torch.float32, 4)
    other = a.clone()
    (found,) = tapes.record(program, [a, b])([a, b])
    (wanted,) = program([other, b])
    assert torch.equal(found.cpu().view(torch.int32), wanted.cpu().view(torch.int32))
    assert torch.equal(a.cpu().view(torch.int32), other.cpu().view(torch.int32))
