"""The numbers that random kernels draw are those of the mapping, computed once more in NumPy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from macatensor import accuracy, maca
from macatensor.parity.random_numbers import philox
from macatensor.runtime import random

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DRAWS: dict[str, Callable[[torch.Tensor], object]] = {
    "uniform": lambda x: x.uniform_(-3, 2.5),
    "uniform_to_0": lambda x: x.uniform_(-42, 0),
    "normal": lambda x: x.normal_(1, 3),
    "log_normal": lambda x: x.log_normal_(0.5, 0.25),
    "exponential": lambda x: x.exponential_(2.0),
    "bernoulli": lambda x: x.bernoulli_(0.3),
    "bernoulli_of_tensor": lambda x: x.bernoulli_(torch.linspace(0, 1, x.numel()).maca().view(x.shape)),
    "random": lambda x: x.random_(),
    "random_below": lambda x: x.random_(100),
    "random_between": lambda x: x.random_(-5, 17),
    "normal_of_mean": lambda x: torch.normal(x.fill_(1.0), 2.0),
    "normal_of_deviation": lambda x: torch.normal(0.5, x.fill_(2.0)),
    "dropout": lambda x: F.dropout(x.fill_(1.0), 0.3),
}


def test_philox_gives_the_published_numbers() -> None:
    # known answers of Salmon et al., Random123's kat_vectors: counter and key of zeros, and of ones
    assert [hex(w) for w in philox((0, 0), 4).tolist()] == [
        "0x6627e8d5",
        "0xe169c58d",
        "0xbc57ac4c",
        "0x9b00dbd8",
    ]


@pytest.mark.parametrize("size", [(), (0,), (1,), (37, 5), (1001,)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("draw", DRAWS)
def test_floats_are_the_mappings(draw: str, dtype: torch.dtype, size: tuple[int, ...]) -> None:
    random.manual_seed(2**63 + 12345)
    report = accuracy.parity(lambda: DRAWS[draw](torch.zeros(size, device="maca", dtype=dtype)))
    judged = [call for call in report.calls if not call.verdict.startswith("n/a: uninitialized")]
    assert judged and all(call.verdict == "pass" for call in judged), report


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_are_the_mappings(dtype: torch.dtype) -> None:
    def program() -> None:
        x = torch.zeros(99, device="maca", dtype=dtype)
        x.random_(), x.bernoulli_(0.25)
        if dtype is not torch.bool:
            x.random_(3, 100), x[::2].random_(7)
        if dtype is torch.int64:
            x.random_(-(2**63), None), x.random_(-(2**62), 2**62)

    report = accuracy.parity(program)
    assert all(call.verdict == "pass" for call in report.calls), report


def test_complex_numbers_and_strides() -> None:
    def program() -> None:
        for dtype in (torch.complex64, torch.complex128):
            z = torch.zeros(6, 7, device="maca", dtype=dtype)
            z.normal_(), z.uniform_(), z.t().normal_(), z[::2].uniform_()

    report = accuracy.parity(program)
    assert all(call.verdict == "pass" for call in report.calls), report


def test_a_generator_of_the_host_is_not_judged() -> None:
    x = maca(torch.zeros(5))
    report = accuracy.parity(lambda: x.uniform_(generator=torch.Generator().manual_seed(1)))
    assert report.calls[0].verdict == "n/a: random"


def test_the_offset_moves_on_and_comes_back() -> None:
    random.manual_seed(3)
    before = random.state()
    with random.drawn_at((9, 100)):
        assert random.state() == (9, 100)
        torch.rand(8, device="maca")
        assert random.state() == (9, 102)
    assert random.state() == before
