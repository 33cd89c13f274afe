"""What the CPU refuses, or computes in its own way, is so on maca, at the first call of a signature and at the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Call = Callable[[str], Any]
F = torch.nn.functional


def _floats(device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(6, dtype=dtype, device=device)


def _truths(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    x = _floats(device)
    return x > 2, x > 1


CALLS: dict[str, Call] = {
    "softshrink, half": lambda d: F.softshrink(_floats(d, torch.half), 1e6),
    "softshrink, NaN": lambda d: F.softshrink(_floats(d), float("nan")),
    "softshrink, negative": lambda d: F.softshrink(_floats(d), -1.0),
    "softshrink.out": lambda d: torch.ops.aten.softshrink.out(_floats(d), -1.0, out=_floats(d)),
    "histc, half": lambda d: torch.histc(_floats(d, torch.half), 4, 0, 1e6),
    "histc, float32": lambda d: torch.histc(_floats(d), 4, -1e39, 1e39),
    "histc, no bins": lambda d: torch.histc(_floats(d), 0),
    "histc, integers": lambda d: torch.histc(_floats(d, torch.int32), 4),
    "histc, reversed": lambda d: torch.histc(_floats(d), 4, 3, 1),
    "histc": lambda d: torch.histc(_floats(d), 4, 0, 6),
    "isin, bool": lambda d: torch.isin(*_truths(d)),
    "isin, bool and a number": lambda d: torch.isin(_truths(d)[0], True),
    "isin, complex": lambda d: torch.isin(_floats(d) + 0j, _floats(d) + 0j),
    "isin, inverted": lambda d: torch.isin(_floats(d), _floats(d)[::2], invert=True),
    "isin, a number": lambda d: torch.isin(2.0, _floats(d)),
    "pow, bool": lambda d: torch.pow(_truths(d)[0], -1),
    "pow, bool squared": lambda d: torch.pow(_truths(d)[0], 2),
    "pow_": lambda d: _floats(d, torch.int32).pow_(-2),
    "add, truths": lambda d: torch.add(*_truths(d), alpha=-1),
    "add, truths, 256": lambda d: torch.add(*_truths(d), alpha=256),
    "add, truths, none": lambda d: torch.add(*_truths(d), alpha=0),
    "add_, truths": lambda d: _truths(d)[0].add_(_truths(d)[1], alpha=-1),
    "add, truths and integers": lambda d: torch.add(_truths(d)[0], _floats(d, torch.int32), alpha=-1),
    "add, truths into integers": lambda d: torch.add(*_truths(d), alpha=-1, out=_floats(d, torch.int64)),
    "add, fraction": lambda d: torch.add(*_truths(d), alpha=1.5),
    "add, into integers": lambda d: torch.add(_floats(d), 1, out=_floats(d, torch.int32)),
}
_FITS: list[Call] = [
    lambda d: F.softshrink(_floats(d), 1.0),
    lambda d: F.softshrink(_floats(d, torch.half), 1.0),
    lambda d: torch.pow(_truths(d)[0], 3),
    lambda d: torch.add(*_truths(d), alpha=1),
]


def _outcome(call: Call, device: str) -> Any:
    try:
        return call(device).cpu()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("name", CALLS)
def test_as_the_cpu(name: str) -> None:
    for fits in _FITS:  # so that their plans are there
        assert torch.equal(_outcome(fits, "maca"), _outcome(fits, "cpu"))
    for _ in range(2):
        ours, theirs = (_outcome(CALLS[name], device) for device in ("maca", "cpu"))
        if isinstance(theirs, torch.Tensor):
            assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype
        else:
            assert ours is theirs
