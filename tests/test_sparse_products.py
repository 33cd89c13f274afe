"""Products of compressed matrices of the device (CSR, CSC, BSR, BSC) against the host's and those of dense matrices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sparse_values import (
    BLOCKED,
    CSC,
    CSR,
    LAYOUTS,
    dense,
    example,
    on_maca,
    short,
    strided,
)

import macatensor


def weights(
    rows: int, columns: int, layout: torch.layout, dtype: torch.dtype, requires_grad: bool
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * 100 + columns)
    full = torch.randn(rows, columns, generator=generator, dtype=torch.float64).to(dtype)
    full[torch.rand(rows, columns, generator=generator) < 0.6] = 0
    if rows:
        full[0] = 0  # a row without elements
    made = full.to_sparse(layout=layout, blocksize=(2, 2) if layout in BLOCKED else None)
    return made.requires_grad_(requires_grad)


PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "matrix": lambda t, x: t @ x,
    "sparse.mm": lambda t, x: torch.sparse.mm(t, x),
    "vector": lambda t, x: t @ x[:, 0],
    "addmm": lambda t, x: torch.addmm(
        torch.ones(t.shape[0], x.shape[1], device=x.device), t, x, beta=2, alpha=3
    ),
    "sparse.addmm": lambda t, x: torch.sparse.addmm(
        torch.ones(t.shape[0], x.shape[1], device=x.device), t, x
    ),
    "addmv": lambda t, x: torch.addmv(torch.ones(t.shape[0], device=x.device), t, x[:, 1], beta=0.5, alpha=2),
    "from the left": lambda t, x: x.t() @ t.t(),
    "layer": lambda t, x: torch.nn.functional.linear(x.t(), t),
    "out": lambda t, x: torch.mm(t, x, out=torch.empty(t.shape[0], x.shape[1], device=x.device)),
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=short)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_with_dense_matrices_agree(name: str, layout: torch.layout) -> None:
    for (rows, columns), width in itertools.product(((6, 8), (8, 4), (40, 26)), (1, 3, 17)):
        width = max(width, 2) if name == "addmv" else width
        host, other = weights(rows, columns, layout, torch.float32, False), torch.randn(columns, width)
        try:
            expected = PRODUCTS[name](host, other)
        except RuntimeError:
            continue  # more products are served than by the host
        with macatensor.fallback("error"):
            found = PRODUCTS[name](host.to("maca"), other.to("maca"))
        torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("layout", (CSR, CSC), ids=short)
@pytest.mark.parametrize("other", (CSR, CSC), ids=short)
def test_products_of_two_compressed_matrices_agree(layout: torch.layout, other: torch.layout) -> None:
    a, b = weights(6, 8, layout, torch.float32, False), weights(8, 4, other, torch.float32, False)
    with macatensor.fallback("error"):
        found = a.to("maca") @ b.to("maca")
    assert found.layout is (a @ b).layout
    torch.testing.assert_close(found.to_dense().cpu(), a.to_dense() @ b.to_dense())


@pytest.mark.parametrize(
    "dtype", (torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64), ids=str
)
def test_products_of_other_dtypes_are_those_of_dense(dtype: torch.dtype) -> None:
    numbers = torch.randint(-3, 4, (6, 8)).to(dtype) * (torch.rand(6, 8) < 0.5)
    other = torch.randint(-3, 4, (8, 5)).to(dtype)
    expected = numbers.to(torch.complex128) @ other.to(torch.complex128)
    with macatensor.fallback("error"):
        ours = numbers.to("maca")
        for t in (ours.to_sparse_csr(), ours.to_sparse_csc(), ours.to_sparse_bsr((2, 4)), ours.to_sparse()):
            found = (t @ other.to("maca")).cpu()
            assert found.dtype is dtype and torch.equal(found.to(torch.complex128), expected)


def test_numbers_that_are_none_pass_through_products() -> None:
    host = torch.tensor([[0.0, torch.inf], [torch.nan, 0.0], [1.0, 0.0]]).to_sparse_csr()
    other = torch.tensor([[1.0, torch.nan], [0.0, 2.0]])
    with macatensor.fallback("error"):
        found = host.to("maca") @ other.to("maca")
    torch.testing.assert_close(found.cpu(), host @ other, equal_nan=True)


@pytest.mark.parametrize("layout", (CSR, CSC), ids=short)
def test_products_have_gradients_of_both_operands(layout: torch.layout) -> None:
    for take in (torch.sparse.mm, lambda t, x: t @ x):
        host, other = weights(6, 8, layout, torch.float32, True), torch.randn(8, 3, requires_grad=True)
        ours, another = on_maca(host), on_maca(other)
        try:
            take(host, other).square().sum().backward()
        except RuntimeError:
            continue
        with macatensor.fallback("error"):
            take(ours, another).square().sum().backward()
        torch.testing.assert_close(another.grad.cpu(), other.grad)
        torch.testing.assert_close(dense(ours.grad), dense(host.grad))


@pytest.mark.parametrize("reduce", ("sum", "mean", "amax", "amin"))
def test_reduced_products_have_gradients(reduce: str) -> None:
    host, other = weights(12, 8, CSR, torch.float32, True), torch.randn(8, 5, requires_grad=True)
    ours, another = on_maca(host), on_maca(other)
    expected = torch.sparse.mm(host, other, reduce)
    with macatensor.fallback("error"):
        found = torch.sparse.mm(ours, another, reduce)
        found.square().sum().backward()
    torch.testing.assert_close(found.detach().cpu(), expected.detach())
    expected.square().sum().backward()
    torch.testing.assert_close(another.grad.cpu(), other.grad)
    torch.testing.assert_close(dense(ours.grad), dense(host.grad))


def test_large_products_take_no_memory_of_terms() -> None:
    rows, width = 2000, 256
    crow = torch.arange(0, 50 * rows + 1, 50)
    col = torch.arange(50 * rows) % rows
    col = col.reshape(rows, 50).sort(1).values.flatten()
    ours = torch.sparse_csr_tensor(crow, col, torch.randn(50 * rows), (rows, rows)).to("maca")
    x = torch.randn(rows, width).to("maca")
    torch.maca.synchronize()
    torch.maca.reset_peak_memory_stats()
    before = torch.maca.memory_allocated()
    result = ours @ x
    torch.maca.synchronize()
    taken = torch.maca.max_memory_allocated() - before
    terms = 50 * rows * width * 4
    assert taken < result.numel() * 4 + terms / 20, (taken, terms)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_every_width_and_length_of_rows(dtype: torch.dtype, index: torch.dtype) -> None:
    rows, inner = 300, 70
    full = torch.randn(rows, inner, dtype=torch.float64).to(dtype)
    lengths = torch.randint(0, 12, (rows, 1))
    lengths[7], lengths[8], lengths[-1] = inner, 0, inner  # one that is full, and one without elements
    full[torch.rand(rows, inner) * inner >= lengths] = 0
    made = full.to_sparse_csr()
    ours = torch.sparse_csr_tensor(made.crow_indices().to(index), made.col_indices().to(index), made.values(),
                                   made.shape).to("maca")  # fmt: skip
    unit = torch.finfo(torch.float32 if dtype.itemsize == 2 else dtype).eps
    last = torch.finfo(dtype).eps if dtype.itemsize == 2 else 0
    with macatensor.fallback("error"):
        for width in (0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 65, 130):
            x = torch.randn(inner, width, dtype=torch.float64).to(dtype)
            # each term rounds once: so many units of the sum of their absolute values
            most = full.double().abs() @ x.double().abs() * unit * inner
            exact = full.double() @ x.double()
            for given in (x, x.T.contiguous().T, torch.cat((x, x), 1)[:, :width]):
                error = ((ours @ given.to("maca")).cpu().double() - exact).abs()
                assert (error <= most + exact.abs() * last).all(), width
            if width:
                error = ((ours @ x.to("maca")[:, -1]).cpu().double() - exact[:, -1]).abs()
                assert (error <= most[:, -1] + exact[:, -1].abs() * last).all(), width


def test_gradients_reach_values_and_dense_tensors() -> None:
    def train(device: str) -> list[torch.Tensor]:
        host = example("matrix", CSR)
        crow, col = host.crow_indices().to(device), host.col_indices().to(device)
        values = host.values().detach().clone().to(device).requires_grad_()
        made = torch.sparse_compressed_tensor(crow, col, values, host.shape, layout=CSR)
        full = strided("matrix").to(device).requires_grad_()
        (made.to_dense() * full).sum().backward()
        again = strided("matrix").to(device).requires_grad_()
        (again.to_sparse_csr().values() ** 2).sum().backward()
        return [t.grad.cpu() for t in (values, full, again)]

    with macatensor.fallback("error"):
        found = train("maca")
    for ours, theirs in zip(found, train("cpu")):
        torch.testing.assert_close(dense(ours), dense(theirs))


EVERY = [None, torch.sparse_coo, *LAYOUTS]


def _of(rows: int, columns: int, layout: torch.layout | None, full: bool, dtype: torch.dtype) -> torch.Tensor:
    made = (torch.ones if full else torch.zeros)(rows, columns).to(dtype)
    if layout is None:
        return made
    return made.to_sparse(layout=layout, blocksize=(2, 2) if layout in BLOCKED else None)


def _agrees(call: Callable[[Any], torch.Tensor]) -> None:
    """What the host computes the device computes, too, and as that does; ``call`` is given what moves a tensor there."""
    try:
        expected = call(lambda t: t)
    except (RuntimeError, NotImplementedError):
        return
    with macatensor.fallback("error"):
        found = call(on_maca)
    assert (found.dtype, found.layout, found.shape) == (expected.dtype, expected.layout, expected.shape)
    strided = (t if t.layout is torch.strided else t.to_dense() for t in (found.cpu(), expected))
    assert torch.equal(*strided)


EMPTY_OR_NOT = list(itertools.product((0, 2), (0, 2), (0, 2), (False, True)))


@pytest.mark.parametrize("left", EVERY, ids=str)
@pytest.mark.parametrize("right", EVERY, ids=str)
def test_products_of_nothing_take_any_dtypes(left: torch.layout | None, right: torch.layout | None) -> None:
    """Which of the two gives the dtype, and which layout the result has, is PyTorch's."""
    dtypes = (torch.float32, torch.int64, torch.bool, torch.complex64)
    for (m, k, n, full), of_left, of_right in itertools.product(EMPTY_OR_NOT, dtypes, dtypes):
        if full and m and n:
            continue
        a, b = _of(m, k, left, full, of_left), _of(k, n, right, True, of_right)
        _agrees(lambda there, a=a, b=b: torch.mm(there(a), there(b)))
        _agrees(lambda there, a=a, b=b: torch.hspmm(there(a), there(b)))
        for dtype in dtypes[1:]:
            out = torch.ones(m, n, dtype=dtype)
            _agrees(lambda there, a=a, b=b, out=out: torch.mm(there(a), there(b), out=there(out.clone())))
            out = torch.empty(0, 0, dtype=dtype).to_sparse()
            _agrees(lambda there, a=a, b=b, out=out: torch.hspmm(there(a), there(b), out=there(out.clone())))


@pytest.mark.parametrize("added", EVERY, ids=str)
@pytest.mark.parametrize("in_place", [False, True])
def test_nothing_is_added(added: torch.layout | None, in_place: bool) -> None:
    """To matrices of every layout: in place to those of blocks, too."""
    name = "addmm_" if in_place else "addmm"
    for left, right, (m, k, n, full) in itertools.product(EVERY, EVERY, EMPTY_OR_NOT):
        if full and m and k and n:
            continue
        for beta in (0, 1, 3):
            t, a, b = (
                _of(m, n, added, True, torch.float32),
                _of(m, k, left, full, torch.float32),
                _of(k, n, right, True, torch.float32),
            )
            _agrees(
                lambda there, t=t, a=a, b=b, beta=beta: getattr(there(t).clone(), name)(
                    there(a), there(b), beta=beta
                )
            )


@pytest.mark.parametrize("layout", [CSR, CSC], ids=str)
def test_product_into_a_dense_matrix(layout: torch.layout) -> None:
    a, b = (weights(4, 4, layout, torch.float32, False) for _ in range(2))
    _agrees(lambda there: torch.mm(there(a), there(b), out=there(torch.empty(4, 4))))
