"""Linear algebra: factors multiply to their matrix, refusals are PyTorch's, non-finite matrices end."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from running import threads_restored

import macatensor

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
L = torch.linalg


@pytest.fixture(autouse=True)
def nothing_on_the_host() -> Any:
    with macatensor.fallback("error"):
        yield


def random(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, dtype=dtype, generator=generator)


def on_device(t: torch.Tensor) -> torch.Tensor:
    return t.to("maca")


def close(ours: torch.Tensor, theirs: torch.Tensor, factor: float = 100) -> None:
    eps = torch.finfo(theirs.dtype).eps * factor
    torch.testing.assert_close(ours.cpu(), theirs, rtol=eps, atol=eps * float(theirs.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(40, 40), (3, 7, 4), (2, 2, 4, 7)], ids=str)
def test_factors_multiply_to_the_matrix(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    a = random(*shape, dtype=dtype)
    x = on_device(a)
    q, r = L.qr(x)
    close(q @ r, a)
    p, lower, upper = L.lu(x)
    close(p @ lower @ upper, a)
    for full in (True, False):
        u, s, vh = L.svd(x, full_matrices=full)
        k = s.shape[-1]
        close((u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :], a)
        close(u.mH @ u, torch.eye(u.shape[-1], dtype=dtype).expand(*shape[:-2], -1, -1))
        close(vh @ vh.mH, torch.eye(vh.shape[-2], dtype=dtype).expand(*shape[:-2], -1, -1))
    if shape[-1] == shape[-2]:
        w, v = L.eig(x)
        close(x.to(v.dtype) @ v, (v * w.unsqueeze(-2)).cpu(), 1000)
        h = a + a.mH
        w, v = L.eigh(on_device(h))
        close((v * w.unsqueeze(-2)) @ v.mH, h)
        positive = a @ a.mH + torch.eye(shape[-1], dtype=dtype)
        lower = L.cholesky(on_device(positive))
        close(lower @ lower.mH, positive)
        close(x @ L.inv(x), torch.eye(shape[-1], dtype=dtype), 10000)


# of less than a block of reflections, of several, and of columns beyond the last
REFLECTED = [(1, 1), (9, 9), (17, 40), (65, 65), (130, 63), (63, 130)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", REFLECTED, ids=str)
@pytest.mark.parametrize("kind", ["random", "of rank 1", "tiny", "huge", "zero"])
def test_reflections_are_backward_stable(kind: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    scale = {"tiny": 8 * limits.tiny, "huge": limits.max**0.9, "zero": 0.0}.get(kind, 1.0)
    a = random(*shape, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    a = a[:, :1] @ a[:1] if kind == "of rank 1" else a
    a = (a * scale).to(dtype)
    exact, bound = a.to(torch.complex128), 4 * (max(shape) + 4) * limits.eps
    for mode in ("reduced", "complete"):
        q, r = (t.cpu().to(torch.complex128) for t in L.qr(on_device(a), mode=mode))
        assert torch.equal(r, r.triu())
        assert (q @ r - exact).abs().max() <= bound * exact.abs().max()
        assert (q.mH @ q - torch.eye(q.shape[1])).abs().max() <= bound
    packed, tau = torch.geqrf(on_device(a))
    theirs, their_tau = torch.geqrf(a)
    if kind == "random" and not dtype.is_complex:  # MKL's last complex diagonal is real at some sizes only
        close(packed, theirs, 40 * max(shape))
        close(tau, their_tau, 40 * max(shape))
    for left, transpose in itertools.product((True, False), repeat=2):
        c = random(*((shape[0], 5) if left else (5, shape[0])), dtype=dtype)
        ours = torch.ormqr(packed, tau, on_device(c), left=left, transpose=transpose)
        close(ours, torch.ormqr(packed.cpu(), tau.cpu(), c, left=left, transpose=transpose), 8 * max(shape))
    if shape[0] >= shape[1]:
        want = L.householder_product(packed.cpu(), tau.cpu())
        close(L.householder_product(packed, tau), want, 8 * max(shape))


def test_nan_does_not_reach_earlier_rows() -> None:
    a = random(70, 70)
    a[5, 9] = torch.nan
    assert torch.equal(L.qr(on_device(a), mode="r").R.isnan().cpu(), L.qr(a, mode="r").R.isnan())


@pytest.mark.parametrize("size", [60, 100])  # smaller ones are one piece of work
def test_threads_do_not_show(size: int) -> None:
    a = on_device(random(8, size, size))
    calls: list[Callable[[], Any]] = [
        lambda: L.inv(a), lambda: L.svd(a), lambda: L.eigh(a), lambda: L.qr(a), lambda: L.det(a),
        lambda: L.matrix_exp(a), lambda: torch.cdist(a, a, 3.0), lambda: L.lstsq(a, a, driver="gelsd"),
    ]  # fmt: skip
    for call in calls:
        found = []
        for count in (1, 2):
            with threads_restored(count):
                result = call()
                found.append([t.cpu() for t in ((result,) if isinstance(result, torch.Tensor) else result)])
        assert all(torch.equal(one, two) for one, two in zip(*found))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_do_not_show_in_one_matrix(dtype: torch.dtype) -> None:
    a = on_device(random(300, 300, dtype=dtype) + 100 * torch.eye(300, dtype=dtype))
    b = on_device(random(300, 270, dtype=dtype))
    found = []
    for count in (1, 2):
        with threads_restored(count):
            lu, pivots = L.lu_factor(a)
            results = [lu, pivots, L.solve(a, b), L.inv(a), L.solve_triangular(a, b, upper=True), *L.qr(a)]
            found.append([t.cpu() for t in results])
    assert all(torch.equal(one, two) for one, two in zip(*found))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(600, 600), (513, 700), (700, 520)], ids=str)
def test_panels_factored_ahead(shape: tuple[int, int], dtype: torch.dtype) -> None:
    a = random(*shape, dtype=dtype)
    a[:, 400] = 0  # in a panel that another thread factors
    found = []
    for count in (1, 2):
        with threads_restored(count):
            found.append([t.cpu() for t in L.lu_factor_ex(on_device(a))])
    assert all(torch.equal(one, two) for one, two in zip(*found))
    lu, pivots, info = found[0]
    assert info == L.lu_factor_ex(a).info == 401
    p, lower, upper = torch.lu_unpack(lu, pivots)
    assert lower.abs().max() < 1.5  # of complex numbers LAPACK compares the sum of both parts
    close(p @ lower @ upper, a, max(shape))


SINGULAR: list[Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]] = [
    lambda d: L.inv(d(torch.zeros(2, 2))), lambda d: L.inv(d(torch.zeros(3, 2, 2))),
    lambda d: L.inv_ex(d(torch.zeros(2, 2)), check_errors=True), lambda d: L.solve(d(torch.zeros(2, 2)), d(torch.ones(2))),
    lambda d: L.solve_ex(d(torch.zeros(2, 2)), d(torch.ones(2)), check_errors=True),
    lambda d: L.cholesky(d(-torch.eye(3))), lambda d: L.cholesky_ex(d(-torch.eye(3)), check_errors=True),
    lambda d: torch.cholesky(d(torch.stack([torch.eye(2), -torch.eye(2)]))), lambda d: torch.cholesky_inverse(d(torch.zeros(2, 2))),
    lambda d: L.lu_factor(d(torch.zeros(2, 2))), lambda d: L.lu_factor_ex(d(torch.zeros(2, 2)), check_errors=True),
    lambda d: L.ldl_factor(d(torch.zeros(2, 2))), lambda d: L.tensorinv(d(torch.zeros(2, 2)), ind=1),
    lambda d: L.svd(d(torch.full((2, 2), torch.nan))), lambda d: L.lstsq(d(torch.eye(3, 2) * torch.tensor([1.0, 0])), d(torch.ones(3, 1)), driver="gels"),
    lambda d: L.eig(d(torch.full((2, 2), torch.nan))), lambda d: L.eig(d(torch.full((2, 2), torch.inf))),
    lambda d: L.lu_factor(d(torch.eye(2)), pivot=False), lambda d: L.svd(d(torch.eye(2)), driver="gesvd"),
    lambda d: L.lstsq(d(torch.eye(2)), d(torch.eye(2)), driver="nope"), lambda d: L.lstsq(d(torch.eye(2)), d(torch.ones(3, 1))),
    lambda d: L.qr(d(torch.eye(2)), mode="nope"), lambda d: L.eigh(d(torch.eye(2)), UPLO="X"),
    lambda d: L.cross(d(torch.ones(2, 4)), d(torch.ones(2, 4))), lambda d: torch.geqrf(d(torch.ones(3))),
    lambda d: torch.cdist(d(torch.ones(2, 3)), d(torch.ones(2, 4))), lambda d: torch.cdist(d(torch.ones(2, 3)), d(torch.ones(2, 3)), p=-1.0),
    lambda d: torch.renorm(d(torch.ones(2, 3)), -1.0, 0, 1.0), lambda d: torch.renorm(d(torch.ones(2, 3)), 2.0, 2, 1.0),
    lambda d: torch.nn.functional.pdist(d(torch.ones(3))), lambda d: L.solve(d(torch.eye(3)), d(torch.ones(2, 1))),
    lambda d: L.solve_triangular(d(torch.eye(3)), d(torch.ones(2, 1)), upper=True),
]  # fmt: skip


def outcome(call: Callable[..., Any], move: Callable[[torch.Tensor], torch.Tensor]) -> Exception | None:
    try:
        call(move)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("position", range(len(SINGULAR)))
@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
def test_refusals_are_the_hosts(position: int) -> None:
    theirs = outcome(SINGULAR[position], lambda t: t)
    ours = outcome(SINGULAR[position], on_device)
    assert theirs is not None
    assert type(ours) is type(theirs), (ours, theirs)
    assert str(ours).split("\n")[0] == str(theirs).split("\n")[0]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
def test_non_finite_matrices_end(value: float, dtype: torch.dtype) -> None:
    a = torch.eye(5, dtype=dtype)
    a[0, 1] = a[1, 0] = value
    x, tall = on_device(a), on_device(a[:, :3].contiguous())
    for call in (L.eigh, L.eigvalsh, L.svd, L.svdvals, L.eig, L.eigvals, L.cholesky_ex, L.lu_factor_ex, L.qr,
                 L.matrix_exp, L.ldl_factor_ex, L.inv_ex, L.det, L.slogdet, torch.cholesky_inverse):  # fmt: skip
        outcome(lambda _, call=call: call(x), on_device)
    for driver in ("gels", "gelsy", "gelsd", "gelss"):
        error = outcome(lambda _, driver=driver: L.lstsq(tall, tall, driver=driver), on_device)
        assert isinstance(error, RuntimeError)
    assert L.cholesky_ex(x).info.item() == 2


def test_pivots_from_outside_are_checked() -> None:
    factors, right = on_device(torch.eye(3)), on_device(torch.ones(3, 1))
    for pivots in ([1, 2, 9], [0, 1, 2], [-1, 2, 3]):
        wrong = on_device(torch.tensor(pivots, dtype=torch.int32))
        with pytest.raises(RuntimeError, match="pivots"):
            L.lu_solve(factors, wrong, right)
        with pytest.raises(RuntimeError, match="pivots"):
            torch.lu_unpack(factors, wrong)
    for pivots in ([1, 2, -3], [-1, -2, 3], [0, 1, 2], [7, 1, 1]):
        with pytest.raises(RuntimeError, match="pivots"):
            L.ldl_solve(factors, on_device(torch.tensor(pivots, dtype=torch.int32)), right)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_ranks_given_by_out(mode: Callable[[], Any]) -> None:
    """PyTorch's own writes nothing to it."""
    matrices = torch.stack([torch.eye(3), torch.zeros(3, 3), torch.ones(3, 3)])
    with mode():
        ours = matrices.maca()
        for words in (
            {},
            {"tol": 0.5},
            {"tol": maca_of(0.5)},
            {"atol": 0.5},
            {"atol": maca_of(0.5), "rtol": maca_of(0.1)},
        ):
            for out in (torch.empty(3, dtype=torch.int64, device="maca"), torch.empty(0, device="maca")):
                assert L.matrix_rank(ours, out=out, **words) is out and out.tolist() == [3, 0, 1]
        with pytest.raises(
            RuntimeError, match="safely castable from Long dtype, but got result with dtype Bool"
        ):
            L.matrix_rank(ours, out=torch.empty(3, dtype=torch.bool, device="maca"))


