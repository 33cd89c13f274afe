"""Calls of sparse tensors as people write them: what PyTorch's CPU kernels compute, the device computes without the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import macatensor

# s: COO; u: with two elements in one place; r: whose columns are dense; e, f: as s and r, of nothing; a: dense, as all of them;
# csr, csc; bsr, bsc: of blocks, with d
CALLS = """
s + f  f + s  e + f  s - f  s.half() + f  s.clone().add_(f)  s * f  f * s  f.clone().mul_(s)  torch.sub(s, f, alpha=2)
s * a[0]  a[0] * u  s * a[:, :1]  s * a[:0, 0]  r * a[:, :1]  a[None] * s  s * a.repeat(2, 1, 1)  s.long() * a  s * a.half()
s * a.to(torch.complex64)  s.sum().to_sparse() * a  a * s.sum().to_sparse()  torch.outer(a[0], a[1].to_sparse())
a.clone().mul_(s)  a.clone().mul_(u)  a.clone().mul_(s[0])  a.clone().mul_(s.double())  a.t().clone().mul_(s.t())
a.long().mul_(s)  a[:1].clone().mul_(s)  s.clone().mul_(a[0])  torch.mul(s, a, out=s.clone())
s // 2  u // 2  u.clone().floor_divide_(2)  s.long() // 2  s.clone().div_(2, rounding_mode="floor")  s.int().div_(2)
u.clone().neg_()  u.clone().abs_()  s[0].t()  s[0].clone().t_()  s.sum().to_sparse().t()  csr // 2
torch.hspmm(u, a.t())  torch.hspmm(e, a.t())  torch.hspmm(s, a)  torch.hspmm(r, a.t())  torch.smm(u, a.t())  torch.smm(e, a.t())
torch.sspaddmm(s @ s.t(), u, a.t(), beta=2, alpha=3)  torch.sspaddmm(s @ s.t(), s, a.t(), beta=0)  torch.sspaddmm(s, s, a.t())
a.sparse_mask(s)  s.sparse_mask(u.coalesce())  s.to(torch.complex64).real  torch.nn.functional.linear(a, s)  s @ a[0]
s.sum(0, dtype=torch.float64)  torch.bmm(s.unsqueeze(0), a.t().unsqueeze(0))  2 * s  s / 2  s.H  s.square()  s ** 3
csr * a  a + csr  csr + a  torch.add(csr, a[:, [1, 2, 0, 3]], alpha=2)  torch.add(a, csc, alpha=2)  a - csr  csr @ a.t()  a.t() @ csr  csr.sum(0, keepdim=True)  csr[0]  csr.resize_(5, 6)  csr.T @ csr
torch.sparse.sampled_addmm(csr, a, a.t() @ a)  torch.sparse.mm(csr, a.t(), "mean")  csr.to_sparse_csc()  csr.to_sparse_bsr((3, 2))
csc + csc  csc * 2  csc @ a.t()  csc.to_sparse_csr()  csc.transpose(0, 1)  bsr.to_dense()  bsr.to_sparse_bsc((2, 3))  -bsr
torch.zeros_like(s, layout=torch.strided)  torch.zeros_like(s, layout=torch.sparse_csr)  torch.zeros_like(r, layout=torch.sparse_csr)
torch.ones_like(u, layout=torch.strided)  torch.full_like(s, 3, layout=torch.strided)  s.sum().to_sparse().transpose(0, -1)
csr.clone().resize_as_(a)  a.clone().resize_as_(csc)  a.clone().resize_as_(s)  s.bool().pow(True)  torch.add(s.long(), s.long(), alpha=0.5)
(csr @ csr.T).addmm_(csr, csr.T)  (a @ a.t()).addmm_(csr, a.t())  (a @ a.t()).addmm_(s, a.t(), beta=2)  a[0].clone().addmv_(csr.T, a[:, 0])
torch.sparse.addmm((a @ a.t()).long(), s.long(), a.t().long(), beta=1.5, alpha=2.5)  torch.add(s, u, out=s.t())  torch.add(s, u, out=e.t())
torch.mul(s, s, out=e.t())  torch.mul(csr, csr, out=(csr @ csr.T))  (r * 0).narrow_copy(1, 0, 0) * 2  s.long().pow(0.5)
torch.addmm(csr, 0 * csr, s.t() @ s, beta=2)  torch.addmm(a, 0 * (csr @ csr.T).bool(), csr, beta=0.5)  torch.sparse.mm((0 * csr).long(), a.t().long(), "amax")
torch.cat([s.sum().to_sparse().unsqueeze(0), e.sum(1)]).sgn_()  torch.addmm(csr, a, a.t() @ a)  r.narrow_copy(1, 0, 0).narrow_copy(0, 0, 0).index_select(1, a[0].long() * 0)
torch.addmm((0 * a @ a.t()).to_sparse(1), csr @ csr.T, (0 * a @ a.t()).to_sparse(1))  s.long() @ (0 * csr)  csr @ (0 * s)  e.long() @ a.t()
torch.sparse.softmax(e.narrow_copy(0, 0, 0).long(), 1)  a[:, :0] * r.narrow_copy(1, 0, 0)
bsr.to_sparse()  bsc.to_dense()  bsr * 2  d.sparse_mask(bsr)  bsc.transpose(0, 1)  csr.clone().resize_as_sparse_(csr)
"""
# of these a number is made that is differentiated by a, s, u, r, csr
DIFFERENTIATED = """
s.relu()  u.relu()  r.relu()  torch.sparse.sum(s, 0)  torch.sparse.sum(r, 1)  torch.sparse.sum(r, 0)  torch.sparse.sum(r, [0, 1])
a * s  a + s  s @ a.t()  torch.sparse.softmax(s, 1)  csr.angle()  csr.relu()  csr @ a.t()  csr * csr
torch.addmm(a @ a.t(), csr, a.t())  csr.to_sparse()  s.to_dense()
"""


def calls(text: str) -> list[str]:
    return [call for line in text.strip().splitlines() for call in line.split("  ")]


def operands(device: str) -> dict[str, torch.Tensor]:
    a = torch.tensor([[1.0, 0, -3, 2], [0, -1, 3, 0], [2, 1, 0, -3]])
    d = (torch.arange(24.0) % 5 - 1).reshape(4, 6)
    u = torch.sparse_coo_tensor([[0, 0, 1], [1, 1, 2]], [1.0, -2, 4], (3, 4))
    sparse = {
        "s": a.to_sparse(),
        "r": a.to_sparse(1),
        "u": u,
        "e": (0 * a).to_sparse(),
        "f": (0 * a).to_sparse(1),
    }
    compressed = {
        "csr": a.to_sparse_csr(),
        "csc": a.to_sparse_csc(),
        "bsr": d.to_sparse_bsr((2, 3)),
        "bsc": d.to_sparse_bsc((2, 3)),
    }
    return {name: t.to(device, copy=True) for name, t in {"a": a, "d": d, **sparse, **compressed}.items()}


def outcome(call: str, device: str) -> torch.Tensor | str:
    """The result, or the error's class."""
    try:
        result = eval(call, {"torch": torch, **operands(device)})
    except (RuntimeError, IndexError) as error:
        return type(error).__name__
    assert isinstance(result, torch.Tensor)
    return result


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.layout is expected.layout and found.dtype is expected.dtype and found.device.type == "maca"
    if expected.layout is torch.sparse_coo:
        assert (found.sparse_dim(), found.dense_dim()) == (expected.sparse_dim(), expected.dense_dim())
    # whole numbers, and quotients of them by 2: the same in any order
    torch.testing.assert_close(found.to_dense().cpu(), expected.to_dense(), rtol=0, atol=0)


