"""A MacaTensor behaves as a CUDA tensor does: text, numbers, indexing, identity, autograd."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from running import close, same

from macatensor import MacaTensor, maca

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip


def as_printed_on_maca(host: torch.Tensor) -> str:
    """PyTorch's text of a host tensor with ``device='maca:0'`` before its other parts."""
    text = repr(host)
    rest = ["size=", "dtype=", "requires_grad=", "grad_fn="]
    positions = [p for p in (text.rfind(", " + r) for r in rest) if p >= 0]
    broken = [p for p in (text.rfind(",\n       " + r) for r in rest) if p >= 0]
    at = min(positions + broken) if positions + broken else len(text) - 1
    return text[:at] + ", device='maca:0'" + text[at:]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(), (0,), (3,), (2, 3), (2, 0), (2, 3, 2)], ids=str)
def test_text_is_pytorchs(dtype: torch.dtype, size: tuple[int, ...]) -> None:
    n = torch.Size(size).numel()
    host = (torch.arange(n) % 5).to(dtype).reshape(size)
    assert repr(maca(host)) == as_printed_on_maca(host)


@pytest.mark.parametrize(
    "host",
    [
        torch.tensor([1.5, float("nan"), float("inf"), -0.0]),
        torch.tensor([1e-8, 1e8]),
        torch.randn(2000),
        torch.zeros(3, 4, 5, 6),
        torch.tensor([1.0, 2.0], requires_grad=True),
        torch.tensor([1, 2], dtype=torch.int32),
        torch.tensor([1 + 2j]),
        torch.tensor(3.5),
    ],
)
def test_text_of_awkward_values(host: torch.Tensor) -> None:
    ours = maca(host.detach()).requires_grad_(host.requires_grad)
    assert " ".join(repr(ours).split()) == " ".join(as_printed_on_maca(host).split())
    assert str(ours) == repr(ours)


def test_text_of_graph_nodes_and_parameters() -> None:
    x = maca(torch.ones(2)).requires_grad_()
    assert repr(x * 2) == "tensor([2., 2.], device='maca:0', grad_fn=<MulBackward0>)"
    assert repr(torch.nn.Parameter(maca(torch.ones(2)))) == (
        "Parameter containing:\ntensor([1., 1.], device='maca:0', requires_grad=True)"
    )
    assert repr(torch.nn.Parameter(maca(torch.ones(2)), requires_grad=False)) == (
        "Parameter containing:\ntensor([1., 1.], device='maca:0')"
    )
    assert f"{maca(1.5):.2f}" == "1.50"
    torch.set_printoptions(precision=2)
    try:
        assert repr(maca([1.23456])) == "tensor([1.23], device='maca:0')"
    finally:
        torch.set_printoptions(profile="default")


def test_text_follows_the_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        host = torch.ones(2)
        assert repr(maca(host)) == "tensor([1., 1.], device='maca:0')"
        assert "dtype=torch.float32" in repr(maca(host.float()))
    finally:
        torch.set_default_dtype(torch.float32)


def test_html() -> None:
    html = maca(torch.rand(2, 3, 4, 5))._repr_html_()
    for part in ("(2, 3, 4, 5)", "float32", "(60, 1, 15, 3)", "channels_last", "480", "mean", "maca:0"):
        assert part in html
    assert "empty" in maca(torch.zeros(0))._repr_html_()
    assert "1 NaN" in maca([1.0, float("nan")])._repr_html_()
    assert "2 of 3 true" in maca([True, False, True])._repr_html_()
    assert "<script" not in html
    for dtype in DTYPES:
        assert str(dtype).removeprefix("torch.") in maca(torch.ones(2, dtype=dtype))._repr_html_()


