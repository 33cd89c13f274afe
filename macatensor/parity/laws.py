"""Random rows: the law of the numbers, the seed, and that strides and threads do not show."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch._ops import OpOverload

from macatensor.parity.transport import fetch, place
from macatensor.runtime import random
from macatensor.runtime.boxed import Arguments, Value
from op_table import Row
from op_table.row import DRAWN, Filled, Law


def _argument(value: object, dtype: torch.dtype) -> Value:
    """An argument that a law names, with tensors in place of what stands for them."""
    if isinstance(value, Filled):
        size = (DRAWN, value.columns) if value.columns else (DRAWN,)
        return torch.full(size, value.value).to(getattr(torch, value.dtype) if value.dtype else dtype)
    return torch.tensor(value).to(dtype) if isinstance(value, tuple) else value


def _draw(func: OpOverload, row: Row, dtype: torch.dtype, seed: int, args: Arguments) -> torch.Tensor:
    random.manual_seed(seed)
    result = func(*[place(a) if isinstance(a, torch.Tensor) else a for a in args])
    if isinstance(result, (list, tuple)):
        result = result[0]
    return fetch(result)


def check(func: OpOverload, row: Row, dtype: torch.dtype, seed: int) -> Iterator[str]:
    """What is wrong with a random row, line by line."""
    law = row.law_of_bool if dtype is torch.bool and row.law_of_bool is not None else row.law
    if law is None:
        yield f"the row of {row.name} states no law"
        return
    args = tuple(_argument(value, dtype) for value in law.args)
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
