"""Compressed tensors of the device (CSR, CSC, BSR, BSC) against those of the host: PyTorch's operator database, products,
conversions, files."""

from __future__ import annotations

import copy
import io
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sparse_values import (
    BLOCKED,
    BSC,
    BSR,
    CSC,
    CSR,
    DTYPES,
    LAYOUTS,
    SHAPES,
    dense,
    example,
    gradients,
    on_maca,
    samples_of,
    short,
    strided,
)
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map

import macatensor


def members(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if t.layout in (CSR, BSR):
        return t.crow_indices(), t.col_indices(), t.values()
    return t.ccol_indices(), t.row_indices(), t.values()


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """The same layout, and the same members down to the dtypes of indices."""
    assert found.layout is expected.layout and found.shape == expected.shape and found.dtype == expected.dtype
    if found.layout is torch.sparse_coo:
        assert found.is_coalesced() == expected.is_coalesced()
        pairs = [(found._indices(), expected._indices()), (found._values(), expected._values())]
    elif found.layout is torch.strided:
        pairs = [(found, expected)]
    else:
        pairs = list(zip(members(found), members(expected)))
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), equal_nan=True)


SUPPORTED = [
    pytest.param(op, layout, id=f"{op.formatted_name}-{short(layout)}")
    for layout in LAYOUTS
    for op in op_db
    if getattr(op, f"supports_sparse_{short(layout)}")
]


@pytest.mark.parametrize("op, layout", SUPPORTED)
def test_samples_of_the_database_agree(op: Any, layout: torch.layout) -> None:
    before = macatensor.counters()["fallbacks"]
    for sample in samples_of(op, layout):
        arguments = (sample.input, sample.args, sample.kwargs)
        ours = tree_map(on_maca, arguments)
        expected = op(arguments[0], *arguments[1], **arguments[2])
        found = op(ours[0], *ours[1], **ours[2])
        if op.name == "randn_like":  # of numbers of its own
            assert_same(found * 0, expected * 0)
            continue
        assert found.layout is expected.layout
        torch.testing.assert_close(dense(found), dense(expected), equal_nan=True)
        try:
            wanted = gradients(arguments, expected)
        except RuntimeError:  # PyTorch has no gradient here
            continue
        torch.testing.assert_close(gradients(ours, found), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert macatensor.counters()["fallbacks"] == before


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=short)
@pytest.mark.parametrize("name", SHAPES)
def test_dense_and_back_is_as_on_the_host(name: str, layout: torch.layout, dtype: torch.dtype) -> None:
    host = example(name, layout, dtype)
    _, _, dense_dims, block = SHAPES[name]
    with macatensor.fallback("error"):
        ours = host.to("maca")
        assert ours.device.type == "maca" and ours.is_sparse_csr == host.is_sparse_csr
        assert_same(ours, host)
        assert_same(ours.cpu(), host)
        assert torch.equal(ours.to_dense().cpu(), host.to_dense())
        made = (
            strided(name, dtype)
            .to("maca")
            .to_sparse(layout=layout, blocksize=block if layout in BLOCKED else None, dense_dim=dense_dims)
        )
        assert_same(made, host)
        assert (made._nnz(), made.sparse_dim(), made.dense_dim()) == (host._nnz(), 2, dense_dims)


CONVERSIONS: dict[str, Callable[[torch.Tensor, tuple[int, int]], torch.Tensor]] = {
    "coo": lambda t, block: t.to_sparse(),
    "csr": lambda t, block: t.to_sparse_csr(),
    "csc": lambda t, block: t.to_sparse_csc(),
    "bsr": lambda t, block: t.to_sparse_bsr(block),
    "bsc": lambda t, block: t.to_sparse_bsc(block),
}


@pytest.mark.parametrize("to", CONVERSIONS)
@pytest.mark.parametrize("layout", (torch.sparse_coo, *LAYOUTS), ids=short)
@pytest.mark.parametrize("name", SHAPES)
def test_conversions_are_as_on_the_host(name: str, layout: torch.layout, to: str) -> None:
    block = SHAPES[name][3]
    host = strided(name).to_sparse() if layout is torch.sparse_coo else example(name, layout)
    try:
        expected = CONVERSIONS[to](host, block)
    except RuntimeError as error:
        with macatensor.fallback("silent"), pytest.raises(type(error)):
            CONVERSIONS[to](host.to("maca"), block)
        return
    with macatensor.fallback("error"):
        assert_same(CONVERSIONS[to](host.to("maca"), block), expected)