def test_numbers() -> None:
    assert maca(3).item() == 3 and isinstance(maca(3).item(), int)
    assert maca(2.5).item() == 2.5
    assert maca(True).item() is True
    assert maca(1 + 2j).item() == 1 + 2j
    assert int(maca(3.7)) == 3 and float(maca(2)) == 2.0 and complex(maca(2.0)) == 2 + 0j
    assert list(range(maca(3))) == [0, 1, 2]
    assert [10, 20][maca(1)] == 20
    with pytest.raises(RuntimeError, match="a Tensor with 2 elements cannot be converted to Scalar"):
        maca([1, 2]).item()


def test_numbers_below_autograd() -> None:
    """Operators of ours ask for numbers there, where PyTorch does not take ``item`` apart."""
    aten = torch.ops.aten
    below = torch._C._AutoDispatchBelowAutograd
    for t in (torch.tensor([1.5, 2.5]), maca([1.5, 2.5])):
        with below():
            assert t[1].item() == 2.5 and aten._local_scalar_dense(t) == 1.5
            with pytest.raises(RuntimeError, match="a Tensor with 2 elements cannot be converted to Scalar"):
                t.item()
            with pytest.raises(RuntimeError, match="_local_scalar_dense: Empty tensor not supported"):
                aten._local_scalar_dense(t[:0])


