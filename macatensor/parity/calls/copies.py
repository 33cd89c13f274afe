"""Calls of copies, casts, factories and joins."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from macatensor.parity.draw import Call, Draw, calls
from macatensor.runtime.boxed import Keywords, Value

DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
        "complex64", "complex128",
    )
}  # fmt: skip


@calls("_to_copy")
def _to_copy(draw: Draw) -> Iterator[Call]:
    unsigned = draw.dtype in (torch.uint8, torch.bool)
    for name, target in DTYPES.items():
        if name not in draw.row.dtypes:
            continue
        if draw.dtype.is_complex and not target.is_complex:
            continue  # PyTorch warns that the imaginary part is dropped
        # what a small integer holds: a conversion out of range is undefined in C and differs among PyTorch's kernels
        low = 0 if unsigned or target is torch.uint8 else -100
        for shape in (
            ((5, 37), (2, 3, 4, 5)) if draw.layout != "contiguous" else ((5, 37), (), (0, 2), (2, 3, 4, 5))
        ):
            yield Call((draw.tensor(*shape, low=low, high=100),), {"dtype": target})
    x = draw.tensor(2, 3, 4, 5)
    for form in (torch.contiguous_format, torch.channels_last, torch.preserve_format):
        yield Call((x,), {"memory_format": form})


@calls("clone")
def _clone(draw: Draw) -> Iterator[Call]:
    for shape in ((2, 3, 4, 5), (5, 37), (3, 2, 4), (), (0, 3), (2, 2, 3, 2, 2)):
        x = draw.tensor(*shape)
        yield Call((x,))
        yield Call((x,), {"memory_format": torch.contiguous_format})
        if len(shape) == 4:
            yield Call((x,), {"memory_format": torch.channels_last})


@calls("copy")
def _copy(draw: Draw) -> Iterator[Call]:
    for shape, source in (((4, 3, 5), (3, 1)), ((2, 3, 4, 5), (2, 3, 4, 5)), ((3, 7), ()), ((0, 2), (2,))):
        yield Call((draw.tensor(*shape, written=True), draw.tensor(*source)))
    for name in ("float32", "float16", "int32", "int64"):
        if not draw.dtype.is_complex:
            yield Call(
                (draw.tensor(4, 5, written=True), draw.tensor(4, 5, low=0, high=90, dtype=DTYPES[name]))
            )


@calls("fill.Scalar")
def _fill(draw: Draw) -> Iterator[Call]:
    for shape in ((5, 37), (), (0, 2), (2, 3, 4, 5)):
        yield Call((draw.tensor(*shape), draw.number(1.5, 1)))


@calls("zero")
def _zero(draw: Draw) -> Iterator[Call]:
    for shape in ((5, 37), (), (0, 2), (2, 3, 4, 5)):
        yield Call((draw.tensor(*shape),))


def _made(draw: Draw) -> Keywords:
    return {"dtype": draw.dtype, "device": torch.device("cpu")}


@calls("arange", "arange.start", "arange.start_step", "range", "range.step")
def _arange(draw: Draw) -> Iterator[Call]:
    if not draw.plain:
        return
    name = draw.row.name
    half = draw.floating
    if name == "arange":
        for end in (7, 0, 2.5 if half else 3):
            yield Call((end,), _made(draw))
    elif name in ("arange.start", "range"):
        for start, end in ((2, 9), (0.5 if half else 0, 4.5 if half else 4)):
            yield Call((start, end), _made(draw))
    else:
        for start, end, step in ((2, 20, 3), (0.5, 4.5, 0.25) if half else (1, 5, 2), (9, 1, -2)):
            yield Call((start, end, step), _made(draw))
        if draw.dtype in (torch.float32, torch.int64):
            yield Call((0, 40000, 1), _made(draw))


@calls("linspace", "logspace")
def _linspace(draw: Draw) -> Iterator[Call]:
    if not draw.plain:
        return
    variant = draw.row.name.partition(".")[2]
    for start, end, steps in ((-2.0, 3.0, 11), (5.0, 5.0, 3), (0.0, 1.0, 1), (2.0, 0.5, 0), (0.0, 4.0, 129)):
        if not draw.floating:
            start, end = abs(float(int(start))), abs(float(int(end)))
        first: Value = torch.tensor(start) if variant.startswith("Tensor") else start
        last: Value = torch.tensor(end) if variant.endswith("Tensor") else end
        if draw.row.operator == "logspace":
            yield Call((first, last, steps, 2.0), _made(draw))
        else:
            yield Call((first, last, steps), _made(draw))


@calls("eye", "eye.m")
def _eye(draw: Draw) -> Iterator[Call]:
    if draw.plain:
        for n, m in ((3, 5), (4, 2), (0, 3), (1, 1)):
            yield Call((n, m) if draw.row.name == "eye.m" else (n,), _made(draw))


@calls("_efficientzerotensor")
def _zeros(draw: Draw) -> Iterator[Call]:
    if draw.plain:
        yield Call(([2, 3],), _made(draw))
        yield Call(([0],), _made(draw))


@calls("randperm")
def _randperm(draw: Draw) -> Iterator[Call]:
    if draw.plain:
        yield Call((7,), _made(draw))


@calls("tril_indices", "triu_indices")
def _triangle(draw: Draw) -> Iterator[Call]:
    if draw.plain and draw.dtype in (torch.int32, torch.int64):
        for row, col, offset in ((3, 5, 0), (4, 2, 1), (4, 4, -2), (0, 3, 0)):
            yield Call((row, col, offset), _made(draw))


@calls("cat", "stack", "_stack")
def _cat(draw: Draw) -> Iterator[Call]:
    for dim in (0, 1, 3 if draw.row.operator == "_stack" else -1):  # PyTorch's _stack trusts its dim
        yield Call(([draw.tensor(2, 3, 4, 5), draw.tensor(2, 3, 4, 5), draw.tensor(2, 3, 4, 5)], dim))
    yield Call(([draw.tensor(5, 3)], 0))
    if draw.row.operator != "cat":
        return
    yield Call(([draw.tensor(2, 3), draw.tensor(2, 0), draw.tensor(2, 4)], 1))
    if draw.plain:
        yield Call(([draw.tensor(0), draw.tensor(2, 4)], 1))  # an old empty 1-D tensor joins with anything
        yield Call(([draw.tensor(4) for _ in range(9)], 0))
    if draw.dtype is torch.float32:
        yield Call(([draw.tensor(2, 3), draw.tensor(2, 3, dtype=torch.int64)], 0))


@calls("block_diag")
def _block_diag(draw: Draw) -> Iterator[Call]:
    yield Call(([draw.tensor(2, 3), draw.tensor(1, 4), draw.tensor(3)],))
    if draw.plain:
        yield Call(([draw.tensor(), draw.tensor(0, 2)],))


@calls("_chunk_cat")
def _chunk_cat(draw: Draw) -> Iterator[Call]:
    yield Call(([draw.tensor(5, 3), draw.tensor(4, 2)], 0, 2))


@calls("new_empty_strided")
def _new_empty(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(2, 3), [0, 3], [3, 1]))  # other sizes hold whatever memory held
