"""Calls of linear algebra: matrices whose condition is known, so that the bounds mean the kernel."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from macatensor.parity.draw import Call, Draw, calls

Tensor = torch.Tensor


def _lay(draw: Draw, values: Tensor) -> Tensor:
    """In the draw's layout; only batches are expanded, since a matrix of equal rows is singular."""
    if draw.layout != "expanded":
        return draw.lay(values)
    if values.dim() < 3 or values.shape[0] < 2:
        return values
    draw.moved = True
    return values[:1].clone().expand(values.shape)


def _random(draw: Draw, *shape: int) -> Tensor:
    return draw.values(shape, draw.dtype, -1, 1)


def _regular(draw: Draw, *shape: int) -> Tensor:
    """Far from singular, with its large elements beside the diagonal: pivots have something to do."""
    n = shape[-1]
    return _random(draw, *shape) + n * torch.eye(n, dtype=draw.dtype).roll(1, 0)


def _spread(draw: Draw, *shape: int) -> Tensor:
    """Singular values and eigenvalues apart from each other, so that vectors are well determined."""
    rows, columns = shape[-2:]
    diagonal = torch.zeros(rows, columns, dtype=draw.dtype)
    for k in range(min(rows, columns)):
        diagonal[k, k] = 3 * (k + 1)
    return _random(draw, *shape) / 2 + diagonal


def _hermitian(draw: Draw, *shape: int) -> Tensor:
    a = _spread(draw, *shape)
    return (a + a.mH) / 2


def _positive(draw: Draw, *shape: int) -> Tensor:
    a = _random(draw, *shape)
    return (a @ a.mH + torch.eye(shape[-1], dtype=draw.dtype)).to(draw.dtype)


def _triangle(draw: Draw, upper: bool, *shape: int) -> Tensor:
    a = _random(draw, *shape) + shape[-1] * torch.eye(shape[-1], dtype=draw.dtype)
    return a.triu() if upper else a.tril()


def _squares(draw: Draw) -> Iterator[tuple[int, ...]]:
    yield (4, 4)
    yield (3, 5, 5)
    if draw.plain:
        yield (7, 7)
        yield (1, 1)
        yield (2, 3, 2, 2)
        yield (0, 0)
        yield (0, 3, 3)
        yield (2, 0, 0)


def _rectangles(draw: Draw) -> Iterator[tuple[int, ...]]:
    yield (5, 3)
    yield (2, 3, 5)
    if draw.plain:
        yield (4, 4)
        yield (6, 1)
        yield (0, 3, 2)
        yield (0, 3)
        yield (3, 0)


@calls("linalg_cholesky_ex", "cholesky")
def _cholesky(draw: Draw) -> Iterator[Call]:
    for shape in _squares(draw):
        for upper in (False, True):
            named = draw.row.operator != "cholesky"
            a = _lay(draw, _positive(draw, *shape))
            yield Call((a,), {"upper": upper}) if named else Call((a, upper))
    if draw.plain and draw.row.operator == "linalg_cholesky_ex":
        a = _positive(draw, 2, 3, 3)
        a[1, 0, 0] = -1  # not positive definite from the first minor on: info is 1
        yield Call((a[:, :1, :1],))


@calls("cholesky_inverse")
def _cholesky_inverse(draw: Draw) -> Iterator[Call]:
    for shape in _squares(draw):
        for upper in (False, True):
            yield Call((_lay(draw, _triangle(draw, upper, *shape)), upper))


@calls("_cholesky_solve_helper")
def _cholesky_solve(draw: Draw) -> Iterator[Call]:
    for shape in _squares(draw):
        for upper in (False, True):
            b = _lay(draw, _random(draw, *shape[:-1], 3))
            yield Call((b, _lay(draw, _triangle(draw, upper, *shape)), upper))


@calls("linalg_ldl_factor_ex")
def _ldl_factor(draw: Draw) -> Iterator[Call]:
    for shape in _squares(draw):
        for hermitian in (False, True):
            yield Call((_lay(draw, _hermitian(draw, *shape)),), {"hermitian": hermitian})


