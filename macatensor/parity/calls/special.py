"""Calls of special functions whose operands differ in meaning, and of operators on parts of an operand."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from macatensor.parity.calls.pointwise import pointwise
from macatensor.parity.draw import Call, Draw, calls


@calls("igamma", "igammac")
def _incomplete(draw: Draw) -> Iterator[Call]:
    # past 20 PyTorch's float64 is no reference; float32 results show the asymptotic series well enough
    high = 19.0 if draw.dtype is torch.float64 else 300.0
    for top in (2.0, 19.0, high):
        for shapes in (((5, 37), (5, 37)), ((4, 1, 5), (3, 1)), ((), (7,)), ((2, 3, 4, 5), (2, 3, 4, 5))):
            a, x = (draw.tensor(*shape, low=0.015625, high=top) for shape in shapes)
            yield Call((a, x))
    if draw.plain:
        close = draw.values((500,), torch.float64, 0.0625, high)
        yield Call((close.to(draw.dtype), (close * (1 + draw.uniform((500,), -0.2, 0.2))).to(draw.dtype)))
        ends = torch.tensor([0.0, -0.0, 1.0, 2.5, math.inf, -1.0, math.nan], dtype=draw.dtype)
        yield Call(tuple(torch.cartesian_prod(ends, ends).unbind(1)))
        yield Call((draw.tensor(0, 3, low=1, high=2), draw.tensor(3, low=1, high=2)))


@calls("_standard_gamma_grad")
def _gamma_samples(draw: Draw) -> Iterator[Call]:
    """Of one size, as derivatives call it."""
    for low, high in ((0.0625, 2.0), (0.0625, 9.0), (8.5, 100.0)):
        for shape in ((5, 37), (2, 3, 4, 5), (7,), ()):
            yield Call((draw.tensor(*shape, low=low, high=high), draw.tensor(*shape, low=low, high=high)))


@calls("_dirichlet_grad")
def _dirichlet_samples(draw: Draw) -> Iterator[Call]:
    for top in (0.75, 4.0, 60.0):  # small: near the ends of (0, 1); large: the saddle point
        for shape in ((5, 37), (2, 3, 4, 5), (7,)):
            alpha = draw.tensor(*shape, low=0.25, high=top)
            yield Call((draw.tensor(*shape, low=0.03125, high=0.96875), alpha, draw.lay(alpha * 2.5)))


@calls("polygamma")
def _polygamma(draw: Draw) -> Iterator[Call]:
    for n in (0, 1, 2, 3, 4, 7, 20):
        # no root of the digamma function within
        yield Call((n, draw.tensor(5, 37, low=1.75 if n == 0 else 0.125, high=50)))
        yield Call((n, draw.tensor(2, 3, 4, 5, low=2, high=6)))
    if draw.plain and draw.floating:
        yield Call((2, torch.tensor([0.0, -0.0, -1.0, -3.0, math.nan, 1.0], dtype=draw.dtype)))
        yield Call((1, draw.tensor(0, 3, low=1, high=2)))


def _degrees(draw: Draw, *shape: int) -> torch.Tensor:
    return draw.lay(draw.integers(shape, 0, 12).to(draw.dtype))


@calls(
    *(f"special_{shift}chebyshev_polynomial_{kind}" for shift in ("", "shifted_") for kind in "tuvw"),
    "special_hermite_polynomial_h",
    "special_hermite_polynomial_he",
    "special_laguerre_polynomial_l",
    "special_legendre_polynomial_p",
)
def _polynomial(draw: Draw) -> Iterator[Call]:
    """In float64 past the last root, where no two ways of adding up cancel differently."""
    name = draw.row.operator
    if draw.dtype is not torch.float64:
        low, high = -2.0, 2.0
    elif "hermite" in name:
        low, high = 7.0, 11.0
    else:
        low, high = (-3.0, -0.0625) if "laguerre" in name else (1.0625, 3.0)

    def x(*shape: int) -> torch.Tensor:
        return draw.tensor(*shape, low=low, high=high)

    number = 3 if not draw.floating else 1.5 if high < 5 else 8.5
    if draw.row.name.endswith("x_scalar"):
        yield Call((-0.5 if "laguerre" in name and draw.floating else number, _degrees(draw, 5, 37)))
        yield Call((number if "laguerre" not in name else -1, _degrees(draw, 2, 3, 4, 5)))
        return
    if draw.row.name.endswith("n_scalar"):
        for n in (0, 1, 2, 5, 11, -1):
            yield Call((x(5, 37), n))
        return
    for shapes in (((5, 37), (5, 37)), ((4, 1, 5), (3, 1)), ((), (7,)), ((2, 3, 4, 5), (2, 3, 4, 5))):
        yield Call((x(*shapes[0]), _degrees(draw, *shapes[1])))
    if draw.plain and draw.floating:
        ends = torch.tensor([1.0, -1.0, 0.0, math.inf, math.nan], dtype=draw.dtype)
        yield Call((ends.repeat_interleave(3), torch.tensor([0.0, 1.0, 2.0], dtype=draw.dtype).repeat(5)))
        yield Call((x(0, 3), _degrees(draw, 3)))


@calls("frexp.Tensor")
def _frexp(draw: Draw) -> Iterator[Call]:
    yield from pointwise(draw)


@calls("glu")
def _glu(draw: Draw) -> Iterator[Call]:
    for shape, dim in (((4, 6), -1), ((4, 6), 0), ((2, 4, 6, 5), 1), ((2, 4, 6, 5), 2), ((8,), 0)):
        yield Call((draw.tensor(*shape, low=-20, high=20), dim))
    if draw.plain:
        yield Call((draw.tensor(0, 4), 1))
        yield Call((draw.tensor(30, 1002, low=-8, high=8), 1))


def _halved(shape: tuple[int, ...], dim: int) -> list[int]:
    """The sizes of a glu's result."""
    sizes = list(shape)
    sizes[dim] //= 2
    return sizes


@calls("glu_backward")
def _glu_backward(draw: Draw) -> Iterator[Call]:
    for shape, dim in (((4, 6), -1), ((4, 6), 0), ((2, 4, 6, 5), 1), ((2, 4, 6, 5), 2), ((8,), 0)):
        halved = _halved(shape, dim)
        # 1 - sigmoid cancels for large gates
        yield Call((draw.tensor(*halved, low=-2, high=2), draw.tensor(*shape, low=-4, high=1), dim))


@calls("glu_backward_jvp")
def _glu_backward_jvp(draw: Draw) -> Iterator[Call]:
    for shape, dim in (((4, 6), -1), ((4, 6), 0), ((2, 4, 6, 5), 1), ((8,), 0)):
        halved = _halved(shape, dim)
        x, dx = draw.tensor(*shape, low=-2, high=2), draw.tensor(*shape, low=-2, high=2)
        grad, dgrad = draw.tensor(*halved, low=-2, high=2), draw.tensor(*halved, low=-2, high=2)
        yield Call((torch.ops.aten.glu_backward.default(grad, x, dim), grad, x, dgrad, dx, dim))


@calls("glu_jvp")
def _glu_jvp(draw: Draw) -> Iterator[Call]:
    for shape, dim in (((4, 6), -1), ((4, 6), 0), ((2, 4, 6, 5), 1), ((8,), 0)):
        x = draw.tensor(*shape, low=-2, high=2)
        halved = _halved(shape, dim)
        yield Call((draw.tensor(*halved, low=-2, high=2), x, draw.tensor(*shape, low=-2, high=2), dim))