def maca_of(number: float) -> torch.Tensor:
    return torch.tensor(number).maca()


def test_results_given_by_out() -> None:
    a = on_device(random(3, 3))
    u, s, vh = (torch.empty(0, dtype=torch.float64, device="maca") for _ in range(3))
    found = L.svd(a, out=(u, s, vh))
    assert found[0] is u and torch.allclose((u * s) @ vh, a)
    inverse = torch.empty(3, 3, dtype=torch.float64, device="maca")
    assert L.inv(a, out=inverse) is inverse
    assert torch.allclose(a @ inverse, on_device(torch.eye(3, dtype=torch.float64)))
    solution, residuals, values = (torch.empty(0, dtype=torch.float64, device="maca") for _ in range(3))
    rank = torch.empty(0, dtype=torch.int64, device="maca")
    L.lstsq(a, a, out=(solution, residuals, rank, values))
    assert (
        torch.allclose(solution, on_device(torch.eye(3, dtype=torch.float64)), atol=1e-10)
        and rank.item() == 3
    )


def positive(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mH + 2 * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


# functions that phases of vectors leave alone
GRADIENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "inv": lambda x: L.inv(x), "det": lambda x: L.det(x), "slogdet": lambda x: L.slogdet(x)[1],
    "solve": lambda x: L.solve(x, x.mT[..., :2]), "solve_right": lambda x: L.solve(x, x.mT[..., :2, :], left=False),
    "cholesky": lambda x: L.cholesky(positive(x)), "cholesky_solve": lambda x: torch.cholesky_solve(x, L.cholesky(positive(x))),
    "cholesky_inverse": lambda x: torch.cholesky_inverse(L.cholesky(positive(x))),
    "lu": lambda x: L.lu(x)[1] @ L.lu(x)[2].mT, "lu_solve": lambda x: L.lu_solve(*L.lu_factor(x), x.mT, adjoint=True),
    "solve_triangular": lambda x: L.solve_triangular(x.triu(), x.mT, upper=True),
    "qr": lambda x: sum(L.qr(x)).abs(), "qr_tall": lambda x: L.qr(x[..., :2]).R.abs(),
    "eigvalsh": lambda x: L.eigvalsh(x + x.mH), "eigh": lambda x: L.eigh(x + x.mH).eigenvectors.abs(),
    "eig": lambda x: L.eig(x).eigenvectors.abs(), "eigvals": lambda x: L.eigvals(x).abs().sum(-1),
    "svdvals": lambda x: L.svdvals(x), "svd": lambda x: L.svd(x[..., :2], full_matrices=False)[0].abs(),
    "pinv": lambda x: L.pinv(x[..., :2]), "lstsq": lambda x: L.lstsq(x[..., :2], x.mT).solution,
    "matrix_exp": lambda x: L.matrix_exp(x / 2), "matrix_power": lambda x: L.matrix_power(x, -2),
    "householder": lambda x: L.householder_product(x, x[..., 0, :] / 4), "nuclear": lambda x: L.matrix_norm(x, "nuc"),
    "cross": lambda x: L.cross(x[..., :3], x[..., 1:]), "renorm": lambda x: torch.renorm(x, 2, 0, 0.5),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str, dtype: torch.dtype) -> None:
    host = random(2, 4, 4, dtype=dtype).requires_grad_()
    ours = on_device(host.detach()).requires_grad_()
    found = []
    for x in (host, ours):
        value = GRADIENTS[name](x)
        weights = (
            torch.linspace(0.5, 1.5, value.numel(), dtype=torch.float64).reshape(value.shape).to(value.device)
        )
        (gradient,) = torch.autograd.grad((value * weights).abs().sum(), x)
        found.append(gradient.cpu())
    torch.testing.assert_close(found[1], found[0], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, torch.inf])
def test_gradients_of_distances(p: float) -> None:
    host = [random(2, 5, 3).requires_grad_(), random(1, 4, 3).requires_grad_()]
    ours = [on_device(t.detach()).requires_grad_() for t in host]
    found = []
    for x, y in (host, ours):
        value = torch.cdist(x, y, p).square().sum() + torch.nn.functional.pdist(x[0], p).sum()
        found.append([t.cpu() for t in (value, *torch.autograd.grad(value, (x, y)))])
    for have, want in zip(found[1], found[0]):
        torch.testing.assert_close(have, want, rtol=1e-10, atol=1e-10)