def test_tolist() -> None:
    assert maca([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    assert maca(1.5).tolist() == 1.5
    assert maca(torch.zeros(0)).tolist() == []
    assert maca(torch.arange(6).reshape(2, 3)).t()[1:].tolist() == [[1, 4], [2, 5]]


def test_truth_and_length() -> None:
    assert bool(maca(1)) and not bool(maca(0.0)) and bool(maca([3]))
    assert len(maca([1, 2, 3])) == 3
    with pytest.raises(TypeError, match="len\\(\\) of a 0-d tensor"):
        len(maca(1))
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(maca([1, 2]))
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(maca(torch.zeros(0)))


def test_iteration_and_membership() -> None:
    x = maca(torch.arange(6).reshape(2, 3))
    rows = list(x)
    assert len(rows) == 2 and all(isinstance(r, MacaTensor) for r in rows)
    assert rows[1].tolist() == [3, 4, 5]
    a, b = x
    assert b.tolist() == [3, 4, 5]
    assert 5 in x and 9 not in x
    assert [r.tolist() for r in reversed(x)] == [[3, 4, 5], [0, 1, 2]]
    with pytest.raises(TypeError, match="iteration over a 0-d tensor"):
        list(maca(1))


INDICES = [
    0, -1, slice(1, None), slice(None, None, 2), (0, 1), (slice(None), 1), (..., 0), None, (None, 1), True, False,
    [0, 2], ([0, 1], [1, 0]), (slice(None), [0, 2]), torch.tensor([1, 0]), (torch.tensor([1, 0]), slice(0, 2)),
    (torch.tensor([[0, 1], [2, 0]]), ..., torch.tensor([1])), (0, torch.tensor([True, False, True, True])),
    slice(5, 9), (slice(None), None, slice(0, 0)),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing(index: object) -> None:
    host = torch.arange(3 * 4 * 2).reshape(3, 4, 2)
    ours = maca(host)
    assert torch.equal(ours[index].cpu(), host[index])
    there = index
    if isinstance(index, torch.Tensor):
        there = maca(index)
    elif isinstance(index, tuple):
        there = tuple(maca(i) if isinstance(i, torch.Tensor) else i for i in index)
    assert torch.equal(ours[there].cpu(), host[index])
    ours[there] = -1
    host[index] = -1
    assert torch.equal(ours.cpu(), host)


def test_masks() -> None:
    host = torch.arange(12.0).reshape(3, 4)
    ours = maca(host)
    assert torch.equal(ours[ours > 5].cpu(), host[host > 5])
    assert torch.equal(ours[maca([True, False, True])].cpu(), host[[True, False, True]])
    ours[ours > 5] = 0
    host[host > 5] = 0
    assert torch.equal(ours.cpu(), host)
    ours[ours == 0] = torch.tensor(7.0)
    host[host == 0] = 7
    assert torch.equal(ours.cpu(), host)


def test_assignment_from_the_host() -> None:
    ours, host = maca(torch.zeros(3, 4)), torch.zeros(3, 4)
    ours[1] = torch.arange(4.0)
    host[1] = torch.arange(4.0)
    ours[:, 2] = maca(torch.tensor([7.0, 8.0, 9.0]))
    host[:, 2] = torch.tensor([7.0, 8.0, 9.0])
    ours[0, 0] = 3
    host[0, 0] = 3
    assert torch.equal(ours.cpu(), host)
    host[2] = ours[0]
    assert host[2].tolist() == [3, 0, 7, 0]


def test_attributes() -> None:
    x = maca(torch.zeros(2, 3))
    assert x.device == torch.device("maca", 0) and x.device.type == "maca" and x.get_device() == 0
    assert not x.is_cuda and not x.is_cpu and not x.is_meta and not x.is_sparse
    assert x.is_maca
    assert x.layout is torch.strided and x.is_contiguous() and x.nbytes == 24 and x.element_size() == 4
    assert x.requires_grad is False and x.is_leaf and x.grad is None
    assert isinstance(x, torch.Tensor) and torch.is_tensor(x)
    assert isinstance(torch.nn.Parameter(x), torch.nn.Parameter)
    assert x.data_ptr() != 0 and x[1].data_ptr() - x.data_ptr() == 12
    assert hash(x) == hash(x) and len({x, x}) == 1
    assert x.type() == "torch.maca.FloatTensor"


def test_cannot_be_made_directly() -> None:
    with pytest.raises(TypeError, match="macatensor.maca"):
        MacaTensor([1, 2])
    with pytest.raises(TypeError, match="macatensor.maca"):
        MacaTensor()


def test_to() -> None:
    x = maca(torch.rand(2, 3, 4, 5))
    assert x.to("maca") is x and x.to("maca:0") is x and x.maca() is x
    assert x.to("maca", copy=True) is not x
    assert x.to("cpu").device.type == "cpu" and type(x.to("cpu")) is torch.Tensor
    assert x.cpu().stride() == x.stride()
    assert x.double().dtype == torch.float64 and x.double().stride() == x.stride()
    assert x.to(torch.float16).to("cpu", torch.float32).dtype == torch.float32
    assert x.to(torch.zeros(1)).device.type == "cpu"
    assert torch.zeros(1).to(x).device.type == "maca"
    assert x.to(memory_format=torch.contiguous_format).is_contiguous()
    assert x.to("cpu", memory_format=torch.contiguous_format).is_contiguous()
    assert torch.rand(2, 3, 4, 5).to("maca", memory_format=torch.contiguous_format).is_contiguous()
    assert torch.equal(x.to("cpu", non_blocking=True), x.cpu())
    assert x.cpu().to("maca", torch.float64).dtype == torch.float64
    assert torch.equal(x[:, 1:].t_copy().cpu() if x.dim() == 2 else x[:, 1:].cpu(), x.cpu()[:, 1:])


def test_numpy_is_refused_in_cudas_words() -> None:
    x = maca([1.0, 2.0])
    words = "can't convert maca:0 device type tensor to numpy. Use Tensor.cpu\\(\\) to copy the tensor to host memory first."
    with pytest.raises(TypeError, match=words):
        x.numpy()
    with pytest.raises(TypeError, match=words):
        np.asarray(x)
    with pytest.raises(TypeError, match=words):
        np.array(x, dtype=np.float64)
    assert x.numpy(force=True).tolist() == [1.0, 2.0]
    with pytest.raises((BufferError, RuntimeError, ValueError), match="[Dd]evice"):
        np.from_dlpack(x)  # device memory is not the host's
    assert x.requires_grad_().numpy(force=True).tolist() == [1.0, 2.0]


def test_interactive_numpy_attributes_do_not_crash() -> None:
    x = maca([1.0, 2.0])
    for call in (lambda: x.untyped_storage(), lambda: x.storage(), lambda: x.untyped_storage().data_ptr(),
                 lambda: x.untyped_storage().tolist(), lambda: x.share_memory_(), lambda: x.pin_memory(),
                 lambda: x.__cuda_array_interface__, lambda: memoryview(x), lambda: bytes(x), lambda: x.names,
                 lambda: x.is_shared(), lambda: x.is_pinned(), lambda: x.to_sparse(), lambda: x.to_mkldnn(),
                 lambda: x.untyped_storage().cpu(), lambda: x.cuda(), lambda: x.data_ptr(), lambda: x.dense_dim(),
                 lambda: torch.as_tensor(x), lambda: torch.tensor(x), lambda: torch.asarray(x),
                 lambda: x.storage_type(), lambda: x.storage_offset(), lambda: x.type(torch.DoubleTensor),
                 lambda: torch.utils.dlpack.to_dlpack(x), lambda: x.untyped_storage()[0]):  # fmt: skip
        try:
            call()
        except Exception as error:  # any Python exception will do; a crash will not
            assert str(error) or isinstance(error, Exception)


@pytest.mark.supports("copy.deepcopy")
def test_deepcopy() -> None:
    x = maca(torch.rand(2, 3, 4, 5)).requires_grad_()
    x.grad = torch.ones_like(x)
    x.note = ["kept"]
    y = copy.deepcopy(x)
    assert (
        isinstance(y, MacaTensor)
        and y.requires_grad
        and y.stride() == x.stride()
        and y.data_ptr() != x.data_ptr()
    )
    assert torch.equal(y.cpu(), x.cpu()) and torch.equal(y.grad.cpu(), x.grad.cpu())
    assert y.note == ["kept"] and y.note is not x.note
    with torch.no_grad():
        y.zero_()
    assert x.abs().sum().item() > 0

    p = torch.nn.Parameter(maca(torch.ones(2)))
    q = copy.deepcopy(p)
    assert isinstance(q, torch.nn.Parameter) and q.requires_grad and q.data_ptr() != p.data_ptr()
    pair = copy.deepcopy([p, p])
    assert pair[0] is pair[1]
    base = maca(torch.zeros(4))
    both = copy.deepcopy([base, base[2:]])
    both[0].add_(1)
    assert both[1].tolist() == [1, 1] and base.tolist() == [0] * 4
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(x * 2)
    z = copy.deepcopy(maca(torch.tensor([1 + 2j])).conj())
    assert z.tolist() == [1 - 2j]
    shallow = copy.copy(base)
    assert isinstance(shallow, MacaTensor) and shallow.tolist() == base.tolist()


def test_deepcopied_modules() -> None:
    model = maca(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)))
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].weight.zero_()
    assert model[0].weight.abs().sum().item() > 0
    assert isinstance(other[1].running_mean, MacaTensor)
    assert other[0].weight.data_ptr() != model[0].weight.data_ptr()


