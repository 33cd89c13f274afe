"""Fused programs that work on rows: sums, maxima, softmax and layer norm between elementwise operators, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from macatensor.compiling import tapes

PROGRAMS: dict[str, tuple[int, Callable[..., Any]]] = {  # with the launches that are left
    "rms norm": (1, lambda x, w, b: F.rms_norm(x + x * w, x.shape[-1:], w) + 1),
    "rms norm by hand": (1, lambda x, w, b: w * (x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt())),
    "softmax": (1, lambda x, w, b: (x * 2 + w).softmax(-1) * 3),
    "softmax by hand": (1, lambda x, w, b: (lambda e: e / e.sum(-1, True))((x - x.amax(-1, True)).exp())),
    "log softmax": (1, lambda x, w, b: F.log_softmax(x + w, -1).exp()),
    "layer norm": (1, lambda x, w, b: F.layer_norm(x + x * w, x.shape[-1:], w, b) + 1),
    "mean": (1, lambda x, w, b: (x * x).mean(-1, keepdim=True).sqrt() * x + w),
    "sum at the end": (1, lambda x, w, b: ((x - w) * (x - w)).sum(-1)),
    "two sums": (1, lambda x, w, b: ((x + 1).sum(-1, True) - (x * 2).mean(-1, True)) * x),
    "branches": (1, lambda x, w, b: x.relu() - (x + 1).amax(-1, keepdim=True) * 2),
    "rows alone": (1, lambda x, w, b: ((x * 2).sum(-1) + 1).sqrt().neg()),
    "sum with softmax": (2, lambda x, w, b: (x + w).softmax(-1)),  # two launches are as quick
    "columns": (3, lambda x, w, b: (x * 2).sum(0) * w + b),
}
SHAPES = [(6, 8, 64), (3, 1024), (50, 1000), (7, 3), (4, 5000), (300, 33), (2, 16384)]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = a.cpu().contiguous(), b.cpu().contiguous()
    return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(
        a.view(-1).view(torch.uint8), b.view(-1).view(torch.uint8)
    )


def operands(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """Rows that are ordinary, have a NaN, an infinity, and nothing but zeros."""
    torch.manual_seed(0)
    x, w, b = torch.randn(shape), torch.randn(shape[-1:]), torch.randn(shape[-1:])
    rows = x.view(-1, shape[-1])
    rows[0] = -0.0
    rows[1, 1], rows[2 % len(rows), 0] = float("nan"), float("inf")
    return [t.to(dtype).maca() for t in (x, w, b)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_give_the_same_bits(name: str) -> None:
    launches, function = PROGRAMS[name]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for shape in SHAPES:
            given = operands(shape, dtype)
            tape = tapes.record(lambda g: [function(*g)], given)
            assert tape.launches == launches
            assert same_bits(tape(list(given))[0], function(*given)), (dtype, shape)


def test_every_result_may_be_kept() -> None:
    def program(given: list[Any]) -> list[Any]:
        x, w, _ = given
        squares = x * x
        mean = squares.mean(-1, keepdim=True)
        scale = (mean + 1e-5).rsqrt()
        return [squares, mean, scale, x * scale * w]

    given = operands((40, 300), torch.float32)
    tape = tapes.record(program, given)
    assert tape.launches == 1
    for have, want in zip(tape(list(given)), program(given)):
        assert have.stride() == want.stride()
        assert same_bits(have, want)


def test_rows_follow_the_memory() -> None:
    """NHWC images: sums over the channels are rows, over the columns they are not."""
    x = torch.randn(2, 32, 5, 6).maca().to(memory_format=torch.channels_last)
    for dim, launches in ((1, 1), (3, 4)):

        def program(given: list[Any], dim: int = dim) -> list[Any]:
            return [((given[0] * 2 + 1).sum(dim, keepdim=True) + 1) * given[0]]

        tape = tapes.record(program, [x])
        assert tape.launches == launches
        assert same_bits(tape([x])[0], program([x])[0])


def test_long_rows_stay_apart() -> None:
    x = torch.randn(2, 20000).maca()
    tape = tapes.record(lambda g: [(g[0] * 2 + 1).sum(-1, keepdim=True) * g[0]], [x])
    assert tape.launches == 3
    assert same_bits(tape([x])[0], (x * 2 + 1).sum(-1, keepdim=True) * x)


def test_writes_in_place_are_seen() -> None:
    def program(given: list[Any]) -> list[Any]:
        (x,) = given
        x.mul_(2).add_(1)
        total = x.sum(-1, keepdim=True)
        x.sub_(total)
        return [total]

    a = torch.randn(30, 200).maca()
    b = a.clone()
    have, want = tapes.record(program, [a])([a]), program([b])
    assert same_bits(have[0], want[0])
    assert same_bits(a, b)


def test_numbers_of_rows_last_for_a_run() -> None:
    """Of rows that take turns in a run, the last reads its mean when the first has long written its results."""

    def program(given: list[Any]) -> list[Any]:
        x, g, s = given
        ahead = (s * x + s * g) + s
        return [ahead + (s * (x - x.mean(-1, keepdim=True)) + s.expand(x.shape) / 9)]

    given = [torch.randn(4, 9).maca(), torch.randn(4, 9).maca(), torch.randn(4, 1).maca()]
    tape = tapes.record(program, given)
    assert tape.launches == 1
    assert same_bits(tape(list(given))[0], program(given)[0])
