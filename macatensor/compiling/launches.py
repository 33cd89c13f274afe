"""A launch of a tape as fusion sees it: its sources and results, in the order in which they lie in memory."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from macatensor.dispatch.request import Request
from macatensor.runtime.ffi import lib
from macatensor.runtime.meta import Meta, contiguous_strides, meta_of

_TENSOR = lib.MACA_ARGUMENT_TENSOR
_LONGEST_ROW = 16384  # elements: a tile of a few operands then still fits the second-level cache


class Extent(enum.IntEnum):
    """What an operand has an element for, as host/kernels/pointwise/program.cpp has it."""

    ELEMENTS = 0  # of the index space
    ROWS = 1
    COLUMNS = 2


class Touch(NamedTuple):
    """Memory that a launch reads or writes: an operand of it."""

    memory: int  # a stand-in's number; -1: of before the recording, at the address `begin`
    begin: int  # bytes
    end: int
    writes: bool

    @property
    def place(self) -> tuple[int, int]:
        return self.memory, self.begin

    def meets(self, other: Touch) -> bool:
        return self.memory == other.memory and self.begin < other.end and other.begin < self.end


class Source(NamedTuple):
    """An operand in the order in which the index space lies in memory."""

    place: tuple[int, int]
    meta: Meta  # sizes and strides in that order
    extent: Extent = Extent.ELEMENTS

    @property
    def is_direct(self) -> bool:
        """Does it lie densely in that order, too?"""
        return not self.meta.stride or self.meta.stride == (1,)


class Result(NamedTuple):
    touch: Touch
    meta: Meta
    extent: Extent


@dataclass(eq=False)
class Launch:
    """A step of a tape whose kernel may be part of a program; ``sources``: its inputs, None for numbers and absent ones.

    ``row``: of a kernel that works on rows how many elements one has, 0 of an elementwise one; ``count``: elements of
    its index space."""

    index: int
    request: Request
    touches: list[Touch]  # by operand; of absent ones and numbers an empty one
    scalars: int
    sources: list[Source | None]
    results: list[Result]
    count: int
    row: int = 0

    def heirs(self) -> list[tuple[int, int]]:
        """Stand-ins that it reads and writes, of which the second may lie where the first does, if nothing else needs that."""
        if self.row:
            return []
        (written, meta, _), *_ = self.results
        found = []
        for source in self.sources:
            if source is None or source.place[1] != written.begin or source.meta.itemsize != meta.itemsize:
                continue
            memory = source.place[0]
            uses = [s for s in self.sources if s is not None and s.place[0] == memory]
            if all(s.is_direct and s.place == source.place and s.meta.numel == self.count for s in uses):
                found.append((memory, written.memory))
        return found


def read_launch(index: int, request: Request | None, touches: list[Touch], scalars: int) -> Launch | None:
    """None where the launch may not be part of a program."""
    if request is None:
        return None
    outputs = [a.is_output for a in request.arguments]
    split = len(outputs) - sum(outputs)
    if any(outputs[:split]) or any(a.kind != _TENSOR for a in request.arguments[split:]):
        return None
    metas = [meta for meta, _ in request.operands[len(request.operands) - sum(outputs) :]]
    if any(m is None or not m.dense or m.conj or m.neg for m in metas):
        return None
    operands = [meta if slot < 0 else None for meta, slot in request.operands[: len(touches) - len(metas)]]
    if any(m is not None and (m.conj or m.neg) for m in operands):
        return None
    results = [m for m in metas if m is not None]
    written = touches[len(operands) :]
    if request.by_rows:
        read = _read_rows(request, touches, operands, results, written)
    else:
        read = _read_elements(touches, operands, results, written)
    return Launch(index, request, touches, scalars, *read) if read is not None else None


# The last fields of a Launch: sources, results, count and row.
_Read: TypeAlias = tuple[list[Source | None], list[Result], int, int]


def _read_elements(
    touches: list[Touch], operands: list[Meta | None], results: list[Meta], written: list[Touch]
) -> _Read | None:
    if len(results) != 1 or results[0].numel < 2:
        return None
    result = results[0]
    order = sorted(range(len(result.size)), key=lambda d: -result.stride[d])
    sources: list[Source | None] = []
    for meta, touch in zip(operands, touches):
        if meta is None:
            sources.append(None)
            continue
        inside = _in_order(meta, result, order)
        if inside is None:
            return None
        sources.append(Source(touch.place, inside))
    if not any(sources):
        return None
    found = [Result(written[0], result, Extent.ELEMENTS)]
    return sources, found, result.numel, 0


def _in_order(meta: Meta, result: Meta, order: list[int]) -> Meta | None:
    """The operand, broadcast to the result; None where its innermost elements lie apart."""
    shift = len(result.size) - len(meta.size)
    if shift < 0:
        return None
    sizes: list[int] = []
    strides: list[int] = []
    for d in order:
        n = result.size[d]
        if n == 1:
            continue
        own = d - shift
        stride = meta.stride[own] if own >= 0 and meta.size[own] != 1 else 0
        if sizes and strides[-1] == stride * n:
            sizes[-1] *= n
            strides[-1] = stride
        else:
            sizes.append(n)
            strides.append(stride)
    if strides and strides[-1] > 1:
        return None
    return meta_of(tuple(sizes), tuple(strides), meta.dtype)


def _read_rows(
    request: Request,
    touches: list[Touch],
    operands: list[Meta | None],
    results: list[Meta],
    written: list[Touch],
) -> _Read | None:
    """Of a kernel that works on rows, where these are the innermost dimensions of dense memory."""
    given = operands[0]
    if given is None or not given.dense or given.numel < 2:
        return None
    rank = len(given.size)
    within = _dimensions_of_row(request, rank)
    outer = [d for d in range(rank) if d not in within and given.size[d] > 1]
    inner = [d for d in within if given.size[d] > 1]
    row = math.prod(given.size[d] for d in inner)
    if not 2 <= row <= _LONGEST_ROW or min((given.stride[d] for d in outer), default=row) < row:
        return None
    count, rows = given.numel, given.numel // row
    sources: list[Source | None] = [Source(touches[0].place, meta_of((count,), (1,), given.dtype))]
    for meta, touch in zip(operands[1:], touches[1:]):
        if meta is None:
            sources.append(None)
            continue
        if (
            meta.numel != row
            or meta.stride != contiguous_strides(meta.size)
            or any(given.stride[d] != _stride(meta, d, rank) for d in inner)
        ):
            return None
        sources.append(Source(touch.place, meta_of((row,), (1,), meta.dtype), Extent.COLUMNS))
    found = []
    for meta, touch in zip(results, written):
        if meta.size == given.size and meta.stride == given.stride:
            found.append(Result(touch, meta, Extent.ELEMENTS))
            continue
        kept = [d for d in range(rank) if d not in within]  # where its dimensions are
        own = list(range(rank)) if len(meta.size) == rank else kept
        strides = {d: s for d, n, s in zip(own, meta.size, meta.stride) if n > 1}
        if meta.numel != rows or any(strides.get(d) != given.stride[d] // row for d in outer):
            return None
        found.append(Result(touch, meta, Extent.ROWS))
    return sources, found, count, row


def _stride(meta: Meta, dimension: int, rank: int) -> int:
    """Of the operand's last dimensions, that of the input's ``dimension``."""
    own = dimension - (rank - len(meta.size))
    return meta.stride[own] if own >= 0 else -1


def _dimensions_of_row(request: Request, rank: int) -> set[int]:
    named = dict(request.attributes).get(request.by_rows)
    if isinstance(named, int):
        return {named % rank} if rank else set()
    if not isinstance(named, Sequence) or isinstance(named, str):
        return set()
    if request.by_rows == "normalized_shape":
        return set(range(rank - len(named), rank))
    return {int(d) % rank for d in named} if rank else set()