def test_pickle() -> None:
    x = maca(torch.rand(2, 3, 4, 5))
    y = pickle.loads(pickle.dumps(x))
    assert isinstance(y, MacaTensor) and y.stride() == x.stride() and torch.equal(x.cpu(), y.cpu())
    p = pickle.loads(pickle.dumps(torch.nn.Parameter(maca(torch.ones(2)))))
    assert isinstance(p, torch.nn.Parameter) and isinstance(p, MacaTensor) and p.requires_grad


def test_parameter() -> None:
    data = maca(torch.ones(2, 3))
    p = torch.nn.Parameter(data)
    assert isinstance(p, MacaTensor) and isinstance(p, torch.nn.Parameter) and p.requires_grad and p.is_leaf
    with torch.no_grad():
        p.add_(1)
    assert data.sum().item() == 12
    assert torch.nn.Parameter(maca([1]), requires_grad=False).dtype == torch.int64
    module = torch.nn.Module()
    module.w = p
    assert dict(module.named_parameters())["w"] is p
    buffer = torch.nn.Buffer(maca(torch.ones(2)))
    module.b = buffer
    assert "b" in dict(module.named_buffers())


def test_data() -> None:
    x = maca(torch.ones(2, 3)).requires_grad_()
    y = maca(torch.full((4,), 5.0))
    x.data = y
    assert x.shape == (4,) and x.tolist() == [5.0] * 4 and x.requires_grad and (x * 2).tolist() == [10.0] * 4
    x.data.mul_(2)
    assert y.tolist() == [10.0] * 4
    assert not x.data.requires_grad
    x.data = x.data.half()
    assert x.dtype == torch.float16 and (x + 1).tolist() == [11.0] * 4
    with pytest.raises(TypeError):
        x.data = 2
    assert (x + 1).tolist() == [11.0] * 4


