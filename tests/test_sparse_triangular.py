"""Triangular systems of compressed matrices against dense ones."""

from __future__ import annotations

import itertools

import pytest
import torch

import macatensor

LAYOUTS = {"csr": (), "csc": (), "bsr": ((2, 3),), "bsc": ((3, 2),)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_solutions_are_those_of_dense_triangles(layout: str, dtype: torch.dtype) -> None:
    for (n, k), upper, transpose, unit in itertools.product(
        ((6, 1), (42, 17), (6, 0)), (True, False), (True, False), (True, False)
    ):
        whole = torch.randn(n, n, dtype=dtype) * (torch.rand(n, n) < 0.3) + 4 * torch.eye(n, dtype=dtype)
        b = torch.randn(k, n, dtype=dtype).T  # its columns are rows of memory
        triangle = whole.triu() if upper else whole.tril()
        if unit:
            triangle = triangle - torch.diag(triangle.diagonal()) + torch.eye(n, dtype=dtype)
        system = triangle.T if transpose else triangle
        wide = torch.complex128 if dtype.is_complex else torch.float64
        made = getattr(whole, f"to_sparse_{layout}")(*LAYOUTS[layout]).to("maca")
        with macatensor.fallback("error"):
            ours, copy = torch.triangular_solve(
                b.to("maca"), made, upper=upper, transpose=transpose, unitriangular=unit
            )
        assert ours.dtype == dtype and ours.shape == b.shape and copy.shape == (0,)
        # backward stable: the residual is so many units of what was multiplied, one a term and one a quotient
        error = (system.to(wide) @ ours.cpu().to(wide) - b).abs()
        most = (system.abs() @ ours.cpu().abs()) * torch.finfo(dtype).eps * (2 * n)
        assert (error <= most).all(), (n, k, upper, transpose, unit)


def test_indices_of_32_bits_and_conjugates() -> None:
    whole = torch.randn(9, 9, dtype=torch.complex64).triu() + 3 * torch.eye(9)
    made, b = whole.to_sparse_csr(), torch.randn(9, 2, dtype=torch.complex64)
    small = torch.sparse_csr_tensor(
        made.crow_indices().int(), made.col_indices().int(), made.values(), made.shape
    )
    ours = torch.triangular_solve(b.maca().conj(), small.to("maca")).solution
    torch.testing.assert_close(ours.cpu(), torch.linalg.solve(whole, b.conj()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_are_written_to_what_is_given(layout: str) -> None:
    whole, b = torch.randn(6, 6) + 4 * torch.eye(6), torch.randn(6, 2)
    made = getattr(whole, f"to_sparse_{layout}")(*LAYOUTS[layout]).to("maca")
    given, copy = torch.empty(2, 6, device="maca").T, torch.empty(3, device="maca")
    with macatensor.fallback("error"):
        written = torch.triangular_solve(b.maca(), made, out=(given, copy)).solution
        assert torch.equal(written, torch.triangular_solve(b.maca(), made).solution)
    assert written is given and given.stride() == (1, 6) and copy.shape == (0,)


@pytest.mark.parametrize("unit", [False, True])
def test_a_matrix_without_elements_gives_nan(unit: bool) -> None:
    nothing, b = torch.zeros(3, 3).to_sparse_csr(), torch.ones(3, 2)
    for a in (nothing, nothing.to("maca")):
        assert torch.triangular_solve(b.to(a.device), a, unitriangular=unit).solution.isnan().all()


@pytest.mark.parametrize(
    "b", [torch.ones(3, 2), torch.ones(4, 2, dtype=torch.float64), torch.ones(4)], ids=str
)
def test_what_does_not_fit_is_refused(b: torch.Tensor) -> None:
    made = torch.eye(4).to_sparse_csr()
    with pytest.raises(RuntimeError) as theirs:
        torch.triangular_solve(b, made)
    with pytest.raises(RuntimeError) as ours, macatensor.fallback("silent"):
        torch.triangular_solve(b.maca(), made.to("maca"))
    assert str(ours.value) == str(theirs.value)


def test_indices_that_are_none_of_the_matrix() -> None:
    for ends, columns in (
        ([0, 1, 2], [0, 7]),
        ([0, 2, 1], [0, 1]),
        ([0, 1, 9], [0, 1]),
        ([0, 1, 2], [-1, 1]),
    ):
        made = torch.sparse_csr_tensor(
            torch.tensor(ends).maca(), torch.tensor(columns).maca(), torch.ones(2).maca(), (2, 2)
        )
        with pytest.raises((RuntimeError, IndexError), match="compressed matrix"):
            torch.triangular_solve(torch.ones(2, 1).maca(), made).solution.cpu()