def test_indices_of_32_bits_stay_so() -> None:
    host = example("matrix", CSR)
    narrow = torch.sparse_csr_tensor(
        host.crow_indices().int(), host.col_indices().int(), host.values(), host.shape
    )
    with macatensor.fallback("error"):
        ours = narrow.to("maca")
        assert_same(ours, narrow)
        assert_same(ours.to_sparse_csc(), narrow.to_sparse_csc())
        assert_same(ours.to_sparse_bsr((2, 2)), narrow.to_sparse_bsr((2, 2)))
        assert_same(ours + ours, narrow + narrow)
        other = torch.randn(4, 3)
        torch.testing.assert_close((ours @ other.to("maca")).cpu(), narrow @ other)


USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "detached": lambda t: t.detach(),
    "cloned": lambda t: t.clone(),
    "cast": lambda t: t.to(torch.float64),
    "zeros like": lambda t: torch.zeros_like(t),
    "zeroed": lambda t: t.clone().zero_(),
    "filled": lambda t: t.clone().fill_(3.0),
    "copied": lambda t: torch.zeros_like(t).resize_as_sparse_(t).copy_(t),
    "negative": lambda t: -t,
    "in place": lambda t: t.clone().neg_().mul_(2),
    "out": lambda t: torch.sin(t, out=t.clone()),
    "doubled": lambda t: t * 2,
    "halved": lambda t: torch.tensor(0.5) * t,
    "is nan": lambda t: torch.isnan(t),
    "absolute": lambda t: t.abs(),
    "relu": lambda t: t.relu(),
    "sum": lambda t: t.sum(),
    "transposed": lambda t: t.transpose(-2, -1),
    "values": lambda t: t.values(),
    "selected": lambda t: t.select(0, 1),
    "last of dense": lambda t: t.select(-1, 0),
    "added": lambda t: t + t,
    "times itself": lambda t: t * t,
    "times dense": lambda t: t * torch.full(t.shape, 3.0, device=t.device),
    "masked": lambda t: torch.arange(1.0, t.numel() + 1).reshape(t.shape).to(t.device).sparse_mask(t),
    "summed along": lambda t: t.sum(0, keepdim=True),
    "summed along rows": lambda t: t.sum((1,), keepdim=True),
    "summed altogether": lambda t: t.sum((0, 1), keepdim=True).to_dense(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=short)
@pytest.mark.parametrize(
    "name", [name for name in SHAPES if name != "no rows"]
)  # of which the host's kernels crash
def test_uses_are_as_on_the_host(name: str, layout: torch.layout, use: Callable[[torch.Tensor], Any]) -> None:
    host = example(name, layout)
    try:
        expected = use(host)
    except (RuntimeError, IndexError) as error:
        with macatensor.fallback("silent"):
            try:
                found = use(host.to("maca"))
            except Exception as ours:
                assert isinstance(ours, type(error))
            else:  # more is served than by the host
                torch.testing.assert_close(dense(found), dense(use(host.to_dense())))
        return
    with macatensor.fallback("error"):
        found = use(host.to("maca"))
    assert_same(found, expected)


@pytest.mark.parametrize("layout", LAYOUTS, ids=short)
@pytest.mark.parametrize("name", SHAPES)
def test_sums_with_dense_tensors(name: str, layout: torch.layout) -> None:
    ours, full = (
        example(name, layout).to("maca"),
        strided(name),
    )  # the host's kernel crashes for some of these
    other = torch.randn(full.shape)
    with macatensor.fallback("error"):
        torch.testing.assert_close((other.to("maca") + ours).cpu(), other + full)
        torch.testing.assert_close((ours + other.to("maca")).cpu(), other + full)
        torch.testing.assert_close(torch.add(other.to("maca"), ours, alpha=3).cpu(), other + 3 * full)
        torch.testing.assert_close(other.to("maca").add_(ours).cpu(), other + full)