@pytest.mark.parametrize("call", calls(CALLS))
def test_the_device_computes_what_the_host_computes(call: str) -> None:
    expected = outcome(call, "cpu")
    with macatensor.fallback("silent" if isinstance(expected, str) else "error"):
        found = outcome(call, "maca")
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
    else:
        assert_same(found, expected)


def test_indices_have_the_dtype_of_the_hosts() -> None:
    calls = (
        "csr * csr",
        "csr.clone().mul_(csr)",
        "torch.mul(csr, csr, out=csr.clone())",
        "a.sparse_mask(csr)",
        "csr + csr",
        "torch.sparse.sampled_addmm(csr, a, a.t() @ a)",
    )
    for call in calls:
        dtypes = []
        for device in ("cpu", "maca"):
            given = operands(device)
            members = given["csr"].crow_indices().int(), given["csr"].col_indices().int()
            given["csr"] = torch.sparse_csr_tensor(*members, given["csr"].values(), (3, 4))
            dtypes.append(eval(call, {"torch": torch, **given}).col_indices().dtype)
        assert dtypes[0] is dtypes[1], call


def test_a_sparse_tensor_has_no_strides() -> None:
    s = operands("maca")["s"]
    assert s.stride() == (0, 0) and s.stride(-1) == 0


def test_nothing_times_a_number_is_zero() -> None:
    """PyTorch's CPU kernel multiplies by memory that nobody wrote."""
    t = operands("maca")
    nothing = t["e"].sum().to_sparse()
    with macatensor.fallback("error"):
        assert (t["s"] * nothing).to_dense().cpu().abs().max() == 0
        assert (nothing * nothing)._nnz() == 0


