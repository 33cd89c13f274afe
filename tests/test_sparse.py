"""COO tensors of the device against those of the host: PyTorch's operator database, training, files."""

from __future__ import annotations

import copy
import functools
import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from sparse_values import DTYPES, dense, gradients, on_maca, samples_of
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map

import macatensor

COO = torch.sparse_coo
SPARSE = [op for op in op_db if op.supports_sparse]


@pytest.mark.parametrize("op", SPARSE, ids=lambda op: op.formatted_name)
def test_samples_of_the_database_agree(op: Any) -> None:
    before = macatensor.counters()["fallbacks"]
    for sample in samples_of(op, COO):
        arguments = (sample.input, sample.args, sample.kwargs)
        ours = tree_map(on_maca, arguments)
        expected = op(arguments[0], *arguments[1], **arguments[2])
        found = op(ours[0], *ours[1], **ours[2])
        torch.testing.assert_close(tree_map(dense, found), tree_map(dense, expected), equal_nan=True)
        try:
            wanted = gradients(arguments, expected)
        except RuntimeError:  # PyTorch has no gradient here
            continue
        torch.testing.assert_close(gradients(ours, found), wanted, equal_nan=True)
    assert macatensor.counters()["fallbacks"] == before


SHAPES = {
    "matrix": ([[0, 1, 1, 0, 1], [2, 0, 2, 2, 0]], (2, 3), ()),
    "vector": ([[3, 1, 3]], (5,), ()),
    "dense dimensions": ([[1, 0, 1]], (2,), (3, 2)),
    "three dimensions": ([[0, 1, 1], [0, 0, 0], [4, 2, 2]], (2, 1, 5), ()),
    "no elements": ([[], []], (4, 3), ()),
    "of no size": ([[], []], (0, 3), (2,)),
}


