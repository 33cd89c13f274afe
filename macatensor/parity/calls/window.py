"""Calls of operators that slide a window or move elements: convolution, pooling, padding, resampling, shuffles."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from macatensor.parity.draw import Call, Draw, calls
from macatensor.runtime.boxed import Arguments

# input, weight, stride, padding, dilation, transposed, output padding, groups
_CONVOLUTIONS: list[Arguments] = [
    ((2, 4, 9, 8), (6, 4, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    ((2, 4, 9, 8), (6, 2, 3, 2), [2, 1], [0, 1], [1, 2], False, [0, 0], 2),
    ((1, 4, 6, 5), (4, 1, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
    ((2, 5, 4, 4), (3, 5, 1, 1), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    ((2, 4, 5, 4), (4, 3, 3, 3), [2, 2], [1, 1], [1, 1], True, [1, 0], 1),
    ((2, 4, 5, 4), (4, 2, 2, 3), [1, 2], [0, 0], [1, 1], True, [0, 1], 2),
    ((2, 4, 11), (6, 4, 3), [2], [1], [1], False, [0], 1),
    ((2, 4, 7), (4, 3, 3), [2], [0], [1], True, [1], 1),
    ((1, 2, 5, 4, 6), (4, 2, 3, 2, 3), [1, 2, 1], [1, 0, 1], [1, 1, 1], False, [0, 0, 0], 1),
    ((0, 4, 5, 5), (3, 4, 3, 3), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
]


def _cases(draw: Draw) -> list[Arguments]:
    return _CONVOLUTIONS if draw.plain else [c for c in _CONVOLUTIONS if c[0][0]]


@calls("convolution")
def _convolution(draw: Draw) -> Iterator[Call]:
    for turn, (shape, weight, *rest) in enumerate(_cases(draw)):
        x, w = draw.tensor(*shape, low=-2, high=2), draw.tensor(*weight, low=-2, high=2, written=True)
        outputs = weight[1] * rest[-1] if rest[3] else weight[0]
        bias = draw.values((outputs,), draw.dtype, -2, 2) if turn % 2 == 0 else None
        yield Call((x, w, bias, *rest))


@calls("convolution_backward")
def _convolution_backward(draw: Draw) -> Iterator[Call]:
    for turn, (shape, weight, *rest) in enumerate(_cases(draw)):
        x, w = draw.tensor(*shape, low=-2, high=2), draw.tensor(*weight, low=-2, high=2, written=True)
        outputs = weight[1] * rest[-1] if rest[3] else weight[0]
        size = torch.ops.aten.convolution(x.to("meta"), w.to("meta"), None, *rest).shape
        grad = draw.tensor(*size, low=-2, high=2, written=True)
        mask = [[True, True, True], [True, True, False], [False, True, True], [True, False, False]][turn % 4]
        yield Call((grad, x, w, [outputs], *rest, mask))


def _pools(
    draw: Draw, rank: int
) -> Iterator[tuple[torch.Tensor, list[int], list[int], list[int], list[int], bool]]:
    """Operand, kernel, stride, padding, dilation, ceil mode."""
    shapes = {2: [(2, 3, 9, 8), (3, 7, 6)], 3: [(2, 3, 6, 5, 7), (2, 5, 6, 4)]}[rank]
    if draw.layout == "channels_last" and rank == 3:
        shapes = shapes[:1]  # PyTorch refuses an unbatched volume that looks like NHWC
    for shape in shapes:
        x = (
            draw.distinct(*shape)
            if draw.row.operator.startswith(("max", "adaptive_max"))
            else draw.tensor(*shape)
        )
        yield x, [2] * rank, [2] * rank, [0] * rank, [1] * rank, False
        yield x, [3] * rank, [2] * rank, [1] * rank, [1] * rank, True
        yield x, [3] + [2] * (rank - 1), [1] * rank, [1] + [0] * (rank - 1), [1] * rank, False
    if draw.row.operator.startswith("max"):
        yield draw.distinct(*shapes[0]), [2] * rank, [1] * rank, [0] * rank, [2] * rank, False


def _rank(draw: Draw) -> int:
    return next(int(c) for c in draw.row.operator if c.isdigit())


@calls("max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(draw: Draw) -> Iterator[Call]:
    for args in _pools(draw, _rank(draw)):
        yield Call(args)
    if draw.plain and draw.dtype.is_floating_point and _rank(draw) == 2:
        x = draw.distinct(1, 2, 4, 4)
        x[0, 0, 1, 1] = float("nan")
        x[0, 1] = float("-inf")
        yield Call((x, [2, 2]))


@calls("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def _max_pool_backward(draw: Draw) -> Iterator[Call]:
    forward = getattr(torch.ops.aten, draw.row.operator.removesuffix("_backward"))
    for x, *rest in _pools(draw, _rank(draw)):
        values, indices = forward(x.double(), *rest)
        yield Call(
            (
                draw.tensor(*values.shape),
                x,
                *rest,
                draw.lay(indices) if draw.layout != "expanded" else indices,
            )
        )


@calls("adaptive_max_pool2d", "adaptive_max_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def _adaptive(draw: Draw) -> Iterator[Call]:
    rank = _rank(draw)
    for shape in ((2, 3, *(7, 6, 5)[:rank]), (3, *(5, 4, 6)[:rank])):
        x = draw.distinct(*shape) if "max" in draw.row.operator else draw.tensor(*shape)
        for size in ([3] * rank, [1] * rank, [2, 7, 3][:rank]):
            yield Call((x, size))


@calls("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward")
def _adaptive_max_backward(draw: Draw) -> Iterator[Call]:
    rank = _rank(draw)
    forward = getattr(torch.ops.aten, draw.row.operator.removesuffix("_backward"))
    for shape in ((2, 3, *(7, 6, 5)[:rank]), (3, *(5, 4, 6)[:rank])):
        x = draw.distinct(*shape)
        values, indices = forward(x.double(), [3] * rank)
        yield Call((draw.tensor(*values.shape), x, indices))


@calls("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def _adaptive_average_backward(draw: Draw) -> Iterator[Call]:
    rank = _rank(draw)
    for lead, size in (((2, 3), [3] * rank), ((3,), [1] * rank), ((2, 2), [2, 7, 3][:rank])):
        yield Call((draw.tensor(*lead, *size), draw.tensor(*lead, *(7, 6, 5)[:rank])))


@calls("avg_pool2d", "avg_pool3d")
def _average(draw: Draw) -> Iterator[Call]:
    for x, kernel, stride, padding, _, ceil in _pools(draw, _rank(draw)):
        for counted, divisor in ((True, None), (False, None), (True, 3)):
            yield Call((x, kernel, stride, padding, ceil, counted, divisor))


@calls("avg_pool2d_backward", "avg_pool3d_backward")
def _average_backward(draw: Draw) -> Iterator[Call]:
    forward = getattr(torch.ops.aten, draw.row.operator.removesuffix("_backward"))
    for x, kernel, stride, padding, _, ceil in _pools(draw, _rank(draw)):
        for counted, divisor in ((True, None), (False, None), (True, 3)):
            rest = (kernel, stride, padding, ceil, counted, divisor)
            yield Call((draw.tensor(*forward(x.double(), *rest).shape), x, *rest))


@calls("max_unpool2d", "max_unpool3d")
def _unpool(draw: Draw) -> Iterator[Call]:
    rank = _rank(draw)
    pool = torch.ops.aten.max_pool2d_with_indices if rank == 2 else torch.ops.aten.max_pool3d_with_indices
    for lead in ((2, 3), (3,)):
        shape = (*lead, *(6, 4, 8)[:rank])
        values, indices = pool(torch.rand(shape, generator=draw.generator), [2] * rank)
        args: Arguments = (
            draw.tensor(*values.shape),
            draw.lay(indices) if draw.layout != "expanded" else indices,
        )
        args += (list(shape[-rank:]),)
        yield Call(args if rank == 2 else (*args, [2] * rank, [0] * rank))


@calls("fractional_max_pool2d", "fractional_max_pool3d")
def _fractional(draw: Draw) -> Iterator[Call]:
    rank = _rank(draw)
    for lead in ((2, 3), (3,)):
        points = draw.values((2, 3, rank)[-len(lead) - 1 :], draw.dtype, 0, 0.9375)
        points = points if len(lead) == 2 else points[None]
        for kernel, size in (([2] * rank, [3] * rank), ([3, 2, 1][:rank], [1, 4, 7][:rank])):
            yield Call((draw.distinct(*lead, *(7, 8, 9)[:rank]), kernel, size, draw.lay(points)))


@calls("fractional_max_pool2d_backward", "fractional_max_pool3d_backward")
def _fractional_backward(draw: Draw) -> Iterator[Call]:
    rank = _rank(draw)
    x = draw.distinct(2, 3, *[7] * rank)
    points = torch.rand((2, 3, rank), generator=draw.generator, dtype=torch.float64)
    forward = getattr(torch.ops.aten, draw.row.operator.removesuffix("_backward"))
    for size in ([3] * rank, [5, 2, 4][:rank]):  # the larger one's windows overlap
        values, indices = forward(x.double(), [2] * rank, size, points)
        yield Call((draw.tensor(*values.shape), x, [2] * rank, size, indices))


@calls("constant_pad_nd")
def _constant_pad(draw: Draw) -> Iterator[Call]:
    for shape, pads in (
        ((2, 3, 4, 5), ([1, 2], [1, 0, 2, 1], [-1, 2, 0, -1])),
        ((4, 6), ([3, 0, 0, 2],)),
        ((5,), ([2, 1], [-1, -1])),
    ):
        x = draw.tensor(*shape)
        for pad in pads:
            yield Call((x, pad, draw.number(1.5, 1)))


def _padded(draw: Draw) -> Iterator[tuple[torch.Tensor, list[int]]]:
    rank = _rank(draw)
    for lead in ((2, 3), (3,)):
        for pad in ([1, 2, 0, 1, 2, 2][: 2 * rank], [0] * 2 * rank, [3, 3, 3, 3, 3, 3][: 2 * rank]):
            yield draw.tensor(*lead, *(5, 4, 6)[:rank]), pad


@calls(*[f"{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)])
def _pad(draw: Draw) -> Iterator[Call]:
    for args in _padded(draw):
        yield Call(args)


@calls(*[f"{kind}_pad{rank}d_backward" for kind in ("reflection", "replication") for rank in (1, 2, 3)])
def _pad_backward(draw: Draw) -> Iterator[Call]:
    forward = getattr(torch.ops.aten, draw.row.operator.removesuffix("_backward"))
    for x, pad in _padded(draw):
        yield Call((draw.tensor(*forward(x.real.double(), pad).shape), x, pad))


@calls("flip")
def _flip(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(2, 3, 4, 5)
    for dims in ([0], [1, -1], [], [0, 1, 2, 3]):
        yield Call((x, dims))


@calls("roll")
def _roll(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(2, 3, 4, 5)
    for shifts, dims in (([1], [0]), ([-2, 7], [1, 3]), ([3], [])):
        yield Call((x, shifts, dims))


@calls("rot90")
def _rot90(draw: Draw) -> Iterator[Call]:
    for k in (0, 1, 2, -1):
        yield Call((draw.tensor(3, 4, 2), k, [0, 1]))


@calls("repeat")
def _repeat(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(2, 3), [2, 3]))
    yield Call((draw.tensor(3), [2, 1, 4]))
    yield Call((draw.tensor(2, 3), [0, 2]))
    yield Call((draw.tensor(), [3]))


@calls("tril", "triu")
def _triangle(draw: Draw) -> Iterator[Call]:
    for shape in ((4, 6), (2, 5, 3), (2, 3, 4, 4)):
        x = draw.tensor(*shape)
        for diagonal in (-1, 0, 2):
            yield Call((x, diagonal))


@calls("trace")
def _trace(draw: Draw) -> Iterator[Call]:
    for shape in ((4, 6), (5, 5), (0, 3)):
        yield Call((draw.tensor(*shape, low=-3, high=3),))


@calls("pixel_shuffle")
def _pixel_shuffle(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(2, 12, 3, 5), 2))
    yield Call((draw.tensor(9, 2, 2), 3))


@calls("pixel_unshuffle")
def _pixel_unshuffle(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(2, 3, 4, 6), 2))


@calls("channel_shuffle")
def _channel_shuffle(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(2, 6, 3, 5), 3))
    yield Call((draw.tensor(2, 4, 7), 2))


@calls("diag_embed")
def _diag_embed(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(2, 3),))
    yield Call((draw.tensor(2, 3), 1, 0, 2))


@calls("im2col")
def _im2col(draw: Draw) -> Iterator[Call]:
    for shape in ((2, 3, 6, 5), (3, 6, 5)):
        yield Call((draw.tensor(*shape), [2, 3], [1, 1], [1, 0], [1, 2]))
        yield Call((draw.tensor(*shape), [2, 2], [2, 1], [0, 1], [1, 1]))


@calls("col2im")
def _col2im(draw: Draw) -> Iterator[Call]:
    for lead in ((2,), ()):
        yield Call((draw.tensor(*lead, 12, 30, low=-3, high=3), [6, 7], [2, 2], [1, 1], [0, 0], [1, 1]))
        yield Call((draw.tensor(*lead, 12, 9, low=-3, high=3), [6, 6], [2, 2], [1, 1], [0, 0], [2, 2]))


def _resample(draw: Draw) -> Iterator[tuple[tuple[int, ...], list[int], Arguments]]:
    """Operand's sizes, output sizes, further arguments."""
    rank = _rank(draw)
    shape = (2, 3, *(5, 4, 6)[:rank])
    sizes = [[7, 9, 8][:rank], [3, 2, 4][:rank], [5, 4, 6][:rank], [1, 1, 1][:rank]]
    corners: Arguments = () if "nearest" in draw.row.operator else (True, False)
    for size in sizes:
        for corner in corners or (None,):
            yield shape, size, () if corner is None else (corner,)
    # PyTorch takes the scale as given, not as the quotient of the sizes
    scale = (False,) if corners else ()
    yield shape, [int(n * 1.5) for n in shape[2:]], (*scale, *[1.5] * rank)