def test_views_see_writes_and_versions_move() -> None:
    x = maca(torch.zeros(3, 4))
    row, column, flat = x[1], x.t()[2], x.view(12)
    before = x._version
    row.fill_(5)
    assert x._version > before and row._version == x._version
    assert column.tolist() == [0, 5, 0] and flat.sum().item() == 20
    assert row._is_view() and row._base is x
    x.detach().add_(1)
    assert row.tolist() == [6] * 4


def test_comparison_operators_and_arithmetic_dunders() -> None:
    x, host = maca([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.0])
    for f in (lambda t: 2 - t, lambda t: 1 / t, lambda t: t**2, lambda t: 2**t, lambda t: t // 2, lambda t: 7 % t,
              lambda t: -t, lambda t: abs(t), lambda t: t == 2, lambda t: t < 2, lambda t: (t > 1) & (t < 3),
              lambda t: ~(t > 1), lambda t: t @ t, lambda t: +t):  # fmt: skip
        ours, theirs = f(x), f(host)
        assert ours.dtype == theirs.dtype
        close(ours, theirs)
    x += 1
    x *= maca(2.0)
    x -= torch.tensor(1.0)
    x /= 2
    assert x.tolist() == [1.5, 2.5, 3.5]


def test_in_place_metadata_operators() -> None:
    for change in (lambda t: t.t_(), lambda t: t.transpose_(0, 1), lambda t: t.unsqueeze_(1), lambda t: t.squeeze_(),
                   lambda t: t.swapaxes_(0, 1), lambda t: t.as_strided_((2,), (1,)),
                   lambda t: t.swapdims_(0, 1)):  # fmt: skip
        host = torch.arange(6.0).reshape(2, 3).clone()
        ours = maca(host)
        change(host)
        assert change(ours) is ours
        same(ours, host)
        same(ours + 1, host + 1)


def test_resize_and_set() -> None:
    x = maca(torch.zeros(0))
    x.resize_(2, 3)
    assert x.shape == (2, 3) and x.fill_(1).sum().item() == 6
    x.resize_(2)
    assert x.tolist() == [1, 1]
    y = maca(torch.arange(4.0))
    x.set_(y)
    x.add_(1)
    assert y.tolist() == [1, 2, 3, 4]
    grown = maca(torch.ones(2))
    grown.resize_(100)
    assert grown[:2].tolist() == [1, 1] and grown.fill_(2).sum().item() == 200
    with pytest.raises(RuntimeError, match="negative"):
        grown.resize_(-1)


def test_out_arguments() -> None:
    x, host = maca([1.0, 2.0]), torch.tensor([1.0, 2.0])
    out = torch.empty(2, device="maca")
    assert torch.add(x, x, out=out) is out and out.tolist() == [2, 4]
    with pytest.warns(UserWarning, match="was resized"):
        torch.add(x, x, out=torch.empty(1, device="maca").expand(1).clone())
    fresh = torch.empty(0, device="maca")
    torch.mul(x, 3, out=fresh)
    assert fresh.tolist() == [3, 6]
    wide = torch.empty(2, device="maca", dtype=torch.float64)
    torch.add(x, x, out=wide)
    assert wide.dtype == torch.float64 and wide.tolist() == [2, 4]
    with pytest.raises(RuntimeError, match="can't be cast to"):
        torch.add(x, x, out=torch.empty(2, device="maca", dtype=torch.int64))
    with pytest.raises(RuntimeError):
        torch.add(x, x, out=torch.empty(2))
    with pytest.raises(RuntimeError):
        torch.add(host, host, out=torch.empty(2, device="maca"))
    values, indices = torch.empty(0, device="maca"), torch.empty(0, device="maca", dtype=torch.int64)
    torch.max(maca([[1.0, 3.0], [5.0, 2.0]]), 1, out=(values, indices))
    assert values.tolist() == [3, 5] and indices.tolist() == [1, 0]