@calls("linalg_ldl_solve")
def _ldl_solve(draw: Draw) -> Iterator[Call]:
    for shape in _squares(draw):
        if 0 in shape:
            continue
        for hermitian in (False, True):
            a = _hermitian(draw, *shape)
            packed, pivots, _ = torch.linalg.ldl_factor_ex(a, hermitian=hermitian)
            b = _lay(draw, _random(draw, *shape[:-1], 2))
            yield Call((_lay(draw, packed), draw.lay(pivots, written=True), b), {"hermitian": hermitian})


@calls("linalg_lu_factor_ex", "linalg_lu")
def _lu(draw: Draw) -> Iterator[Call]:
    for shape in _rectangles(draw):
        yield Call((_lay(draw, _spread(draw, *shape).roll(1, -2)),))
    for shape in _squares(draw):
        yield Call((_lay(draw, _regular(draw, *shape)),))


@calls("lu_unpack")
def _lu_unpack(draw: Draw) -> Iterator[Call]:
    for shape in _rectangles(draw):
        packed, pivots = torch.linalg.lu_factor(_random(draw, *shape))
        for data, order in ((True, True), (True, False), (False, True)):
            yield Call((_lay(draw, packed), draw.lay(pivots, written=True), data, order))


@calls("linalg_lu_solve")
def _lu_solve(draw: Draw) -> Iterator[Call]:
    for shape in _squares(draw):
        packed, pivots = torch.linalg.lu_factor(_regular(draw, *shape))
        for left in (True, False):
            for adjoint in (True, False):
                sides = (*shape[:-1], 3) if left else (*shape[:-2], 3, shape[-1])
                b = _lay(draw, _random(draw, *sides))
                yield Call(
                    (_lay(draw, packed), draw.lay(pivots, written=True), b),
                    {"left": left, "adjoint": adjoint},
                )


@calls("linalg_inv_ex", "_linalg_det", "_linalg_slogdet")
def _of_regular(draw: Draw) -> Iterator[Call]:
    for shape in _squares(draw):
        yield Call((_lay(draw, _regular(draw, *shape)),))


@calls("linalg_matrix_exp")
def _matrix_exp(draw: Draw) -> Iterator[Call]:
    for shape in _squares(draw):
        for size in (0.1, 0.5, 2.0):  # at norms near 0.02 PyTorch's own is off by 1e-13
            yield Call((_lay(draw, _random(draw, *shape) * size),))


@calls("_linalg_solve_ex")
def _solve(draw: Draw) -> Iterator[Call]:
    for shape in _squares(draw):
        a = _lay(draw, _regular(draw, *shape))
        for left in (True, False):
            sides = (*shape[:-1], 3) if left else (*shape[:-2], 3, shape[-1])
            yield Call((a, _lay(draw, _random(draw, *sides))), {"left": left})
        yield Call((a, _lay(draw, _random(draw, *shape[:-1]))))
    if draw.plain:
        yield Call((_regular(draw, 3, 3), _random(draw, 4, 3, 2)))
        yield Call((_regular(draw, 2, 1, 3, 3), _random(draw, 4, 3, 2)))


@calls("linalg_solve_triangular")
def _solve_triangular(draw: Draw) -> Iterator[Call]:
    for shape in _squares(draw):
        for upper in (True, False):
            a = _lay(draw, _triangle(draw, upper, *shape))
            for left in (True, False):
                sides = (*shape[:-1], 3) if left else (*shape[:-2], 3, shape[-1])
                yield Call((a, _lay(draw, _random(draw, *sides))), {"upper": upper, "left": left})
        small = _triangle(draw, True, *shape) / 8
        yield Call(
            (_lay(draw, small), _lay(draw, _random(draw, *shape))), {"upper": True, "unitriangular": True}
        )
    if draw.plain:
        yield Call((_triangle(draw, True, 3, 3), _random(draw, 2, 3, 2)), {"upper": True})


@calls("triangular_solve")
def _triangular_solve(draw: Draw) -> Iterator[Call]:
    for shape in _squares(draw):
        for upper in (True, False):
            for transpose in (True, False):
                a = _lay(draw, _triangle(draw, upper, *shape))
                yield Call((_lay(draw, _random(draw, *shape[:-1], 3)), a, upper, transpose))


@calls("linalg_qr")
def _qr(draw: Draw) -> Iterator[Call]:
    for shape in _rectangles(draw):
        for mode in ("reduced", "complete", "r"):
            yield Call((_lay(draw, _spread(draw, *shape)), mode))


