"""Calls of views."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from macatensor.parity.draw import Call, Draw, calls


def _inputs(draw: Draw) -> Iterator[torch.Tensor]:
    yield draw.tensor(2, 3, 4, 5, written=True)
    yield draw.tensor(4, 6, written=True)
    if draw.plain:
        yield draw.tensor(7)
        yield draw.tensor(0, 3)
        yield draw.tensor()


@calls("alias", "detach", "lift", "lift_fresh", "squeeze", "_neg_view")
def _whole(draw: Draw) -> Iterator[Call]:
    if draw.row.operator.startswith("_neg_view") and draw.dtype is torch.bool:
        return  # no dtype of PyTorch's neg
    for x in _inputs(draw):
        yield Call((x,))
    if draw.row.operator == "squeeze":
        yield Call((draw.tensor(1, 3, 1, 2),))


@calls("t")
def _t(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(4, 6, written=True),))
    if draw.plain:
        yield Call((draw.tensor(3),))
        yield Call((draw.tensor(),))


@calls("_conj")
def _conj(draw: Draw) -> Iterator[Call]:
    if draw.dtype.is_complex:
        for x in _inputs(draw):
            yield Call((x,))


@calls("as_strided", "_reshape_alias")
def _as_strided(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(4, 6, written=True)
    yield Call((x, [2, 3], [6, 1]))
    if draw.row.operator == "as_strided":
        yield Call((x, [3, 4], [2, 1], 5))
        yield Call((x, [2, 2], [0, 1]))
        yield Call((x, [], [], 7))
    yield Call((x, [0, 3], [3, 1]))


@calls("diagonal")
def _diagonal(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(4, 6, written=True),))
    x = draw.tensor(2, 3, 4, 5, written=True)
    for offset in (-1, 0, 2):
        yield Call((x, offset, 1, 3))
        yield Call((x, offset, -1, 0))


@calls("expand")
def _expand(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(4, 1, written=True), [2, 4, 3]))
    yield Call((draw.tensor(1, 3, 1, 1, written=True), [2, -1, 4, 5]))
    if draw.plain:
        yield Call((draw.tensor(), [2, 3]))


@calls("permute")
def _permute(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(2, 3, 4, 5, written=True)
    for order in ([0, 2, 3, 1], [3, 2, 1, 0], [-1, 0, 1, 2]):
        yield Call((x, order))


@calls("select.int")
def _select(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(2, 3, 4, 5, written=True)
    for dim, index in ((0, 1), (1, -1), (-1, 0)):
        yield Call((x, dim, index))


@calls("slice.Tensor")
def _slice(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(4, 6, 2, 3, written=True)
    for args in ((), (0, 1, 3), (1, None, None, 2), (1, -4, -1, 3), (1, 5, 2), (0, 1, 100), (2, -100, 1)):
        yield Call((x, *args))


@calls("narrow")
def _narrow(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(4, 6, 2, 3)
    for args in ((0, 1, 2), (1, -3, 2), (1, 0, 0)):
        yield Call((x, *args))


@calls("split.Tensor")
def _split(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(4, 6, 2, 3, written=True)
    for size, dim in ((2, 0), (4, 1), (10, -1)):
        yield Call((x, size, dim))


@calls("split_with_sizes")
def _split_with_sizes(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(4, 6, 2, 3, written=True)
    for sizes, dim in (([1, 3], 0), ([2, 0, 4], 1)):
        yield Call((x, sizes, dim))


@calls("squeeze.dim")
def _squeeze_dim(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(1, 3, 1, 2, written=True)
    for dim in (0, 1, -2):
        yield Call((x, dim))


@calls("squeeze.dims")
def _squeeze_dims(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(1, 3, 1, 2, written=True)
    for dims in ([0], [0, 2], [1, -2], []):
        yield Call((x, dims))


@calls("transpose.int")
def _transpose(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(2, 3, 4, 5, written=True)
    for dims in ((0, 1), (-1, 1), (2, 2)):
        yield Call((x, *dims))


@calls("unbind.int")
def _unbind(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(2, 3, 4, 5, written=True)
    for dim in (0, 2, -1):
        yield Call((x, dim))


@calls("unfold")
def _unfold(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(4, 9, written=True)
    for args in ((1, 3, 2), (1, 3, 1), (0, 4, 1), (-1, 9, 5)):
        yield Call((x, *args))


@calls("unsqueeze")
def _unsqueeze(draw: Draw) -> Iterator[Call]:
    for x in _inputs(draw):
        yield Call((x, 0))
        yield Call((x, -1))


@calls("view", "_unsafe_view")
def _view(draw: Draw) -> Iterator[Call]:
    if draw.layout == "transposed":
        yield Call((draw.tensor(4, 6, written=True), [2, 2, 6]))
    elif draw.layout == "sliced":
        yield Call((draw.tensor(4, 6, written=True), [2, 2, 3, 2]))
    elif draw.layout == "channels_last":
        yield Call((draw.tensor(2, 3, 4, 5, written=True), [2, 3, 20]))
    else:
        x = draw.tensor(2, 3, 4, 5, written=True)
        for size in ([6, 20], [-1], [2, 3, 2, 2, 5], [24, -1]):
            yield Call((x, size))
        yield Call((draw.tensor(0, 3), [3, 0]))
        yield Call((draw.tensor(), [1, 1]))


@calls("view.dtype")
def _view_dtype(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(4, 6, written=True)
    same = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
    yield Call((x, same[draw.dtype.itemsize]))
    if draw.plain:
        yield Call((x, torch.uint8))


@calls("view_as_complex")
def _view_as_complex(draw: Draw) -> Iterator[Call]:
    if draw.dtype in (torch.float32, torch.float64) and draw.plain:
        yield Call((draw.tensor(4, 6, 2),))
        yield Call((draw.tensor(3, 4, 2).transpose(0, 1),))


@calls("view_as_real")
def _view_as_real(draw: Draw) -> Iterator[Call]:
    if draw.dtype.is_complex:
        for x in _inputs(draw):
            yield Call((x,))