def example(name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    indices, sizes, dense_sizes = SHAPES[name]
    at = torch.tensor(indices, dtype=torch.int64)
    count = at.shape[1]
    values = torch.arange(count * torch.Size(dense_sizes).numel()).reshape(count, *dense_sizes) % 5 - 1
    return torch.sparse_coo_tensor(at, values.to(dtype), (*sizes, *dense_sizes), check_invariants=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_elements_of_one_place_add_up(name: str, dtype: torch.dtype) -> None:
    host = example(name, dtype)
    ours = host.to("maca")
    expected, found = host.coalesce(), ours.coalesce()
    assert found.is_coalesced() and ours.is_coalesced() == host.is_coalesced()
    assert torch.equal(found.indices().cpu(), expected.indices())
    assert torch.equal(found.values().cpu(), expected.values())
    assert torch.equal(ours.to_dense().cpu(), host.to_dense())
    back = ours.cpu()
    assert torch.equal(back._indices(), host._indices()) and torch.equal(back._values(), host._values())


USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "made of device tensors": lambda t: torch.sparse_coo_tensor(t._indices(), t._values(), t.shape),
    "dense and back": lambda t: t.to_dense().to_sparse(),
    "added": lambda t: t + t * 2,
    "subtracted": lambda t: t - t.coalesce(),
    "times itself": lambda t: t * t,
    "added to dense": lambda t: torch.ones(t.shape, device=t.device) + t,
    "in place": lambda t: t.clone().mul_(3).add_(t, alpha=2),
    "negative": lambda t: -t,
    "squared": lambda t: t**2,
    "cast": lambda t: t.double(),
    "zeros like": lambda t: torch.zeros_like(t),
    "zeroed": lambda t: t.clone().zero_(),
    "summed": lambda t: torch.sparse.sum(t),
    "summed along": lambda t: torch.sparse.sum(t, 0),
    "norm": lambda t: t.norm(),
    "dimension before": lambda t: t.unsqueeze(0),
    "dimension after": lambda t: t.unsqueeze(-1),
    "concatenated": lambda t: torch.cat([t, t]),
    "stacked": lambda t: torch.stack([t, t * 2], -1),
    "rows by number": lambda t: t.index_select(
        0, torch.tensor([1, -1, 1] if len(t) else [], device=t.device).long()
    ),
    "columns by number": lambda t: t.index_select(-1, torch.tensor([0, 0], device=t.device)),
    "no rows": lambda t: t.index_select(0, torch.tensor([], dtype=torch.int64, device=t.device)),
    "row by row": lambda t: list(t),
    "one row": lambda t: t.select(0, -1) if len(t) else t,
    "one column": lambda t: t.select(-1, 0),
    "new": lambda t: t.new_zeros((2, 3)),
    "any": lambda t: t.any(),
    "sum of absolutes": lambda t: torch.norm(t, 1),
    "imaginary parts": lambda t: (t * 1j).imag,
    "reciprocal": lambda t: t**-1,
    "into another": lambda t: torch.add(t, t, out=torch.zeros_like(t)),
    "negative into another": lambda t: torch.neg(t, out=t.clone()),
    "product into another": lambda t: torch.mul(t, t, out=torch.zeros_like(t)),
    "masked": lambda t: torch.full(t.shape, 7.0, device=t.device).sparse_mask(t.coalesce()),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("name", SHAPES)
def test_uses_agree_with_the_host(name: str, use: Callable[[torch.Tensor], Any]) -> None:
    host = example(name)
    with macatensor.fallback("error"):
        found = tree_map(dense, use(host.to("maca")))
    torch.testing.assert_close(found, tree_map(dense, use(host)))


@pytest.mark.supports("torch.optim.SparseAdam")
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.1),
        lambda p: torch.optim.Adagrad(p, 0.1),
        lambda p: torch.optim.SparseAdam(p, 0.1),
    ],
    ids=["SGD", "Adagrad", "SparseAdam"],
)
@pytest.mark.parametrize("kind", [torch.nn.Embedding, torch.nn.EmbeddingBag])
def test_sparse_gradients_train_as_on_the_host(kind: type[torch.nn.Module], make: Any) -> None:
    torch.manual_seed(0)
    host = kind(20, 4, sparse=True)
    ours = copy.deepcopy(host).to("maca")
    batch = torch.tensor([[1, 2, 1], [7, 7, 19]])
    with macatensor.fallback("error"):
        for module, given in ((host, batch), (ours, batch.to("maca"))):
            optimizer = make(module.parameters())
            for _ in range(3):
                optimizer.zero_grad()
                module(given).square().sum().backward()
                assert module.weight.grad.layout is COO
                optimizer.step()
    torch.testing.assert_close(ours.weight.detach().cpu(), host.weight.detach())


def test_products_have_gradients_of_both_operands() -> None:
    torch.manual_seed(0)
    host, other = example("matrix").coalesce().requires_grad_(), torch.randn(3, 4, requires_grad=True)
    ours, another = on_maca(host), on_maca(other)
    for a, b in ((host, other), (ours, another)):
        torch.sparse.mm(a, b).square().sum().backward()
    torch.testing.assert_close(dense(ours.grad), dense(host.grad))
    torch.testing.assert_close(dense(another.grad), dense(other.grad))


@pytest.mark.parametrize("function", [torch.sparse.softmax, torch.sparse.log_softmax])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["matrix", "vector", "dense dimensions", "three dimensions", "no elements"])
def test_softmax_of_what_is_there(name: str, dtype: torch.dtype, function: Callable[..., Any]) -> None:
    for dim in range(example(name).dim()):
        host = example(name, dtype).requires_grad_()
        ours = on_maca(host)
        expected = function(host, dim)
        with macatensor.fallback("error"):
            found = function(ours, dim)
            found.to_dense().square().sum().backward()
        torch.testing.assert_close(dense(found), dense(expected))
        assert found.is_coalesced()
        expected.to_dense().square().sum().backward()
        torch.testing.assert_close(dense(ours.grad), dense(host.grad))