def test_copies_never_leave_indices_beyond_sides() -> None:
    csr = operands("maca")["csr"]
    narrow = csr.sum(1, keepdim=True)
    wide = torch.sparse_csr_tensor(narrow.crow_indices(), narrow.col_indices() + 3, narrow.values(), (3, 4))
    with pytest.raises(RuntimeError, match="copy_ got a tensor of"):
        narrow.copy_(wide)
    ends = torch.cat((wide.crow_indices(), wide.crow_indices()[-1:]))
    longer = torch.sparse_csr_tensor(ends, wide.col_indices(), wide.values(), (4, 4))
    refused = pytest.raises(RuntimeError, match="torch.copy_: expected shapes of self and src to match")
    with refused, macatensor.fallback("silent"):  # in the words of the host, which refuses it as well
        narrow.copy_(longer)


@pytest.mark.parametrize("call", calls(DIFFERENTIATED))
def test_gradients_are_computed_without_the_host(call: str) -> None:
    def gradients(device: str) -> dict[str, torch.Tensor]:
        given = {
            name: t.double().requires_grad_()
            for name, t in operands(device).items()
            if name in "a s u r csr".split()
        }
        result = eval(call, {"torch": torch, **given}).to_dense()
        weights = torch.arange(1.0, result.numel() + 1, dtype=result.dtype, device=device).reshape(
            result.shape
        )
        (result * weights).sum().backward()
        return {name: t.grad for name, t in given.items() if t.grad is not None}

    expected = gradients("cpu")
    with macatensor.fallback("error"):
        found = gradients("maca")
    assert found.keys() == expected.keys() and expected
    for name, gradient in expected.items():
        assert found[name].layout is gradient.layout
        # a few float64 roundings: sums of at most 12 terms, softmax, sines
        torch.testing.assert_close(found[name].to_dense().cpu(), gradient.to_dense(), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    "options", [{}, {"nesterov": True}, {"maximize": True}, {"weight_decay": 0.0}], ids=str
)
def test_momentum_of_sparse_gradients(options: dict[str, Any]) -> None:
    """Its lists are taken one by one, as PyTorch does; a list that went to the host came back unchanged."""
    weights = []
    for device in ("cpu", "maca"):
        table = torch.nn.Embedding(4, 2, sparse=True, device=device)
        torch.nn.init.ones_(table.weight)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1, momentum=0.9, **options)
        with macatensor.fallback("error"):
            for _ in range(3):
                optimizer.zero_grad()
                table(torch.tensor([1, 2, 1], device=device)).sum().backward()
                optimizer.step()
        weights.append(table.weight.detach().cpu())
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "call",
    [
        lambda a, s: torch._foreach_add_([a], [s], alpha=2),
        lambda a, s: torch._foreach_add_([a, s], [s, s]),
        lambda a, s: torch._foreach_mul_([s, a], 3),
        lambda a, s: torch._foreach_mul_([s, a], [3, 2]),
        lambda a, s: torch._foreach_div_([s], [2]),
        lambda a, s: torch._foreach_sub_([a, a], [s, s]),
        lambda a, s: torch._foreach_copy_([s], [s * 2]),
        lambda a, s: torch._foreach_neg_([s, a]),
        lambda a, s: torch._foreach_zero_([s, a]),
        lambda a, s: torch._foreach_addcmul_([a], [a], [a * 2], 2),
    ],
    ids=range(10),
)
def test_lists_with_sparse_members_are_written(call: Callable[[Tensor, Tensor], None]) -> None:
    results = []
    for device in ("cpu", "maca"):
        given = operands(device)
        with macatensor.fallback("error"):
            call(given["a"], given["s"])
        results.append([given["a"].cpu(), given["s"].to_dense().cpu()])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def test_lists_of_two_lengths_are_refused() -> None:
    given = operands("maca")
    with macatensor.fallback("silent"), pytest.raises(RuntimeError, match="same number of tensors"):
        torch._foreach_add_([given["a"]], [given["s"], given["s"]])


def test_data_is_exchanged_with_its_elements() -> None:
    for name in ("s", "csr", "bsr"):
        t = operands("maca")[name]
        twice = t.to_dense() * 2
        t.data = (t * 2).double()
        assert t.dtype is torch.float64 and torch.equal(t.to_dense().float(), twice)
        assert torch.equal(t.data.to_dense(), t.to_dense())
        with pytest.raises(RuntimeError, match="incompatible tensor type"):
            t.data = twice
    sparse, compressed = operands("maca")["s"], operands("maca")["csr"]
    with pytest.raises(RuntimeError, match="convert it first"):
        compressed.data = sparse