def test_memory_overlap() -> None:
    x = maca(torch.arange(6.0))
    with pytest.raises(RuntimeError, match="single memory location"):
        x[1:].add_(x[:-1])
    with pytest.raises(RuntimeError, match="single memory location"):
        maca(torch.zeros(1)).expand(3).add_(1)
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.add(x[:-1], 1, out=x[1:])
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    assert x.add_(x).tolist() == [0, 2, 4, 6, 8, 10]


def test_lazy_conjugates_and_negatives() -> None:
    host = torch.randn(3, 3, dtype=torch.complex64)
    ours = maca(host)
    for f in (lambda t: t.conj(), lambda t: t.conj().imag, lambda t: t.H, lambda t: t.conj() + t, lambda t: t.H @ t,
              lambda t: torch.mm(t.conj(), t.H), lambda t: t.conj().clone(), lambda t: t.conj().to(torch.complex128),
              lambda t: t.conj()[1:, ::2], lambda t: t.conj().resolve_conj(), lambda t: t.conj().imag.resolve_neg(),
              lambda t: torch.cat([t.conj(), t]), lambda t: t.conj().real, lambda t: t.mH.contiguous(),
              lambda t: t.conj().sum(), lambda t: torch.dot(t[0].conj(), t[1]), lambda t: t.conj().conj()):  # fmt: skip
        a, b = f(ours), f(host)
        assert a.is_conj() == b.is_conj() and a.is_neg() == b.is_neg()
        close(a, b)
        close(a + 0, b + 0)
        assert repr(a.flatten()[0])
    assert ours.conj()[0, 0].item() == host.conj()[0, 0].item()
    assert ours.conj().imag[0, 0].item() == host.conj().imag[0, 0].item()
    ours.conj().imag.copy_(maca(torch.ones(3, 3)))
    host.conj().imag.copy_(torch.ones(3, 3))
    ours.conj()[0] = 2j
    host.conj()[0] = 2j
    ours.conj().mul_(1j)
    host.conj().mul_(1j)
    close(ours, host)
    there = torch.zeros(3, 3, dtype=torch.complex64).conj()
    there.copy_(ours)
    close(ours, there)


def test_views_of_another_dtype_and_of_parts() -> None:
    host = torch.arange(6, dtype=torch.int32)
    ours = maca(host)
    for f in (lambda t: t.view(torch.int16), lambda t: t.view(torch.int64), lambda t: t.view(2, 3)[:, 1:].T,
              lambda t: t[3:].view(torch.uint8), lambda t: t.unfold(0, 2, 2), lambda t: t.as_strided((2, 2), (3, 1), 1),
              lambda t: t[1:].as_strided((2,), (2,))):  # fmt: skip
        same(f(ours).clone(), f(host).clone())
    ours[2:].view(2, 2)[1].fill_(9)
    assert ours.tolist() == [0, 1, 2, 3, 9, 9]
    with pytest.raises(RuntimeError, match="divisible by 2"):
        ours[1:5].view(torch.int64)
    z = torch.randn(4, dtype=torch.complex64)
    for f in (lambda t: t[1:].real, lambda t: torch.view_as_real(t[2:]), lambda t: t[3].imag,
              lambda t: torch.view_as_complex(torch.view_as_real(t)[1:])):  # fmt: skip
        same(f(maca(z)).clone(), f(z).clone())
