"""Calls that read and write through indices and masks, and embeddings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from macatensor.parity.draw import Call, Draw, calls
from macatensor.runtime.boxed import Arguments, Value


def _small(draw: Draw, *shape: int, written: bool = False) -> torch.Tensor:
    """Values whose sums and products stay in every dtype."""
    return draw.tensor(*shape, low=-2, high=3, written=written)


def _index_lists(draw: Draw) -> Iterator[tuple[torch.Tensor, list[torch.Tensor | None], tuple[int, ...]]]:
    """Operand, indices, shape of what they select."""
    x = _small(draw, 4, 5, 6, written=True)
    yield x, [draw.index(3, below=4)], (3, 5, 6)
    yield x, [None, draw.index(2, 3, below=5)], (4, 2, 3, 6)
    yield x, [draw.index(3, below=4), None, draw.index(3, below=6)], (3, 5)
    yield x, [draw.index(2, 1, below=4), draw.index(3, below=5) - 5], (2, 3, 6)
    yield x, [draw.index(below=4)], (5, 6)
    y = _small(draw, 2, 3, 4, 5, written=True)
    yield y, [None, None, draw.index(4, below=4), draw.index(4, below=5)], (2, 3, 4)
    if draw.plain:
        mask = draw.mask(4, 5)
        yield x, [mask], (int(mask.sum()), 6)
        yield x, [draw.index(0, below=4)], (0, 5, 6)
        yield _small(draw, 9, written=True), [draw.index(30, below=9)], (30,)


@calls("index", "_unsafe_index")
def _index(draw: Draw) -> Iterator[Call]:
    for x, indices, _ in _index_lists(draw):
        if draw.row.operator == "_unsafe_index" and any(
            i is not None and i.dtype is torch.bool for i in indices
        ):
            continue
        yield Call((x, indices))


def _without_repeats(indices: list[torch.Tensor | None]) -> bool:
    positions = [i for i in indices if i is not None]
    return len(positions) == 1 and (
        positions[0].dtype is torch.bool or positions[0].unique().numel() == positions[0].numel()
    )


@calls("index_put", "index_put_", "_index_put_impl", "_index_put_impl_", "_unsafe_index_put")
def _index_put(draw: Draw) -> Iterator[Call]:
    for x, indices, shape in _index_lists(draw):
        if draw.row.operator == "_unsafe_index_put" and any(
            i is not None and i.dtype is torch.bool for i in indices
        ):
            continue
        if draw.dtype is not torch.bool:
            yield Call((x, indices, _small(draw, *shape), True))
        # which of several writes to a place wins is not defined, so that only equal ones may meet
        once = _without_repeats(indices)
        yield Call((x, indices, _small(draw, *(shape if once else ())), False))


@calls("_unsafe_masked_index")
def _masked_index(draw: Draw) -> Iterator[Call]:
    x = _small(draw, 4, 5)
    yield Call((x, draw.mask(3, 2), [draw.index(3, 2, below=4), draw.index(3, 2, below=5)], 0))


@calls("_unsafe_masked_index_put_accumulate")
def _masked_put(draw: Draw) -> Iterator[Call]:
    if draw.dtype is not torch.bool:
        x = _small(draw, 4, 5)
        yield Call((x, draw.mask(3), [draw.index(3, below=4), draw.index(3, below=5)], _small(draw, 3)))


@calls("index_select")
def _index_select(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(4, 5, 6)
    for dim in (0, 1, -1):
        yield Call((x, dim, draw.index(7, below=4)))
        yield Call((x, dim, draw.index(3, below=4, dtype=torch.int32)))
    yield Call((draw.tensor(2, 3, 4, 5), 1, draw.index(4, below=3)))
    if draw.plain:
        yield Call((x, 1, draw.index(0, below=5)))
        yield Call((draw.tensor(), 0, draw.index(1, below=1)))


@calls("take")
def _take(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(4, 5)
    yield Call((x, draw.index(3, 2, below=20)))
    yield Call((x, draw.index(6, below=20) - 20))
    if draw.plain:
        yield Call((x, draw.index(0, below=20)))
        yield Call((x, draw.index(below=20)))


@calls("put", "put_")
def _put(draw: Draw) -> Iterator[Call]:
    x = _small(draw, 4, 5, written=True)
    order = torch.randperm(20, generator=draw.generator)
    yield Call((x, draw.lay(order[:6].reshape(2, 3)), _small(draw, 2, 3), False))
    if draw.dtype is not torch.bool:
        yield Call((x, draw.index(9, below=20), _small(draw, 9), True))


@calls("gather")
def _gather(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(4, 5, 6)
    for dim, shape in ((0, (3, 5, 6)), (1, (4, 9, 6)), (-1, (2, 3, 4))):
        yield Call((x, dim, draw.index(*shape, below=4)))
    yield Call((draw.tensor(2, 3, 4, 5), 1, draw.index(2, 3, 4, 5, below=3)))
    if draw.plain:
        yield Call((x, 0, draw.index(0, 5, 6, below=4)))
        yield Call((draw.tensor(), 0, draw.index(below=1)))


def _permuted_index(draw: Draw, shape: tuple[int, ...], dim: int, below: int) -> torch.Tensor:
    """Along ``dim`` no position twice."""
    order = torch.rand((*shape[:dim], below, *shape[dim + 1 :]), generator=draw.generator).argsort(dim)
    return order.narrow(dim, 0, shape[dim])


_SCATTERS: list[tuple[int, tuple[int, ...]]] = [(0, (3, 5, 6)), (1, (4, 4, 6)), (2, (2, 3, 4))]


@calls("scatter.src", "scatter.value", "scatter_.src", "scatter_.value")
def _scatter(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(4, 5, 6, written=True)
    for dim, shape in _SCATTERS:
        index = _permuted_index(draw, shape, dim, x.shape[dim])
        if draw.layout != "expanded":
            index = draw.lay(index)
        by_value = draw.row.name.endswith("value")
        yield Call((x, dim, index, draw.number(1.5, 1) if by_value else draw.tensor(*shape)))
    if draw.plain and draw.row.name.endswith("src"):
        yield Call((x, 0, draw.index(0, 5, 6, below=4), draw.tensor(0, 5, 6)))


@calls("scatter_add", "scatter_add_")
def _scatter_add(draw: Draw) -> Iterator[Call]:
    for dim, shape in _SCATTERS:
        x = _small(draw, 4, 5, 6, written=True)
        yield Call((x, dim, draw.index(*shape, below=4), _small(draw, *shape)))


@calls("scatter.reduce", "scatter.value_reduce", "scatter_.reduce", "scatter_.value_reduce")
def _scatter_reduction(draw: Draw) -> Iterator[Call]:
    by_value = "value" in draw.row.name
    for reduce in ("add", "multiply"):
        for dim, shape in _SCATTERS[:2]:
            x = _small(draw, 4, 5, 6, written=True)
            source: Value = draw.number(1.5, 2) if by_value else _small(draw, *shape)
            yield Call((x, dim, draw.index(*shape, below=4), source), {"reduce": reduce})


@calls("scatter_reduce", "scatter_reduce_")
def _scatter_reduce(draw: Draw) -> Iterator[Call]:
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        if draw.dtype.is_complex and reduce in ("amax", "amin", "mean"):
            continue
        for include_self in (True, False):
            x = _small(draw, 4, 5, written=True)
            call = (x, 0, draw.index(6, 5, below=4), _small(draw, 6, 5), reduce)
            yield Call(call, {"include_self": include_self})


@calls("index_reduce", "index_reduce_")
def _index_reduce(draw: Draw) -> Iterator[Call]:
    if draw.dtype.is_complex:
        return
    for reduce in ("prod", "mean", "amax", "amin"):
        for include_self in (True, False):
            x = _small(draw, 4, 5, written=True)
            yield Call(
                (x, 0, draw.index(6, below=4), _small(draw, 6, 5), reduce), {"include_self": include_self}
            )


@calls("index_copy", "index_copy_")
def _index_copy(draw: Draw) -> Iterator[Call]:
    for dim, count in ((0, 3), (1, 5)):
        x = draw.tensor(4, 5, 6, written=True)
        index = torch.randperm(x.shape[dim], generator=draw.generator)[:count]
        shape = list(x.shape)
        shape[dim] = count
        yield Call((x, dim, index, draw.tensor(*shape)))


@calls("index_fill", "index_fill_")
def _index_fill(draw: Draw) -> Iterator[Call]:
    for dim in (0, 1, -1):
        x = draw.tensor(4, 5, 6, written=True)
        scalar = draw.row.name.endswith("Scalar")
        value = draw.number(1.5, 1) if scalar else draw.tensor()
        yield Call((x, dim, draw.index(3, below=4), value))


@calls("index_add", "index_add_")
def _index_add(draw: Draw) -> Iterator[Call]:
    for dim, alpha in ((0, 1), (1, 2), (-1, 1)):
        shape = [4, 5, 6]
        shape[dim] = 7
        if draw.dtype is torch.bool:
            alpha = True
        x = _small(draw, 4, 5, 6, written=True)
        yield Call((x, dim, draw.index(7, below=4), _small(draw, *shape)), {"alpha": alpha})


@calls("masked_scatter", "masked_scatter_")
def _masked_scatter(draw: Draw) -> Iterator[Call]:
    for shape in ((4, 5), (2, 3, 4, 5)):
        yield Call((draw.tensor(*shape, written=True), draw.mask(*shape), draw.tensor(200)))
    yield Call((draw.tensor(4, 5, written=True), draw.mask(5), draw.tensor(4, 7)))


@calls("masked_scatter_backward")
def _masked_scatter_backward(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(4, 5), draw.mask(4, 5), [24]))


@calls("masked_select")
def _masked_select(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(4, 5), draw.mask(4, 5)))
    yield Call((draw.tensor(4, 5), draw.mask(5)))
    yield Call((draw.tensor(2, 3, 4, 5), draw.mask(2, 3, 4, 5)))
    if draw.plain:
        yield Call((draw.tensor(0, 3), draw.mask(3)))
        yield Call((draw.tensor(), torch.tensor(True)))


@calls("nonzero")
def _nonzero(draw: Draw) -> Iterator[Call]:
    for shape in ((4, 5), (2, 3, 4, 5), (31,)):
        yield Call(
            (
                draw.tensor(*shape, low=-1, high=2)
                if not draw.floating
                else draw.lay(
                    draw.values(shape, draw.dtype, None, None) * draw.integers(shape, 0, 2).to(draw.dtype)
                ),
            )
        )
    if draw.plain:
        yield Call((draw.tensor(0, 3),))
        yield Call((draw.tensor(),))


@calls("nonzero_static")
def _nonzero_static(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(4, 5),), {"size": 7})


@calls("select_scatter")
def _select_scatter(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(2, 3, 4, 5)
    yield Call((x, draw.tensor(3, 4, 5), 0, 1))
    yield Call((x, draw.tensor(2, 3, 4), -1, -2))


@calls("slice_scatter")
def _slice_scatter(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(6, 4, 3)
    yield Call((x, draw.tensor(3, 4, 3), 0, 1, 6, 2))
    yield Call((x, draw.tensor(6, 2, 3), 1, -2, None, 1))
    yield Call((x, draw.tensor(6, 4, 3)))


@calls("diagonal_scatter")
def _diagonal_scatter(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(4, 6), draw.tensor(4)))
    yield Call((draw.tensor(2, 4, 6), draw.tensor(2, 3), -1, 1, 2))


@calls("as_strided_scatter")
def _as_strided_scatter(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(4, 6, written=True), draw.tensor(2, 3), [2, 3], [6, 1]))
    if draw.plain:
        yield Call((draw.tensor(4, 6), draw.tensor(2, 3), [2, 3], [3, 1], 5))


@calls("select_backward")
def _select_backward(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(2, 4, 5), [2, 3, 4, 5], 1, 2))
    yield Call((draw.tensor(3), [3, 4], -1, -1))


@calls("slice_backward")
def _slice_backward(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(3, 4), [6, 4], 0, 1, 6, 2))
    yield Call((draw.tensor(2, 2, 4, 5), [2, 3, 4, 5], 1, 1, 3, 1))


@calls("diagonal_backward")
def _diagonal_backward(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(4), [4, 6], 1, 0, 1))
    yield Call((draw.tensor(2, 3), [2, 4, 6], -1, 1, 2))


@calls("unfold_backward")
def _unfold_backward(draw: Draw) -> Iterator[Call]:
    yield Call((_small(draw, 4, 4, 3), [4, 9], 1, 3, 2))
    yield Call((_small(draw, 7, 9, 3), [9, 9], 0, 3, 1))


@calls("embedding")
def _embedding(draw: Draw) -> Iterator[Call]:
    table = draw.tensor(7, 5)
    yield Call((table, draw.index(4, 3, below=7)))
    yield Call((table, draw.index(6, below=7, dtype=torch.int32), 2))
    if draw.plain:
        yield Call((table, draw.index(0, below=7)))
        yield Call((table, draw.index(below=7)))


@calls("embedding_dense_backward")
def _embedding_backward(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(4, 3, 5), draw.index(4, 3, below=7), 7, -1, False))
    yield Call((draw.tensor(9, 5), draw.index(9, below=4), 4, 1, True))
    if draw.plain:
        yield Call((draw.tensor(0, 5), draw.index(0, below=4), 4, -1, False))


@calls("embedding_renorm_")
def _embedding_renorm(draw: Draw) -> Iterator[Call]:
    for p in (2.0, 1.0, float("inf"), 0.5):
        table = draw.tensor(7, 5, low=-2, high=2, written=True)
        yield Call((table, draw.index(3, below=7), 1.0, p))
    yield Call((draw.tensor(7, 5, written=True), draw.index(2, 3, below=7, dtype=torch.int32), 100.0, 2.0))


def _bags(draw: Draw) -> Iterator[Arguments]:
    """Table, indices, offsets, by frequency, mode, sparse, weights, last offset included, padding."""
    offsets = torch.tensor([0, 2, 2, 5])
    for mode, padding, last in itertools.product((0, 1, 2), (-1, 3), (False, True)):
        # plain: PyTorch ignores the strides of indices
        table, words = draw.tensor(7, 5, low=-2, high=2), draw.index(6, below=7, plain=True)
        if mode != 2:
            yield table, words, offsets, False, mode, False, None, last, padding
        elif not last:  # of equal maxima any may be meant
            yield draw.distinct(7, 5), words, offsets, False, mode, False, None, last, padding
        if mode == 0:
            yield table, words, offsets, False, mode, False, draw.tensor(6, low=-2, high=2), last, padding
    if draw.plain:
        none = torch.zeros(0, dtype=torch.int64)
        yield draw.tensor(7, 5), none, none, False, 0, False, None, False, -1
        yield draw.tensor(7, 5), none, torch.zeros(3, dtype=torch.int64), False, 1, False, None, False, -1
        yield draw.tensor(7, 5), words.int(), offsets.int(), False, 1, False, None, False, -1


@calls("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(draw: Draw) -> Iterator[Call]:
    for args in _bags(draw):
        yield Call(args)


@calls(
    "_embedding_bag_backward", "_embedding_bag_dense_backward", "_embedding_bag_per_sample_weights_backward"
)
def _embedding_bag_backward(draw: Draw) -> Iterator[Call]:
    for table, words, offsets, _, mode, sparse, weights, last, padding in _bags(draw):
        if not words.numel():
            continue
        wide = None if weights is None else weights.double()
        result, bag, size, maximum = torch.ops.aten._embedding_bag(
            table.double(), words, offsets, False, mode, sparse, wide, last, padding
        )
        grad = draw.tensor(*result.shape, low=-2, high=2)
        # words of one frequency: PyTorch's CPU takes another word's where they differ
        by_frequency = mode == 0 and padding < 0
        words = torch.tensor([1, 2, 2, 1, 4, 4]) if by_frequency else words
        if draw.row.operator == "_embedding_bag_backward":
            rest = (7, by_frequency, mode, sparse, weights, padding)
            yield Call((grad, words, offsets, bag, size, maximum, *rest))
        elif draw.row.operator == "_embedding_bag_dense_backward":
            yield Call((grad, words, bag, size, maximum, 7, by_frequency, mode, weights, padding))
        elif mode == 0:
            yield Call((grad, table, words, offsets, bag, mode, padding))


@calls("repeat_interleave")
def _repeat_interleave(draw: Draw) -> Iterator[Call]:
    if draw.dtype in (torch.int32, torch.int64):  # the types PyTorch takes
        yield Call((draw.index(7, below=4, dtype=draw.dtype),))
        yield Call((draw.index(5, below=3, dtype=draw.dtype),))
        yield Call((draw.index(0, below=3, dtype=draw.dtype),))


@calls("_jagged_to_padded_dense_forward", "_padded_dense_to_jagged_forward")
def _jagged(draw: Draw) -> Iterator[Call]:
    """Sequences of several lengths, of none, and longer than there is room for."""
    for lengths in ([3, 0, 2], [4], [0, 0], []):
        ends = torch.tensor([0, *itertools.accumulate(lengths)])
        total, longest = sum(lengths), max(lengths, default=0)
        if draw.row.operator == "_padded_dense_to_jagged_forward":
            dense = draw.tensor(len(lengths), longest, 5)
            yield Call((dense, [ends]))
            yield Call((dense, [ends], total))
            continue
        values = draw.tensor(total, 5)
        yield Call((values, [ends], [longest]))
        yield Call((values, [ends.int()], [longest + 2], 1.0))
        yield Call((values, [ends], [2]))
