"""Calls of reductions, scans, softmax and sorting."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from macatensor.parity.draw import Call, Draw, calls
from macatensor.runtime.boxed import Value

# (shape, one dimension, several dimensions)
_CASES: list[tuple[tuple[int, ...], int, list[int]]] = [
    ((5, 37), 1, [0, 1]),
    ((37, 5), 0, [0]),
    ((2, 3, 4, 5), 1, [0, 2, 3]),
    ((2, 3, 4, 5), -1, [1, 3]),
    ((3, 2, 9), 1, [-1, 0]),
]


def _cases(draw: Draw) -> list[tuple[tuple[int, ...], int, list[int]]]:
    return (
        [*_CASES, ((4, 0, 3), 0, [0]), ((4, 0, 3), 2, [2]), ((), 0, [0]), ((1, 1031), 1, [1])]
        if draw.plain
        else _CASES
    )


def _input(draw: Draw, shape: tuple[int, ...]) -> torch.Tensor:
    if draw.row.operator in ("prod", "cumprod"):
        if draw.floating:
            return draw.tensor(*shape, low=0.75, high=1.25)
        return draw.tensor(*shape, low=-1, high=2)
    if not draw.floating:
        return draw.tensor(*shape, low=-3, high=3)
    return draw.tensor(*shape)


def _special(draw: Draw) -> Iterator[torch.Tensor]:
    """Rows with a NaN, with an infinity, with both signs of zero, with ties."""
    if not (draw.plain and draw.dtype.is_floating_point):
        return
    nan, inf = math.nan, math.inf
    rows = [
        [1.0, nan, 2.0, 3.0],
        [inf, 1.0, 2.0, -1.0],
        [-inf, 1.0, 2.0, 0.5],
        [inf, -inf, 0.0, 1.0],
        [0.0, -0.0, 0.0, -0.0],
        [-0.0, -0.0, -0.0, -0.0],
        [2.0, 2.0, 1.0, 1.0],
        [-inf, -inf, -inf, -inf],
        [nan, nan, nan, nan],
    ]
    yield torch.tensor(rows, dtype=draw.dtype)


def _long(draw: Draw) -> Iterator[torch.Tensor]:
    """Long enough to be shared by threads."""
    if draw.plain and draw.dtype in (torch.float32, torch.bfloat16, torch.int64):
        yield draw.tensor(70001, low=-3, high=3) if draw.floating else draw.tensor(70001)


@calls("sum", "mean", "prod", "any", "all", "min", "max", "median", "nanmedian")
def _whole(draw: Draw) -> Iterator[Call]:
    for shape, _, _ in _cases(draw):
        x = _input(draw, shape)
        if x.numel() or draw.row.operator in ("sum", "mean", "prod", "any", "all"):
            yield Call((x,))
    for x in _special(draw):
        for line in x:
            yield Call((line,))
    if draw.row.operator != "prod":
        for x in _long(draw):
            yield Call((x,))
    if draw.row.operator in ("sum", "prod") and draw.dtype is torch.float32:
        yield Call((_input(draw, (5, 7)),), {"dtype": torch.float64})
    if draw.row.operator in ("sum", "prod") and draw.dtype is torch.int32:
        yield Call((_input(draw, (5, 7)),), {"dtype": torch.float32})


@calls("sum.dim_IntList", "mean.dim", "any.dims", "all.dims", "amin", "amax", "logsumexp")
def _dims(draw: Draw) -> Iterator[Call]:
    extremum = draw.row.operator in ("amin", "amax")
    for turn, (shape, dim, dims) in enumerate(_cases(draw)):
        x = _input(draw, shape)
        if extremum and not x.numel() and x.shape[dim] == 0:
            continue
        yield Call((x, [dim] if shape else [], bool(turn % 2)))
        if shape and (x.numel() or not extremum):
            yield Call((x, dims, not turn % 2))
    for x in _special(draw):
        yield Call((x, [1]))
        yield Call((x, [0]))
    for x in _long(draw):
        yield Call((x, [0]))
    if draw.plain and draw.dtype in (torch.float32, torch.bfloat16):
        yield Call((_input(draw, (3, 4001)), [0]))
        yield Call((_input(draw, (401, 67)), [0]))


@calls("any.dim", "all.dim", "prod.dim_int", "min.dim", "max.dim", "median.dim", "nanmedian.dim", "mode")
def _one_dim(draw: Draw) -> Iterator[Call]:
    reads = draw.row.operator in ("any", "all", "prod")
    for turn, (shape, dim, _) in enumerate(_cases(draw)):
        if "median" in draw.row.name:
            x = draw.distinct(*shape)
        else:
            x = _input(draw, shape)
        if reads or x.numel():
            yield Call((x, dim, bool(turn % 2)))
    for x in _special(draw):
        yield Call((x, 1))


@calls("aminmax")
def _aminmax(draw: Draw) -> Iterator[Call]:
    for turn, (shape, dim, _) in enumerate(_cases(draw)):
        x = _input(draw, shape)
        if x.numel():
            yield Call((x,), {"dim": dim, "keepdim": bool(turn % 2)})
            yield Call((x,))
    for x in _special(draw):
        yield Call((x,), {"dim": 1})


@calls("argmin", "argmax")
def _arg(draw: Draw) -> Iterator[Call]:
    for turn, (shape, dim, _) in enumerate(_cases(draw)):
        x = _input(draw, shape)
        if x.numel():
            yield Call((x, dim, bool(turn % 2)))
            yield Call((x,))
    for x in _special(draw):
        yield Call((x, 1))


@calls("count_nonzero")
def _count(draw: Draw) -> Iterator[Call]:
    several = draw.row.name.endswith("IntList")
    for shape, dim, dims in _cases(draw):
        x = _input(draw, shape)
        yield Call((x, (dims if shape else []) if several else dim))
        if not several:
            yield Call((x,))


@calls("var.correction", "std.correction", "var_mean.correction", "std_mean.correction")
def _moments(draw: Draw) -> Iterator[Call]:
    for turn, (shape, dim, dims) in enumerate(_cases(draw)):
        x = _input(draw, shape)
        if shape and not shape[dim]:
            continue  # no degrees of freedom: PyTorch warns
        correction = [None, 0, 1, 0.5][turn % 4] if shape else 0
        yield Call((x, [dim] if shape else None), {"correction": correction, "keepdim": bool(turn % 2)})
        yield Call((x, dims if shape else None), {"correction": 1 if shape else 0})
    for x in _special(draw):
        yield Call((x, [1]), {"correction": 1})
    if draw.plain and draw.dtype in (torch.float32, torch.bfloat16):
        # a mean far from zero: the naive sum of squares loses every digit
        yield Call((draw.tensor(4, 513, low=1000, high=1001), [1]), {"correction": 1})


def _orders(draw: Draw) -> list[Value]:
    return [2, 1, 0, 3, math.inf, -math.inf, 0.5]


@calls("linalg_vector_norm")
def _vector_norm(draw: Draw) -> Iterator[Call]:
    for turn, (shape, dim, dims) in enumerate(_cases(draw)):
        x = _input(draw, shape)
        for order in _orders(draw) if turn < 2 else [2]:
            if x.numel() or order not in (math.inf, -math.inf):
                yield Call((x, order, [dim] if shape else None, bool(turn % 2)))
        yield Call((x, 2, dims if shape else None))
    for x in _special(draw):
        for order in (2, math.inf, 1):
            yield Call((x, order, [1]))
    if draw.dtype is torch.float32 and draw.plain:
        yield Call((_input(draw, (5, 7)), 2, [1]), {"dtype": torch.float64})
        yield Call((draw.tensor(5, 7) * 1e30, 2, [1]))  # squares overflow float32


@calls("norm.Scalar", "norm.ScalarOpt_dtype")
def _norm(draw: Draw) -> Iterator[Call]:
    typed = draw.row.name.endswith("dtype")
    if typed and draw.dtype.is_complex:
        return  # PyTorch's CPU takes no complex dtype here
    for shape, _, _ in _cases(draw):
        x = _input(draw, shape)
        for order in (2, 1, 3, math.inf):
            if x.numel() or order != math.inf:
                yield Call((x, order), {"dtype": draw.dtype} if typed else {})


@calls("norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype")
def _norm_dim(draw: Draw) -> Iterator[Call]:
    typed = draw.row.name.endswith("dtype")
    if typed and draw.dtype.is_complex:
        return
    for turn, (shape, dim, dims) in enumerate(_cases(draw)):
        x = _input(draw, shape)
        for order in (2, 1, None) if x.numel() else (2,):
            yield Call(
                (x, order, [dim] if shape else [], bool(turn % 2)), {"dtype": draw.dtype} if typed else {}
            )
        if shape and x.numel():
            yield Call((x, 2, dims, False), {"dtype": draw.dtype} if typed else {})


@calls("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "_logcumsumexp")
def _scan(draw: Draw) -> Iterator[Call]:
    for shape, dim, _ in _cases(draw):
        x = _input(draw, shape)
        if x.numel() or draw.row.operator in ("cumsum", "cumprod"):
            yield Call((x, dim))
    for x in _special(draw):
        yield Call((x, 1))
    if draw.row.operator == "cumsum" and draw.dtype is torch.float32:
        yield Call((_input(draw, (5, 7)), 1), {"dtype": torch.float64})


@calls("_softmax", "_log_softmax")
def _softmax(draw: Draw) -> Iterator[Call]:
    for shape, dim, _ in _cases(draw):
        yield Call((draw.tensor(*shape, low=-10, high=10), dim, False))
    for x in _special(draw):
        yield Call((x, 1, False))
    if draw.plain and draw.dtype is torch.float32:
        yield Call((draw.tensor(3, 1001, low=80, high=100), 1, False))  # exp of the values overflows float32


@calls("_safe_softmax")
def _safe_softmax(draw: Draw) -> Iterator[Call]:
    for shape, dim, _ in _cases(draw):
        yield Call((draw.tensor(*shape, low=-10, high=10), dim))
    for x in _special(draw):
        yield Call((x, 1))


@calls("_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_backward(draw: Draw) -> Iterator[Call]:
    forward = torch.log_softmax if "log" in draw.row.operator else torch.softmax
    for shape, dim, _ in _cases(draw):
        output = draw.lay(forward(draw.tensor(*shape).double(), dim).to(draw.dtype))
        yield Call((draw.tensor(*shape), output, dim, draw.dtype))


@calls("sort", "sort.stable")
def _sort(draw: Draw) -> Iterator[Call]:
    for turn, (shape, dim, _) in enumerate(_cases(draw)):
        for x in (draw.distinct(*shape), _input(draw, shape)):
            if draw.row.name == "sort.stable":
                yield Call((x,), {"stable": True, "dim": dim, "descending": bool(turn % 2)})
            else:
                yield Call((x, dim, bool(turn % 2)))
    for x in _special(draw):
        for descending in (False, True):
            if draw.row.name == "sort.stable":
                yield Call((x,), {"stable": True, "dim": 1, "descending": descending})
            else:
                yield Call((x, 1, descending))


@calls("topk")
def _topk(draw: Draw) -> Iterator[Call]:
    for turn, (shape, dim, _) in enumerate(_cases(draw)):
        x = draw.distinct(*shape)
        extent = x.shape[dim] if shape else 1
        for k in sorted({0, 1, extent // 2, extent}):
            yield Call((x, k, dim, bool(turn % 2), True))
    for x in _special(draw):
        for largest in (False, True):
            yield Call((x, 2, 1, largest, True))


@calls("kthvalue")
def _kthvalue(draw: Draw) -> Iterator[Call]:
    for turn, (shape, dim, _) in enumerate(_cases(draw)):
        x = draw.distinct(*shape)
        extent = x.shape[dim] if shape else 1
        if x.numel():
            for k in sorted({1, (extent + 1) // 2, extent}):
                yield Call((x, k, dim, bool(turn % 2)))
    for x in _special(draw):
        yield Call((x, 2, 1))


@calls("searchsorted.Tensor")
def _searchsorted(draw: Draw) -> Iterator[Call]:
    for right in (False, True):
        edges = draw.lay(draw.values((3, 17), draw.dtype, -4, 4).sort(-1).values)
        yield Call((edges, draw.tensor(3, 8, low=-5, high=5)), {"right": right})
        edge = draw.lay(draw.values((33,), draw.dtype, -4, 4).sort(-1).values)
        yield Call((edge, draw.tensor(4, 7, low=-5, high=5)), {"right": right, "out_int32": True})
        yield Call((edge, edge.clone()), {"side": "right" if right else "left"})
        order = draw.integers((1,), 0, 2)
        unsorted = draw.values((21,), draw.dtype, -4, 4) + order.to(draw.dtype)
        yield Call((unsorted, draw.tensor(6)), {"sorter": unsorted.sort().indices})


@calls("searchsorted.Scalar", "bucketize.Scalar")
def _search_number(draw: Draw) -> Iterator[Call]:
    tenth = torch.tensor([0.1]).to(draw.dtype)  # which the number is only when it is rounded as well
    edges = draw.lay(torch.cat([draw.values((33,), draw.dtype, -4, 4), tenth]).sort(-1).values)
    for number in (0.1, draw.number(0.5, 1), draw.number(-100.0, 0), draw.number(100.0, 100)):
        for right in (False, True):
            args = (number, edges) if draw.row.operator == "bucketize" else (edges, number)
            yield Call(args, {"right": right})


@calls("bucketize.Tensor")
def _bucketize(draw: Draw) -> Iterator[Call]:
    for right in (False, True):
        edges = draw.lay(draw.values((17,), draw.dtype, -4, 4).sort(-1).values)
        for shape in ((5, 7), (), (0,), (2, 3, 4, 5)):
            yield Call((draw.tensor(*shape, low=-5, high=5), edges), {"right": right, "out_int32": right})


@calls("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def _isin(draw: Draw) -> Iterator[Call]:
    x, tests = draw.tensor(5, 7, low=-3, high=3), draw.tensor(4, low=-3, high=3)
    number = draw.number(0.5, 1)
    pair = {"Tensor_Tensor": (x, tests), "Tensor_Scalar": (x, number), "Scalar_Tensor": (number, tests)}
    for invert in (False, True):
        yield Call(pair[draw.row.name.partition(".")[2]], {"invert": invert})