@calls("geqrf")
def _geqrf(draw: Draw) -> Iterator[Call]:
    for shape in _rectangles(draw):
        if 0 not in shape:
            yield Call((_lay(draw, _spread(draw, *shape)),))


def _reflectors(draw: Draw, *shape: int) -> tuple[Tensor, Tensor]:
    a, tau = torch.geqrf(_spread(draw, *shape))
    return _lay(draw, a), _lay(draw, tau)


@calls("linalg_householder_product")
def _householder(draw: Draw) -> Iterator[Call]:
    for shape in ((5, 3), (2, 4, 4), (3, 6, 2)):
        yield Call(_reflectors(draw, *shape))
    if draw.plain:
        a, tau = _reflectors(draw, 5, 4)
        yield Call((a, tau[:2]))


@calls("ormqr")
def _ormqr(draw: Draw) -> Iterator[Call]:
    for shape in ((5, 3), (2, 4, 4)):
        for left in (True, False):
            for transpose in (True, False):
                sides = (shape[-2], 2) if left else (2, shape[-2])
                c = _lay(draw, _random(draw, *shape[:-2], *sides))
                yield Call((*_reflectors(draw, *shape), c, left, transpose))


@calls("_linalg_eigh")
def _eigh(draw: Draw) -> Iterator[Call]:
    for shape in _squares(draw):
        for triangle in ("L", "U"):
            yield Call((_lay(draw, _hermitian(draw, *shape)), triangle, True))
        yield Call((_lay(draw, _hermitian(draw, *shape)), "L", False))


@calls("linalg_eig")
def _eig(draw: Draw) -> Iterator[Call]:
    for shape in _squares(draw):
        yield Call((_lay(draw, _spread(draw, *shape)),))
    turned = _spread(draw, 4, 4)
    turned[0, 1], turned[1, 0] = 8, -8  # a pair of conjugate eigenvalues
    yield Call((_lay(draw, turned),))


@calls("_linalg_svd")
def _svd(draw: Draw) -> Iterator[Call]:
    for shape in ((4, 3), (2, 3, 4), *_squares(draw)):
        for full in (False, True):
            yield Call((_lay(draw, _spread(draw, *shape)), full, True))
        yield Call((_lay(draw, _spread(draw, *shape)), False, False))
    if draw.plain:
        yield Call((_spread(draw, 6, 2), False, True))
        yield Call((_spread(draw, 0, 3), True, True))
        yield Call((_spread(draw, 3, 0), True, True))


@calls("linalg_lstsq")
def _lstsq(draw: Draw) -> Iterator[Call]:
    for shape in ((5, 3), (2, 3, 5), (2, 4, 4)):
        for driver in (None, "gels", "gelsy", "gelsd", "gelss"):
            a, b = _spread(draw, *shape), _random(draw, *shape[:-1], 2)
            yield Call((_lay(draw, a), _lay(draw, b)), {"driver": driver})
    if draw.plain:
        yield Call((_spread(draw, 5, 3), _random(draw, 5)), {"driver": "gelsd"})
        yield Call((_spread(draw, 2, 1, 5, 3), _random(draw, 2, 4, 5, 2)), {"driver": "gelss"})
        flat = _spread(draw, 5, 3)
        flat[:, 2] = 0  # rank 2: no residuals
        yield Call((flat, _random(draw, 5, 2)), {"driver": "gelsd"})


@calls("linalg_pinv.atol_rtol_tensor")
def _pinv(draw: Draw) -> Iterator[Call]:
    for shape in ((5, 3), (2, 3, 5)):
        yield Call((_lay(draw, _spread(draw, *shape)),))
        limit = torch.tensor(4.0, dtype=draw.dtype)
        yield Call((_lay(draw, _spread(draw, *shape)),), {"atol": limit})
    yield Call((_lay(draw, _hermitian(draw, 4, 4)),), {"hermitian": True})


@calls("_linalg_check_errors")
def _check_errors(draw: Draw) -> Iterator[Call]:
    if draw.plain:
        yield Call((torch.zeros(3, dtype=torch.int32), "linalg.inv"), {"is_matrix": False})
        yield Call((torch.zeros((), dtype=torch.int32), "linalg.svd"), {"is_matrix": True})


