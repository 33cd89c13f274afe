"""Calls of operators that count or group: uniques, histograms, segments, hashes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from macatensor.parity.draw import Call, Draw, calls
from macatensor.runtime.boxed import Keywords


def _special(draw: Draw) -> torch.Tensor:
    """Zeros of both signs and NaN among others."""
    return torch.tensor([1, -0.0, float("nan"), 0, 1, float("nan"), float("inf"), -1], dtype=draw.dtype)


@calls("_unique", "_unique2")
def _unique(draw: Draw) -> Iterator[Call]:
    count = draw.row.operator == "_unique2"
    for inverse in (True, False):
        yield Call((draw.tensor(5, 7, low=-3, high=3), True, inverse, *([not inverse] if count else [])))
    if not draw.plain:
        return
    yield Call((draw.index(700, below=90).to(draw.dtype), True, True, *([True] if count else [])))
    yield Call((draw.tensor(0, 3), True, True))
    yield Call((draw.tensor(), False, True))
    if draw.dtype.is_floating_point:
        yield Call((_special(draw), True, True, *([True] if count else [])))


@calls("unique_dim")
def _unique_dim(draw: Draw) -> Iterator[Call]:
    for dim in (0, 1, -1):
        yield Call((draw.index(4, 5, 2, below=2).to(draw.dtype), dim, True, True, True))
    if draw.plain:
        yield Call((draw.tensor(0, 3), 0, True, True, True))


@calls("unique_consecutive")
def _unique_consecutive(draw: Draw) -> Iterator[Call]:
    yield Call((draw.index(12, below=3).to(draw.dtype), True, True))
    yield Call((draw.index(4, 6, below=2).to(draw.dtype), False, True))
    yield Call((draw.index(6, 2, below=2).to(draw.dtype), True, True, 0))
    if draw.plain and draw.dtype.is_floating_point:
        yield Call((_special(draw), True, True))


@calls("unique_dim_consecutive")
def _unique_dim_consecutive(draw: Draw) -> Iterator[Call]:
    for dim in (0, 1):
        yield Call((draw.index(9, 2, below=2).to(draw.dtype), dim, True, True))


@calls("bincount")
def _bincount(draw: Draw) -> Iterator[Call]:
    x = draw.index(40, below=9).to(draw.dtype)
    yield Call((x,))
    yield Call((x, None, 20))
    for kind in (torch.float32, torch.float64, torch.int64):
        yield Call((x, draw.tensor(40, dtype=kind, low=-2, high=2)))
    if draw.plain:
        yield Call((x[:0], None, 3))


@calls("histc")
def _histc(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(6, 9, low=-4, high=4)
    for bins, low, high in ((10, 0, 0), (4, -2, 3), (1, 0.5, 1.5), (7, -100, 100)):
        yield Call((x, bins, low, high))
    if draw.plain:
        yield Call((draw.tensor(0), 5, 0, 0))
        yield Call((torch.full((7,), 2, dtype=draw.dtype), 3))
        yield Call((_special(draw), 4, -2, 2))


@calls("histogram.bin_ct")
def _histogram(draw: Draw) -> Iterator[Call]:
    for bins, limits, weighted, density in (
        (10, None, False, False),
        (4, [-2.0, 3.0], True, False),
        (5, [-3.0, 3.0], True, True),
    ):
        options = {"range": limits, "density": density}
        weight = draw.tensor(6, 9, low=0.5, high=2) if weighted else None
        yield Call((draw.tensor(6, 9, low=-4, high=4), bins), {**options, "weight": weight})
    if draw.plain:
        yield Call((draw.tensor(0), 5))


@calls("histogram.bins_tensor")
def _histogram_edges(draw: Draw) -> Iterator[Call]:
    edges = draw.lay(draw.values((7,), draw.dtype, -3, 3).sort().values)
    for density in (False, True):
        weight = draw.tensor(6, 9, low=0.5, high=2) if density else None
        yield Call((draw.tensor(6, 9, low=-4, high=4), edges), {"weight": weight, "density": density})


@calls("_histogramdd_bin_edges", "_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors")
def _histogramdd(draw: Draw) -> Iterator[Call]:
    edges = [draw.lay(draw.values((n,), draw.dtype, -3, 3).sort().values) for n in (5, 4)]
    given = draw.row.operator.endswith("tensors")
    for limits, density in itertools.product((None, [-2.0, 2.0, -3.0, 4.0]), (False, True)):
        x = draw.tensor(9, 4, 2, low=-4, high=4)
        weight = draw.tensor(9, 4, low=0.5, high=2) if density else None
        options = {"weight": weight, "density": density}
        if given:
            yield Call((x, edges), options)
        else:
            yield Call((x, [4, 3]), {**options, "range": limits})


@calls("hash_tensor")
def _hash(draw: Draw) -> Iterator[Call]:
    for dim, keepdim in (([], False), ([0], False), ([1], True), ([-1], False)):
        yield Call((draw.tensor(4, 5, 300), dim), {"keepdim": keepdim})
    if draw.plain:
        yield Call((draw.tensor(), []))
        yield Call((draw.tensor(), [0]))


@calls("segment_reduce", "_segment_reduce_backward")
def _segments(draw: Draw) -> Iterator[Call]:
    backward = draw.row.operator.endswith("backward")
    lengths, deep = torch.tensor([2, 0, 3, 1]), torch.tensor([[1, 3], [0, 4]])
    for reduce, initial in itertools.product(("sum", "mean", "max", "min", "prod"), (None, 0.5)):
        for axis, pieces, shape in ((0, lengths, (6, 3)), (1, deep, (2, 4, 2, 2)), (0, lengths, (6,))):
            x = draw.distinct(*shape) if reduce in ("max", "min") else draw.tensor(*shape, low=-2, high=2)
            if reduce == "prod":
                x = draw.tensor(*shape, low=0.5, high=2)
            for by_offset in (False, True):
                where = {"lengths": pieces}
                if by_offset:
                    where = {"offsets": torch.nn.functional.pad(pieces.cumsum(-1), (1, 0))}
                options: Keywords = {**where, "axis": axis, "initial": initial}
                if not backward:
                    yield Call((x, reduce), {**options, "unsafe": by_offset})
                    continue
                y = torch.segment_reduce(x, reduce, **options, unsafe=by_offset)
                yield Call((draw.tensor(*y.shape, low=-2, high=2), y, x, reduce), options)
