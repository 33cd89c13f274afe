"""Flips, rolls, repeats and paddings of dimensions that are long runs: as on the CPU, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from running import threads_restored


@pytest.fixture(autouse=True, params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    with threads_restored(request.param):
        yield request.param


MOVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flip": lambda t: t.flip(0, 1),
    "flip the last": lambda t: t.flip(-1),
    "roll": lambda t: t.roll((3, -5), (0, 1)),
    "roll by one": lambda t: t.roll((1, -1), (0, 1)),
    "roll far": lambda t: t.roll(1_000_003, 1),
    "roll all": lambda t: t.roll(7),
    "repeat": lambda t: t.repeat(2, 3),
    "repeat in more dimensions": lambda t: t.repeat(2, 1, 2),
    "repeat of one": lambda t: t[:1, :1].repeat(300, 40),
    "repeat nothing": lambda t: t.repeat(0, 2),
    "reflect": lambda t: F.pad(t[None], (5, 7), mode="reflect"),
    "replicate": lambda t: F.pad(t[None], (5, 70), mode="replicate"),
    "reflect two": lambda t: F.pad(t[None], (8, 3, 2, 9), mode="reflect"),
    "nearest": lambda t: F.interpolate(t[None, None], scale_factor=(1.5, 2.3)),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("layout", ["dense", "transposed", "strided", "expanded"])
def test_long_dimensions(move: str, layout: str) -> None:
    host = torch.arange(70 * 3000.0).view(70, 3000)
    ours = host.maca()
    if layout == "transposed":
        host, ours = host.view(3000, 70).t(), ours.view(3000, 70).t()
    elif layout == "strided":
        host, ours = host[3::2, 11::3], ours[3::2, 11::3]
    elif layout == "expanded":
        host, ours = host[:1].expand(50, 3000), ours[:1].expand(50, 3000)
    expected = MOVES[move](host)
    result = MOVES[move](ours)
    assert torch.equal(result.cpu(), expected)
    assert result.stride() == expected.stride()


def test_one_long_dimension_of_every_size_of_element() -> None:
    for dtype in (torch.uint8, torch.bfloat16, torch.int32, torch.float64, torch.complex128):
        host = (torch.arange(40_000) % 251).to(dtype)
        ours = host.maca()
        assert torch.equal(ours.roll(123, 0).cpu(), host.roll(123, 0))
        assert torch.equal(ours.repeat(3).cpu(), host.repeat(3))
        assert torch.equal(ours.flip(0).cpu(), host.flip(0))


def test_too_large_a_transfer_is_refused_unprepared() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.zeros(1).maca().repeat(1 << 45)


@pytest.mark.parametrize("dim", [0, 1, 5, -2])
def test_empty_vectors_join_along_any_dimension(dim: int) -> None:
    empty = torch.empty(0, device="maca")
    assert torch.cat([empty, empty.int()], dim).shape == torch.cat([empty], dim).shape == (0,)
    assert torch.cat([empty, empty], dim, out=empty.clone()).shape == (0,)
