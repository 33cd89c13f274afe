"""Sample calls of every row of the op table, drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

import torch
from torch._ops import OpOverload

from macatensor.parity.calls import (  # noqa: F401 - each module registers its generators
    copies,
    counting,
    fft,
    foreach,
    indexing,
    linalg,
    loss,
    network,
    pointwise,
    quantization,
    reduction,
    special,
    synchronized,
    view,
    window,
)
from macatensor.parity.draw import CALLS, LAYOUTS, Call, Draw, Generator
from op_table import Row

__all__ = ["LAYOUTS", "Call", "describe", "generator_of", "overload", "samples"]


def overload(row: Row) -> OpOverload:
    """The OpOverload a row names. Raises AttributeError when this PyTorch has none."""
    operator, _, name = row.name.partition(".")
    result: OpOverload = getattr(getattr(torch.ops.aten, operator), name or "default")
    return result


def generator_of(row: Row) -> Generator | None:
    """By the row's name, its operator, the row that it is sampled as, then its family."""
    found = CALLS.get(row.name) or CALLS.get(row.operator) or CALLS.get(row.sampled_as)
    if found is None and row.operator.startswith("_foreach_"):
        return foreach.foreach
    if found is None and row.elementwise:
        return pointwise.pointwise
    if found is None and row.operator.endswith("_copy"):  # narrow_copy takes what narrow takes
        return CALLS.get(row.name.replace("_copy", "", 1)) or CALLS.get(row.operator.removesuffix("_copy"))
    return found


def samples(row: Row, dtype: torch.dtype, layout: str = "contiguous", seed: int = 0) -> Iterator[Call]:
    """Calls of ``row`` with operands of ``dtype`` in ``layout``; none when no operand can take the layout.

    Raises LookupError for a row that no generator knows.
    """
    generator = generator_of(row)
    if generator is None:
        raise LookupError(f"macatensor/parity has no generator of calls for {row.name}")
    draw = Draw(row, dtype, layout, seed ^ crc32(f"{row.name} {dtype} {layout}".encode()))
    drawn = generator(draw)
    while True:
        draw.moved = draw.plain
        call = next(drawn, None)
        if call is None:
            return
        if draw.moved:
            yield call


def describe(value: object) -> str:
    """An argument in a failing line: dtype, sizes, strides, offset."""
    if isinstance(value, torch.Tensor):
        text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if not value.is_contiguous() or value.storage_offset():
            text += f" strides {tuple(value.stride())}"
        if value.storage_offset():
            text += f" offset {value.storage_offset()}"
        if value.dim() == 0 and value.device.type == "cpu":
            text += f" = {value.item()}"
        return text
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(describe(v) for v in value) + "]"
    return str(value).removeprefix("torch.")
