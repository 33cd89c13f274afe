"""Random rows: the law of the numbers, the seed, and that strides and threads do not show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from macatensor.parity.transport import fetch, place
from macatensor.runtime import random
from op_table import Row

_COUNT = 20000


@dataclass
class Law:
    """A call on ``[_COUNT]`` elements and what its numbers should be."""

    args: Callable[[torch.dtype], tuple[Any, ...]]
    mean: float
    deviation: float
    low: float = -math.inf
    high: float = math.inf
    median: bool = False  # a law without moments: compare the median, deviation is the quartile's
    result: int = 0


def _like(value: float = 0.0) -> Callable[[torch.dtype], torch.Tensor]:
    return lambda dtype: torch.full((_COUNT,), value).to(dtype)


def _of(*rest: Any, value: float = 0.0) -> Callable[[torch.dtype], tuple[Any, ...]]:
    return lambda dtype: (_like(value)(dtype), *rest)


_GAMMA = 2.5
LAWS: dict[str, Law] = {
    "uniform": Law(_of(-1.0, 3.0), 1, 4 / math.sqrt(12), -1, 3),
    "normal_": Law(_of(1.0, 2.0), 1, 2),
    "normal_functional": Law(_of(1.0, 2.0), 1, 2),
    "normal.Tensor_float": Law(_of(2.0, value=1.0), 1, 2),
    "normal.float_Tensor": Law(lambda d: (1.0, _like(2.0)(d)), 1, 2),
    "normal.Tensor_Tensor": Law(lambda d: (_like(1.0)(d), _like(2.0)(d)), 1, 2),
    "log_normal": Law(_of(0.0, 0.5), math.exp(0.125), math.exp(0.125) * math.sqrt(math.exp(0.25) - 1), 0),
    "cauchy": Law(_of(1.0, 2.0), 1, 2, median=True),
    "exponential": Law(_of(2.0), 0.5, 0.5, 0),
    "geometric": Law(_of(0.25), 4, math.sqrt(0.75) / 0.25, 1),
    "random.to": Law(_of(100), 49.5, math.sqrt((100**2 - 1) / 12), 0, 99),
    "random.from": Law(_of(10, 100), 54.5, math.sqrt((90**2 - 1) / 12), 10, 99),
    "bernoulli.p": Law(_of(0.25), 0.25, math.sqrt(0.1875), 0, 1),
    "bernoulli.Tensor": Law(
        lambda d: (_like()(d), torch.full((_COUNT,), 0.25)), 0.25, math.sqrt(0.1875), 0, 1
    ),
    "bernoulli": Law(_of(value=0.25), 0.25, math.sqrt(0.1875), 0, 1),
    "poisson": Law(_of(value=4.0), 4, 2, 0),
    "binomial": Law(lambda d: (_like(8.0)(d), _like(0.25)(d)), 2, math.sqrt(1.5), 0, 8),
    "_standard_gamma": Law(_of(value=_GAMMA), _GAMMA, math.sqrt(_GAMMA), 0),
    "_sample_dirichlet": Law(
        lambda d: (torch.full((_COUNT, 2), _GAMMA).to(d),), 0.5, math.sqrt(0.25 / (2 * _GAMMA + 1)), 0, 1
    ),
    "native_dropout": Law(_of(0.25, True, value=1.0), 1, math.sqrt(0.25 / 0.75), 0, 1.34),
    "multinomial": Law(
        lambda d: (torch.tensor([1.0, 2.0, 0.0, 1.0]).to(d), _COUNT, True), 1.25, 1.0897, 0, 3
    ),
    "rrelu_with_noise": Law(
        lambda d: (_like(-1.0)(d), _like()(d), 0.25, 0.75, True), -0.5, 0.5 / math.sqrt(12), -0.76, -0.24
    ),
    "randperm": Law(lambda d: (_COUNT,), (_COUNT - 1) / 2, _COUNT / math.sqrt(12), 0, _COUNT - 1),
}


def _draw(func: Any, row: Row, dtype: torch.dtype, seed: int, args: tuple[Any, ...]) -> torch.Tensor:
    random.manual_seed(seed)
    if row.operator == "randperm":
        result = func(*args, dtype=dtype, device=torch.device("maca"))
    else:
        result = func(*[place(a) if isinstance(a, torch.Tensor) else a for a in args])
    if isinstance(result, (list, tuple)):
        result = result[0]
    return fetch(result)


def check(func: Any, row: Row, dtype: torch.dtype, seed: int) -> Iterator[str]:
    """What is wrong with a random row, line by line."""
    if row.operator == "random" and not row.name.partition(".")[2]:
        law = Law(_of(), 0, 0)  # the whole range of the dtype: only seeds are compared
    elif row.name in LAWS or row.operator in LAWS:
        law = LAWS.get(row.name) or LAWS[row.operator]
    else:
        yield f"macatensor/parity/laws.py has no law for {row.name}"
        return
    if row.operator == "random" and dtype is torch.bool:
        limits = {"random": (), "random.to": (2,), "random.from": (0, 2)}[row.name]
        law = Law(_of(*limits), 0.5, 0.5, 0, 1)
    args = law.args(dtype)
    first = _draw(func, row, dtype, seed, args)
    if not torch.equal(first, _draw(func, row, dtype, seed, args)):
        yield f"seed {seed}: the same seed gave other numbers"
    if torch.equal(first, _draw(func, row, dtype, seed + 1, args)):
        yield f"seeds {seed} and {seed + 1} gave the same numbers"
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        if not torch.equal(first, _draw(func, row, dtype, seed, args)):
            yield f"seed {seed}: {torch.get_num_threads()} and {threads} threads gave other numbers"
    finally:
        torch.set_num_threads(threads)
    wide = first.to(torch.complex128) if first.is_complex() else first.double()
    yield from _statistics(wide, law, row, dtype)


def _statistics(values: torch.Tensor, law: Law, row: Row, dtype: torch.dtype) -> Iterator[str]:
    if law.deviation == 0:
        return
    if values.is_complex():  # each part has half the variance
        values, count = values.real, values.numel()
        expected_deviation = law.deviation / math.sqrt(2)
    else:
        count, expected_deviation = values.numel(), law.deviation
    if law.median:
        middle = float(values.median())
        if abs(middle - law.mean) > 6 * law.deviation * math.pi / 2 / math.sqrt(count):
            yield f"median {middle:.4g}, the law's is {law.mean:.4g}"
        return
    if not bool(values.isfinite().all()):
        yield "a number is not finite"
        return
    mean, deviation = float(values.mean()), float(values.std())
    # six standard errors, and the rounding of a half
    slack = 6 * expected_deviation / math.sqrt(count) + (
        0.01 * expected_deviation if dtype.itemsize <= 2 else 0
    )
    if abs(mean - law.mean) > slack:
        yield f"mean {mean:.5g}, the law's is {law.mean:.5g} (six standard errors: {slack:.2g})"
    if abs(deviation - expected_deviation) > 0.08 * expected_deviation:
        yield f"standard deviation {deviation:.5g}, the law's is {expected_deviation:.5g}"
    if float(values.min()) < law.low or float(values.max()) > law.high:
        yield f"numbers in [{float(values.min()):.5g}, {float(values.max()):.5g}], the law's in [{law.low}, {law.high}]"