def test_softmax_of_large_and_infinite_numbers() -> None:
    at = [[0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1]]
    values = torch.tensor([1e4, 1e4 - 1, -torch.inf, 0.0, torch.nan, 1.0])
    host = torch.sparse_coo_tensor(at, values, (3, 2))
    for function in (torch.sparse.softmax, torch.sparse.log_softmax):
        with macatensor.fallback("error"):
            found = function(host.to("maca"), 1)
        torch.testing.assert_close(dense(found), dense(function(host, 1)), equal_nan=True)


PAIRS = {
    "square": (((4, 4), [[0, 1, 3], [1, 3, 0]]), ((4, 4), [[3, 0, 1, 1], [3, 2, 0, 1]])),
    "oblong": (((2, 5), [[0, 0, 1, 1], [4, 1, 0, 4]]), ((5, 3), [[4, 4, 1, 2], [0, 2, 2, 1]])),
    "uncoalesced": (((2, 3), [[1, 0, 1, 1], [2, 0, 2, 0]]), ((3, 2), [[2, 0, 2, 2], [1, 1, 1, 0]])),
    "no elements": (((2, 3), [[], []]), ((3, 2), [[0], [1]])),
    "of no size": (((0, 3), [[], []]), ((3, 0), [[], []])),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_products_of_two_sparse_matrices_agree(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    host = [
        torch.sparse_coo_tensor(
            torch.tensor(at, dtype=torch.int64), torch.randn(len(at[0]), dtype=dtype), size
        )
        for size, at in PAIRS[name]
    ]
    ours = [t.to("maca") for t in host]
    for operands in (host, ours):
        for t in operands:
            t.requires_grad_()
    with macatensor.fallback("error"):
        found = torch.sparse.mm(*ours)
        found.to_dense().abs().square().sum().backward()
    expected = torch.sparse.mm(*host)
    torch.testing.assert_close(dense(found), dense(host[0]) @ dense(host[1]))
    torch.testing.assert_close(dense(found), dense(expected))
    expected.to_dense().abs().square().sum().backward()
    for theirs, mine in zip(host, ours):
        torch.testing.assert_close(dense(mine.grad), dense(theirs.grad))


def test_products_of_many_terms_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from macatensor.sparse import matrices, rows

    torch.manual_seed(0)
    a, b = ((torch.rand(30, 30) * (torch.rand(30, 30) < 0.3)) for _ in range(2))
    with macatensor.fallback("error"):
        for terms in (7, 100):
            monkeypatch.setattr(matrices, "TERMS", terms)
            monkeypatch.setattr(rows, "TERMS", terms)
            found = a.to("maca").to_sparse() @ b.to("maca").to_sparse()
            torch.testing.assert_close(dense(found), a @ b)
            doubled = torch.cat([a.to("maca").to_sparse()._indices()] * 2, 1)
            values = torch.cat([a.to("maca").to_sparse()._values()] * 2)
            uncoalesced = torch.sparse_coo_tensor(doubled, values, a.shape)
            torch.testing.assert_close((uncoalesced @ b.to("maca")).cpu(), 2 * a @ b)


def test_files_copies_and_words_keep_sparse_tensors() -> None:
    ours = example("matrix").to("maca")
    file = io.BytesIO()
    torch.save({"grad": ours}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["grad"]
    assert loaded.device.type == "maca" and torch.equal(loaded.to_dense(), ours.to_dense())
    file.seek(0)
    assert torch.load(file, weights_only=True, map_location="cpu")["grad"].device.type == "cpu"
    copied = copy.deepcopy(ours)
    copied.zero_()
    assert ours._nnz() == 5 and copied._nnz() == 0
    assert "nnz=5" in repr(ours) and "maca:0" in repr(ours)
    assert macatensor.maca(example("matrix")).is_sparse


def test_what_the_host_is_asked_for_is_counted() -> None:
    ours = example("matrix").to("maca").coalesce()
    with macatensor.fallback("error"), pytest.raises(NotImplementedError, match="MACA_FALLBACK"):
        ours.exp()
    before = macatensor.counters()["fallbacks"]
    with macatensor.fallback("silent"), pytest.raises(NotImplementedError, match="Could not run 'aten::exp'"):
        ours.exp()
    assert macatensor.counters()["fallbacks"] == before + 1


@pytest.mark.parametrize(
    "misuse",
    [
        lambda t: t.indices(),
        lambda t: t + torch.ones(2, 3, device=t.device),
        lambda t: t + t.transpose(0, 1),
        lambda t: torch.sparse.mm(t, torch.ones(2, 2, device=t.device)),
        lambda t: torch.sparse_coo_tensor(t._indices() + 5, t._values(), t.shape, check_invariants=True),
        lambda t: t.mul_(1j),
        lambda t: t.permute(0, 0),
        lambda t: torch.ops.aten.norm.ScalarOpt_dim(t, 1, [0, 1, 7]),
        lambda t: t.unsqueeze(7),
        lambda t: t.untyped_storage(),
    ],
)
def test_misuse_raises_what_the_host_raises(misuse: Callable[[torch.Tensor], Any]) -> None:
    host = example("matrix")
    with pytest.raises(Exception) as expected:
        misuse(host)
    with macatensor.fallback("silent"), pytest.raises(type(expected.value)):
        misuse(host.to("maca"))


@pytest.mark.parametrize("checked", [None, True, False])
@pytest.mark.parametrize(
    ("values", "size"),
    [((1, 2, 3), (1, 3, 4)), ((1, 2, 3, 0), (1, 3, 4, 0)), ((1, 3), (1, 3, 4)), ((2, 3), (3, 3)), ((1, 3), (0, 3))],
)  # fmt: skip
def test_members_that_do_not_fit(values: Sequence[int], size: Sequence[int], checked: bool | None) -> None:
    def made(device: str) -> str:
        at = torch.zeros(1, 1, dtype=torch.int64, device=device)
        try:
            torch.sparse_coo_tensor(at, torch.ones(values, device=device), size, check_invariants=checked)
        except RuntimeError as error:
            return str(error)
        return "made"

    assert made("maca") == made("cpu")


@pytest.mark.parametrize("size", [(), ((3,),)], ids=["estimated", "given"])
def test_elements_said_to_be_coalesced_are_looked_at(size: tuple[Sequence[int], ...]) -> None:
    values = torch.ones(2, device="maca", requires_grad=True)
    make = functools.partial(torch.sparse_coo_tensor, is_coalesced=True, check_invariants=True)
    for at in ([[1, 0]], [[0, 0]]):
        with pytest.raises(RuntimeError, match="cannot set is_coalesced to true"):
            make(torch.tensor(at, device="maca"), values, *size)
    made = make(torch.tensor([[0, 2]], device="maca"), values, *size)
    assert made.is_coalesced() and made.shape == (3,)
    made.to_dense().sum().backward()
    assert values.grad is not None


def test_members_of_two_devices_are_refused() -> None:
    at, values = torch.tensor([[0]]), torch.ones(1)
    for members in ((at.to("maca"), values), (at, values.to("maca"))):
        with pytest.raises(RuntimeError, match="same device"):
            torch.sparse_coo_tensor(*members, (2,))
        assert torch.sparse_coo_tensor(*members, (2,), device="maca").device.type == "maca"


def test_mask_without_dimensions() -> None:
    number = torch.tensor(3.0, device="maca")
    masked = number.sparse_mask(number.to_sparse())
    assert (masked.sparse_dim(), masked.dense_dim(), masked._values().shape) == (0, 0, (1,))


def test_operands_of_two_devices_are_refused() -> None:
    host = example("matrix")
    for one, other in ((host, host.to("maca")), (host.to("maca"), host)):
        with pytest.raises(RuntimeError, match="same device"):
            one + other


def _apart() -> torch.Tensor:
    """Two elements in one place, a third elsewhere."""
    return torch.sparse_coo_tensor([[0, 0, 2], [1, 1, 0]], [1.0, 2.0, 4.0], (3, 4), check_invariants=True)


@pytest.mark.parametrize(
    "compute",
    (
        lambda t: t + torch.sparse_coo_tensor(t.shape, device=t.device),
        lambda t: torch.sparse_coo_tensor(t.shape, device=t.device) + t,
        lambda t: t * torch.tensor(2, device=t.device).to_sparse(),
        lambda t: torch.tensor(2, device=t.device).to_sparse() * t,
        lambda t: t.clone().transpose_(0, 1),
        lambda t: t.clone().t_(),
        lambda t: t.permute(-2, -1),
        lambda t: torch.zeros_like(t.to_dense(), layout=COO),
        lambda t: t.to_dense().new_zeros((2, 2), layout=torch.sparse_csr),
    ),
)
def test_elements_are_kept_as_on_the_host(compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with macatensor.fallback("error"):
        found = compute(_apart().to("maca"))
    expected = compute(_apart())
    assert (found.device.type, found.layout, found.shape) == ("maca", expected.layout, expected.shape)
    assert found._nnz() == expected._nnz()
    if found.layout is COO:
        assert found.is_coalesced() == expected.is_coalesced()
    assert torch.equal(found.to_dense().cpu(), expected.to_dense())


def test_changed_sizes_keep_gradients() -> None:
    ours = _apart().to("maca").requires_grad_()
    (ours * 3).transpose_(0, 1).to_dense().sum().backward()
    assert torch.equal(ours.grad.to_dense().cpu() != 0, _apart().to_dense() != 0)


def test_sizes_grow_and_shrink_as_on_the_host() -> None:
    with macatensor.fallback("error"):
        for size in ((5, 6), (3, 4), (2, 2), (3, 4, 2)):
            for clear in (False, True):
                host, ours = _apart(), _apart().to("maca")
                said = []
                for t in (host, ours):
                    try:
                        (t.sparse_resize_and_clear_ if clear else t.sparse_resize_)(size, 2, len(size) - 2)
                        t.resize_as_(torch.sparse_coo_tensor((7, 8), device=t.device) if t.dim() == 2 else t)
                        said.append("")
                    except RuntimeError as error:
                        said.append(str(error))
                assert said[0] == said[1]
                assert ours.shape == host.shape and torch.equal(ours.to_dense().cpu(), host.to_dense())


@pytest.mark.parametrize("dims", (0, 1, (0, 1)))
def test_places_of_a_sum_have_gradients_once(dims: int | tuple[int, ...]) -> None:
    gradients = []
    for t in (_apart(), _apart().to("maca")):
        t.requires_grad_()
        summed = torch.sparse.sum(t, dims)
        (summed.to_dense() if summed.is_sparse else summed).sum().backward()
        gradients.append(t.grad.to_dense().cpu())
    assert torch.equal(*gradients)


@pytest.mark.parametrize("name", ("empty_like", "zeros_like"))
def test_memory_formats_are_of_dense_tensors(name: str) -> None:
    with pytest.raises(RuntimeError, match="only supported by strided tensors"):
        getattr(torch, name)(_apart().to("maca"), memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="blocksize|empty_strided"):
        getattr(torch, name)(torch.ones(2, 2).to("maca"), layout=torch.sparse_bsr)


def test_sparse_tensors_show_themselves_as_pytorchs() -> None:
    for host in (torch.eye(2).to_sparse(), torch.eye(3).to_sparse_csr(), torch.zeros(0, 3).to_sparse()):
        shown = repr(host.to("maca"))
        assert shown.replace(" device='maca:0',", "").split() == repr(host).split()
        parameter = repr(torch.nn.Parameter(host.to("maca")))
        assert parameter.startswith("Parameter containing:\ntensor(") and "requires_grad=True" in parameter