FACTORIES = {
    CSR: (torch.sparse_csr_tensor, torch.ops.aten._sparse_csr_tensor_unsafe.default),
    CSC: (torch.sparse_csc_tensor, torch.ops.aten._sparse_csc_tensor_unsafe.default),
    BSR: (torch.sparse_bsr_tensor, torch.ops.aten._sparse_bsr_tensor_unsafe.default),
    BSC: (torch.sparse_bsc_tensor, torch.ops.aten._sparse_bsc_tensor_unsafe.default),
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=short)
def test_factories_make_what_the_host_makes(layout: torch.layout) -> None:
    host = example("blocks wider than high", layout)
    named, unsafe = FACTORIES[layout]
    parts = [m.to("maca") for m in members(host)]
    lists = [m.tolist() for m in members(host)]
    with macatensor.fallback("error"):
        for made in (
            named(*parts, host.shape),
            named(*parts, host.shape, check_invariants=True),
            named(*lists, host.shape, device="maca"),
            torch.sparse_compressed_tensor(*parts, host.shape, layout=layout),
            torch.ops.aten._sparse_compressed_tensor_unsafe.default(*parts, host.shape, layout=layout),
            unsafe(*parts, host.shape),
            torch.empty_like(host.to("maca")).copy_(host),
        ):
            assert type(made).__name__ == "CompressedMacaTensor"
            assert_same(made, host)
        assert_same(named(*parts), named(*members(host)))
        with torch.inference_mode():
            assert_same(named(*[m.to("maca") for m in members(host)], host.shape), host)
        if layout not in BLOCKED:
            assert_same(torch.zeros(3, 4, layout=layout, device="maca"), torch.zeros(3, 4, layout=layout))
            assert torch.empty(3, 4, layout=layout, device="maca").layout is layout


def test_values_share_memory_with_the_tensor() -> None:
    ours = example("matrix", CSR).to("maca")
    ours.values().mul_(2)
    torch.testing.assert_close(ours.to_dense().cpu(), strided("matrix") * 2)