@calls("renorm")
def _renorm(draw: Draw) -> Iterator[Call]:
    for p, dim, limit in ((2, 0, 1.5), (1, 1, 2), (0.5, -1, 3), (float("inf"), 0, 0.5), (2, 1, 100)):
        yield Call((draw.tensor(3, 4, 5, low=-1, high=1), p, dim, limit))
    if draw.plain:
        yield Call((torch.zeros(2, 3, dtype=draw.dtype), 2, 0, 1.0))


@calls("linalg_cross")
def _cross(draw: Draw) -> Iterator[Call]:
    # never expanded along the vectors: of parallel ones nothing is left but how PyTorch's loop was compiled
    def vectors(*shape: int) -> Tensor:
        return _lay(draw, draw.values(shape, draw.dtype, -3, 3))

    yield Call((vectors(2, 4, 3), vectors(2, 4, 3)))
    yield Call((vectors(2, 3, 4), vectors(1, 3, 4)), {"dim": 1})
    if draw.layout != "expanded":
        yield Call((vectors(3, 2, 5), vectors(3, 2, 5)), {"dim": 0})
    if draw.plain:
        yield Call((vectors(0, 3), vectors(0, 3)))
        yield Call((vectors(20000, 3), vectors(20000, 3)))


_ORDERS = (2.0, 0.0, 1.0, 1.5, 3.0, float("inf"))


def _points(draw: Draw, whole: bool, *shape: int) -> Tensor:
    """Of whole coordinates distances in these norms are exact: at their kinks no rounding decides."""
    if whole:
        return draw.lay(draw.integers(shape, -9, 10).to(draw.dtype))
    return draw.lay(draw.values(shape, draw.dtype, -2, 2))


@calls("_cdist_forward", "_euclidean_dist")
def _cdist(draw: Draw) -> Iterator[Call]:
    euclidean = draw.row.operator == "_euclidean_dist"
    for p in (2.0,) if euclidean else _ORDERS:
        whole = p in (0.0, float("inf"))
        rest = () if euclidean else (p, None)
        x, y = _points(draw, whole, 4, 3), _points(draw, whole, 5, 3)
        yield Call((x + 4 if euclidean else x, y, *rest))
        if not euclidean:
            yield Call((_points(draw, whole, 2, 3, 20), _points(draw, whole, 2, 4, 20), *rest))
            if draw.plain:
                yield Call((_points(draw, whole, 2, 3, 4), _points(draw, whole, 5, 4), *rest))
                yield Call((_points(draw, whole, 2, 3, 0), _points(draw, whole, 2, 5, 0), *rest))
                yield Call((_points(draw, whole, 0, 3), _points(draw, whole, 5, 3), *rest))


@calls("_cdist_backward")
def _cdist_backward(draw: Draw) -> Iterator[Call]:
    for p in _ORDERS:
        whole = p in (0.0, 1.0, float("inf"))
        for batch in ((), (2,)):
            x, y = _points(draw, whole, *batch, 4, 3), _points(draw, whole, *batch, 5, 3)
            apart = torch.cdist(x.double(), y.double(), p, "donot_use_mm_for_euclid_dist").to(draw.dtype)
            # PyTorch's kernel takes row-major memory for granted
            yield Call((_random(draw, *batch, 4, 5), x.contiguous(), y.contiguous(), p, apart))


@calls("_pdist_forward")
def _pdist(draw: Draw) -> Iterator[Call]:
    for p in _ORDERS:
        whole = p in (0.0, float("inf"))
        yield Call((_points(draw, whole, 5, 3).contiguous(), p))
        if draw.plain:
            yield Call((_points(draw, whole, 3, 40), p))
            yield Call((_points(draw, whole, 1, 4), p))
            yield Call((_points(draw, whole, 3, 0), p))


@calls("_pdist_backward")
def _pdist_backward(draw: Draw) -> Iterator[Call]:
    for p in _ORDERS:
        whole = p in (0.0, 1.0, float("inf"))
        x = _points(draw, whole, 5, 3).contiguous()
        apart = torch.nn.functional.pdist(x.double(), p).to(draw.dtype)
        yield Call((_random(draw, 10), x, p, apart))
