"""Eigenvalues of symmetric matrices and singular values: residuals as small as the sizes promise, and their callers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import macatensor

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
L = torch.linalg
KINDS = ["random", "of rank 1", "tiny", "huge", "zero", "repeated", "graded", "two clusters", "pairs"]


@pytest.fixture(autouse=True)
def nothing_on_the_host() -> Any:
    with macatensor.fallback("error"):
        yield


def matrix(kind: str, m: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    limits = torch.finfo(dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    a = torch.randn(m, n, dtype=wide, generator=torch.Generator().manual_seed(m + 1000 * n))
    if kind == "of rank 1":
        a = a[:, :1] @ a[:1]
    if kind == "repeated":
        a = torch.eye(m, n, dtype=wide)
    if kind == "two clusters":
        a = torch.eye(m, n, dtype=wide)
        a[n // 2 :] *= 2
        left, right = (
            L.qr(torch.randn(k, k, dtype=wide, generator=torch.Generator().manual_seed(k)))[0] for k in (m, n)
        )
        a = left @ a @ right.mH
    if kind == "pairs":  # Wilkinson's matrix: its eigenvalues lie closer than their precision
        a = torch.zeros(m, n, dtype=wide)
        a.diagonal().copy_((torch.arange(min(m, n)) - n // 2).abs())
        a.diagonal(1).fill_(1)
        a.diagonal(-1).fill_(1)
    if kind == "graded":
        a = a * torch.logspace(0, -12, n, dtype=torch.float64)
    return (a * {"tiny": 8 * limits.tiny, "huge": limits.max**0.9, "zero": 0.0}.get(kind, 1.0)).to(dtype)


def exact(t: torch.Tensor) -> torch.Tensor:
    return t.cpu().to(torch.complex128)


def is_orthonormal(q: torch.Tensor, bound: float) -> bool:
    return bool((q.mH @ q - torch.eye(q.shape[1])).abs().max() <= bound)


# of no reflection, one block of them, several; of one part, two, and of up to sixteen that are not of one order
@pytest.mark.parametrize("n", [1, 2, 9, 32, 33, 65, 130, 257])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_eigenvectors_are_backward_stable(kind: str, dtype: torch.dtype, n: int) -> None:
    a = matrix(kind, n, n, dtype)
    a = a.tril() + a.tril(-1).mH
    a.diagonal().imag.zero_() if dtype.is_complex else None
    bound = 8 * (n + 4) * torch.finfo(dtype).eps
    for triangle in "LU":
        half = a.tril() if triangle == "L" else a.triu()
        half += (
            torch.full_like(a, torch.nan).triu(1)
            if triangle == "L"
            else torch.full_like(a, torch.nan).tril(-1)
        )
        w, v = (exact(t) for t in L.eigh(half.to("maca"), UPLO=triangle))
        assert is_orthonormal(v, bound)
        assert (exact(a) @ v - v * w).abs().max() <= bound * exact(a).abs().max() * n**0.5
        alone = exact(L.eigvalsh(half.to("maca"), UPLO=triangle))
        assert (alone - w).abs().max() <= bound * w.abs().max()
        assert torch.equal(w.real, w.real.sort().values)


# on either side of where a QR factorization comes first
SHAPES = [(1, 1), (9, 2), (33, 33), (96, 64), (95, 64), (64, 130), (130, 65), (1, 40), (70, 69)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_singular_vectors_are_backward_stable(kind: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    a = matrix(kind, *shape, dtype)
    bound = 8 * (max(shape) + 4) * torch.finfo(dtype).eps
    for full in (True, False):
        u, s, vh = (exact(t) for t in L.svd(a.to("maca"), full_matrices=full))
        assert is_orthonormal(u, bound) and is_orthonormal(vh.mH, bound)
        k = s.shape[0]
        assert (u[:, :k] * s @ vh[:k] - exact(a)).abs().max() <= bound * s.abs().max()
        assert torch.equal(s.real, s.real.sort(descending=True).values)
    alone = exact(L.svdvals(a.to("maca")))
    assert (alone - s).abs().max() <= bound * s.abs().max()


@pytest.mark.parametrize("call", [L.eigh, L.svd])
def test_strided_batches_and_none(call: Any) -> None:
    a = torch.randn(9, 9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = (a + a.transpose(0, 1)).to("maca").permute(2, 0, 1)[::2].mT
    for ours, dense in zip(call(x), call(x.contiguous())):
        assert torch.equal(ours.cpu(), dense.cpu())
    for shape in ((0, 3, 3), (2, 0, 0)):
        for ours, theirs in zip(call(torch.zeros(shape, device="maca")), call(torch.zeros(shape))):
            assert ours.shape == theirs.shape


class Asked(TorchDispatchMode):
    """Notes whether decompositions were asked for vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._linalg_eigh.default:
            self.vectors.append(args[2] if len(args) > 2 else True)
        if func is torch.ops.aten._linalg_svd.default:
            self.vectors.append(args[2] if len(args) > 2 else True)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("call", [L.eigvalsh, L.svdvals])
def test_values_alone_need_no_vectors(call: Any) -> None:
    a = torch.diag(torch.tensor([3.0, 2.0, 1.0])).to("maca")
    with Asked() as asked:
        call(a)
        with torch.no_grad():
            call(a.clone().requires_grad_())
    assert asked.vectors == [False, False]
    b = a.clone().requires_grad_()
    with Asked() as asked:
        call(b).sum().backward()
    assert asked.vectors == [True]
    assert b.grad is not None
    torch.testing.assert_close(b.grad.cpu(), torch.eye(3))


@pytest.mark.parametrize("call", [L.eigvalsh, L.svdvals])
def test_values_alone_have_tangents(call: Any) -> None:
    a, along = torch.diag(torch.tensor([3.0, 2.0, 1.0])), torch.eye(3)
    values, tangents = torch.func.jvp(call, (a.to("maca"),), (along.to("maca"),))
    torch.testing.assert_close(values.cpu(), call(a))
    torch.testing.assert_close(tangents.cpu(), torch.ones(3))
    batched = torch.func.vmap(call)(torch.stack([a, 2 * a]).to("maca"))
    torch.testing.assert_close(batched.cpu(), torch.stack([call(a), call(2 * a)]))
    torch.testing.assert_close(torch.func.grad(lambda x: call(x).sum())(a.to("maca")).cpu(), torch.eye(3))
