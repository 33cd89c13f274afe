"""What PyTorch warns of on the CPU is warned of on maca, at the user's line."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import macatensor

Call = Callable[[str], Any]


def _mask(device: str) -> torch.Tensor:
    return torch.tensor([1, 0, 1], dtype=torch.uint8, device=device)


CALLS: dict[str, tuple[str, Call]] = {
    "index": ("indexing with dtype torch.uint8", lambda d: torch.ones(3, device=d)[_mask(d)]),
    "index_put": (
        "indexing with dtype torch.uint8",
        lambda d: torch.ones(3, device=d).index_put_((_mask(d),), torch.zeros(2, device=d)),
    ),
    "where": ("where received a uint8", lambda d: torch.where(_mask(d), 1.0, 0.0)),
    "std": ("std(): degrees of freedom is <= 0", lambda d: torch.ones(1, device=d).std()),
    "var_mean": (
        "var_mean(): degrees of freedom is <= 0",
        lambda d: torch.var_mean(torch.ones(2, 1, device=d), 1),
    ),
    "correction": ("var(): degrees of freedom is <= 0", lambda d: torch.ones(3, device=d).var(correction=5)),
    "searchsorted": (
        "boundary tensor is non-contiguous",
        lambda d: torch.searchsorted(torch.arange(6.0, device=d)[::2], torch.ones(4, device=d)),
    ),
    "random_": (
        "to - 1 is out of bounds",
        lambda d: torch.empty(2, device=d, dtype=torch.half).random_(0, 3111),
    ),
}
QUIET: list[Call] = [
    lambda d: torch.where(_mask(d) > 0, 1.0, 0.0),
    lambda d: torch.ones(2, device=d).std(),
    lambda d: torch.ones(1, device=d).var(correction=0),
    lambda d: torch.searchsorted(torch.arange(6.0, device=d), torch.ones(4, device=d)),
    lambda d: torch.empty(2, device=d, dtype=torch.half).random_(0, 2000),
]


def _heard(call: Call, device: str) -> list[Any]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        call(device)
    return heard


@pytest.mark.parametrize("name", CALLS)
def test_warnings_of_the_cpu_are_heard(name: str) -> None:
    text, call = CALLS[name]
    for _ in range(2):  # of a call that is known, too
        (warning,) = [w for w in _heard(call, "maca") if text in str(w.message)]
        assert warning.category is UserWarning and warning.filename == __file__
    for quiet in QUIET:
        assert not _heard(quiet, "maca")


def test_a_fallback_names_the_line_of_the_user() -> None:
    from macatensor.dispatch import host_fallback

    host_fallback._warned.discard("aten.linalg_cholesky_ex.default")
    with macatensor.fallback("warn"):
        heard = _heard(
            lambda d: torch.linalg.cholesky_ex(torch.ones(0, 0, device=d, dtype=torch.half)), "maca"
        )
    assert [w.filename for w in heard if "runs on the host" in str(w.message)] == [__file__]


def test_half_complex_numbers_are_warned_of() -> None:
    code = "import macatensor, torch\ntorch.ones(2, device='maca').to(torch.complex32)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "<string>:2: UserWarning: ComplexHalf support is experimental" in done.stderr