BAD = {
    "first": ([1, 1, 2], [0, 1], 2),
    "last": ([0, 1, 1], [0, 1], 2),
    "order": ([0, 2, 1, 2], [0, 1], 2),
    "columns": ([0, 1, 2], [0, 7], 2),
    "negative": ([0, 1, 2], [0, -1], 2),
    "twice": ([0, 2, 2], [1, 1], 2),
    "unsorted": ([0, 2, 2], [1, 0], 2),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_indices_are_refused_and_never_crash(name: str) -> None:
    crow, col, columns = BAD[name]
    size = (len(crow) - 1, columns)
    parts = torch.tensor(crow), torch.tensor(col), torch.ones(2)
    with pytest.raises(RuntimeError) as expected:
        torch.sparse_csr_tensor(*parts, size, check_invariants=True)
    ours = [p.to("maca") for p in parts]
    with pytest.raises(RuntimeError) as found:
        torch.sparse_csr_tensor(*ours, size, check_invariants=True)
    assert str(found.value) == str(expected.value)
    made = torch.sparse_csr_tensor(*ours, size)
    uses: list[Callable[[], Any]] = [
        lambda: made.to_dense(), lambda: made @ torch.ones(columns, 3, device="maca"), lambda: made.to_sparse_csc(),
        lambda: made @ made, lambda: made.to_sparse(), lambda: made + made, lambda: made.sum(0, keepdim=True),
        lambda: torch.sparse.mm(made, torch.ones(columns, 3, device="maca"), "amax"), lambda: made[0],
        lambda: torch.triangular_solve(torch.ones(2, 1, device="maca"), made),
    ]  # fmt: skip
    with macatensor.fallback("silent"):
        for use in uses:
            try:
                dense(use())
            except (RuntimeError, IndexError, ValueError):
                pass  # an error is right, as is whatever number
    assert torch.ones(2, device="maca").sum().item() == 2


@pytest.mark.parametrize("layout", LAYOUTS, ids=short)
def test_files_copies_and_words_keep_compressed_tensors(layout: torch.layout) -> None:
    host = example("matrix", layout)
    ours = host.to("maca")
    file = io.BytesIO()
    torch.save({"t": ours}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["t"]
    assert loaded.device.type == "maca"
    assert_same(loaded, host)
    file.seek(0)
    assert_same(torch.load(file, weights_only=True, map_location="cpu")["t"], host)
    copied = copy.deepcopy(ours)
    copied.values().zero_()
    assert_same(ours, host)
    assert_same(pickle.loads(pickle.dumps(ours)), host)
    text = repr(ours)
    assert (
        f"layout=torch.sparse_{short(layout)}" in text and f"nnz={host._nnz()}" in text and "maca:0" in text
    )
    assert_same(macatensor.maca(host), host)
    assert torch.nn.Parameter(ours).layout is layout


MISUSES: list[Callable[[torch.Tensor], Any]] = [
    lambda t: t + torch.ones(7, device=t.device),
    lambda t: t @ torch.ones(3, 3, device=t.device),
    lambda t: t.ccol_indices(),
    lambda t: t.transpose(0, 5),
    lambda t: t.select(0, 99),
    lambda t: t.to_sparse_bsr((5, 5)),
    lambda t: t.to_sparse_bsr((0, 2)),
    lambda t: t.to_sparse(1),
    lambda t: t.to_dense().to_sparse_bsr((5, 5)),
    lambda t: t.to_dense().to_sparse_csr(dense_dim=3),
    lambda t: t.sum(0),
    lambda t: t.view(-1),
    lambda t: t.exp(),
    lambda t: torch.zeros(3, layout=CSR, device=t.device),
    lambda t: torch.zeros(3, 4, layout=BSR, device=t.device),
    lambda t: torch.sparse.mm(t, torch.ones(4, 2, device=t.device), "product"),
    lambda t: torch.empty_like(t, layout=CSC),
    lambda t: torch.sparse_csr_tensor(
        t.crow_indices(), t.col_indices(), t.values()[1:], check_invariants=True
    ),
    lambda t: torch.sparse.sampled_addmm(
        t, torch.ones(3, 2, device=t.device), torch.ones(2, 4, device=t.device)
    ),
    lambda t: t.untyped_storage(),
]


@pytest.mark.parametrize("misuse", MISUSES, ids=range(len(MISUSES)))
def test_misuse_raises_what_the_host_raises(misuse: Callable[[torch.Tensor], Any]) -> None:
    host = example("matrix", CSR)
    with pytest.raises(Exception) as expected:
        misuse(host)
    with macatensor.fallback("silent"), pytest.raises(type(expected.value)):
        misuse(host.to("maca"))


def test_operands_of_two_devices_are_refused() -> None:
    host = example("matrix", CSR)
    for one, other in ((host, host.to("maca")), (host.to("maca"), host)):
        with pytest.raises(RuntimeError, match="same device"):
            one + other


@pytest.mark.parametrize("dims", ((0,), (1,), (0, 1)))
@pytest.mark.parametrize("dtype", (torch.int8, torch.uint8, torch.int32, torch.float16), ids=str)
def test_sums_of_integers_are_int64(dtype: torch.dtype, dims: tuple[int, ...]) -> None:
    host = torch.tensor([[100, 0, 100], [0, 100, 0]]).to(dtype).to_sparse_csr()
    found, expected = (torch.sum(t, dims, keepdim=True) for t in (host.to("maca"), host))
    assert found.dtype is expected.dtype
    assert torch.equal(found.to_dense().cpu(), expected.to_dense())


def test_a_compressed_tensor_takes_the_sizes_of_another() -> None:
    ours = torch.eye(3).to_sparse_csr().to("maca")
    with macatensor.fallback("error"):
        ours.resize_as_sparse_(torch.ones(2, 5).to_sparse_csr().to("maca"))
        assert ours.shape == (2, 5) and ours._nnz() == 10
        values = ours.values().fill_(3)
        assert ours.resize_as_sparse_(ours) is ours and torch.equal(ours.values(), values)


@pytest.mark.parametrize("beta", (0, 0.5))
def test_addmm_keeps_the_layout_of_what_is_added(beta: float) -> None:
    matrix = torch.tensor([[1.0, 0, 2], [0, 0, 3], [4, 5, 6]])
    for to in (lambda t: t.to_sparse_csc(), lambda t: t.to_sparse_csr()):
        ours = [to(matrix).to("maca") for _ in range(3)]
        found = torch.addmm(*ours, beta=beta, alpha=2)
        assert found.layout is ours[0].layout
        expected = torch.addmm(matrix, matrix, matrix, beta=beta, alpha=2)
        torch.testing.assert_close(found.to_dense().cpu(), expected)


@pytest.mark.parametrize(
    "size", ((4, 4), (2, 5), (1, 3), (3, 3), (0, 3), (1, 1), (3, 2), (3,), (-1, 3)), ids=str
)
@pytest.mark.parametrize("layout", (torch.sparse_csr, torch.sparse_csc), ids=str)
def test_resize_as_on_the_host(layout: torch.layout, size: tuple[int, ...]) -> None:
    host = torch.tensor([[1.0, 0, 2], [0, 0, 3], [4, 5, 6]]).to_sparse(layout=layout)
    ours = host.to("maca")
    try:
        host.resize_(size)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=re.escape(str(error))):
            ours.resize_(size)
        return
    if layout is torch.sparse_csc and size[0] != size[1]:  # the host's has indices that are none of its
        with pytest.raises(RuntimeError, match="accepted: sparse_csr"):
            ours.resize_(size)
        return
    assert ours.resize_(size) is ours
    assert_same(ours, host)


def test_blocks_are_never_resized() -> None:
    ours = torch.eye(4).to_sparse_bsr((2, 2)).to("maca")
    with pytest.raises(RuntimeError, match="accepted: sparse_csr"):
        ours.resize_(6, 4)
    assert torch.equal(ours.to_dense().cpu(), torch.eye(4))


@pytest.mark.parametrize("transpose", (False, True))
@pytest.mark.parametrize("out_int32", (False, True))
def test_indices_are_converted_as_on_the_host(out_int32: bool, transpose: bool) -> None:
    options = {"out_int32": out_int32, "transpose": transpose}
    for ends, plain in (
        ([0, 1, 3], [2, 0, 1]),
        ([[0, 1, 3], [0, 3, 3]], [[2, 0, 1], [0, 1, 2]]),
        ([0, 0], []),
    ):
        members = torch.tensor(ends), torch.tensor(plain, dtype=torch.int64)
        found, expected = (
            torch._convert_indices_from_csr_to_coo(*(m.to(d) for m in members), **options)
            for d in ("maca", "cpu")
        )
        assert found.dtype is expected.dtype and torch.equal(found.cpu(), expected)
    at = torch.tensor([0, 2, 2, 3])
    found, expected = (
        torch._convert_indices_from_coo_to_csr(at.to(d), 5, out_int32=out_int32) for d in ("maca", "cpu")
    )
    assert found.dtype is expected.dtype and torch.equal(found.cpu(), expected)


def test_what_compressed_tensors_lack_is_said() -> None:
    for act in (
        lambda t: t.is_contiguous(),
        lambda t: t.stride(),
        lambda t: t.untyped_storage(),
        lambda t: torch.zeros(0, 3, 3, device=t.device).to_sparse_csr(),
    ):
        host = torch.eye(3).to_sparse_csr()
        with pytest.raises((RuntimeError, NotImplementedError)) as theirs:
            act(host)
        with pytest.raises(type(theirs.value), match=str(theirs.value)[:30]):
            act(host.to("maca"))


@pytest.mark.parametrize("write", [
    lambda t: t.add_(t), lambda t: t.add_(t.clone(), alpha=3), lambda t: t.mul_(2), lambda t: t.neg_(),
    lambda t: torch.add(t, t, out=t), lambda t: torch.sin(t, out=t), lambda t: t.copy_(t * 2),
])  # fmt: skip
@pytest.mark.parametrize("layout", [CSR, CSC], ids=str)
def test_whoever_shares_elements_sees_writes(
    write: Callable[[torch.Tensor], Any], layout: torch.layout
) -> None:
    t = torch.tensor([[1.0, 0, 2], [0, 0, 3]]).to_sparse(layout=layout)
    on_device = t.to("maca")
    shared = on_device.detach()
    write(shared)
    assert torch.equal(on_device.to_dense(), shared.to_dense())
    try:
        write(t.detach())
    except RuntimeError:  # what the host lacks
        return
    assert torch.equal(on_device.to_dense().cpu(), t.to_dense())