_FILTERS = (
    [f"{head}{rank}d" for head in ("upsample_nearest", "_upsample_nearest_exact") for rank in (1, 2, 3)]
    + ["upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"]
    + ["_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"]
)


@calls(*_FILTERS)
def _upsample(draw: Draw) -> Iterator[Call]:
    for shape, size, rest in _resample(draw):
        # PyTorch's CPU fails its own assertion for one pixel of bytes
        if draw.floating or "nearest" in draw.row.operator or size != [1, 1]:
            yield Call((draw.tensor(*shape), size, *rest))


@calls(*[f"{name}_backward" for name in _FILTERS])
def _upsample_backward(draw: Draw) -> Iterator[Call]:
    for shape, size, rest in _resample(draw):
        yield Call((draw.tensor(*shape[:2], *size), size, list(shape), *rest))


@calls("affine_grid_generator")
def _affine_grid(draw: Draw) -> Iterator[Call]:
    yield Call((draw.tensor(2, 2, 3), [2, 3, 4, 5], True))
    yield Call((draw.tensor(2, 2, 3), [2, 3, 4, 5], False))


def _grids(draw: Draw) -> Iterator[Arguments]:
    """Image, grid, interpolation mode, padding mode, align_corners."""
    rank = _rank(draw)
    for mode, padding, corners in itertools.product(range(3 if rank == 2 else 2), range(3), (False, True)):
        x = draw.tensor(2, 3, *(5, 4, 6)[:rank], low=-2, high=2)
        yield x, draw.tensor(2, *(3, 4, 2)[:rank], rank, low=-1.75, high=1.75), mode, padding, corners
    if draw.plain:
        yield draw.tensor(0, 3, *[4] * rank), draw.tensor(0, *[2] * rank, rank), 0, 0, False


@calls("grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback")
def _grid_sampler(draw: Draw) -> Iterator[Call]:
    for args in _grids(draw):
        yield Call(args)


@calls("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def _grid_sampler_backward(draw: Draw) -> Iterator[Call]:
    for args in _grids(draw):
        grad = draw.tensor(args[0].shape[0], 3, *args[1].shape[1:-1], low=-2, high=2)
        yield Call((grad, *args, [True, True]))
    yield Call((grad, *args, [False, True]))


@calls("_grid_sampler_2d_cpu_fallback_backward")
def _grid_sampler_by_name(draw: Draw) -> Iterator[Call]:
    for args in _grids(draw):
        yield Call((draw.tensor(args[0].shape[0], 3, *args[1].shape[1:-1], low=-2, high=2), *args))
