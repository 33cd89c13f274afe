"""maca(): every kind of data it takes, and the TypeError for the rest."""

from __future__ import annotations

import collections
import dataclasses
import operator
import threading

import numpy as np
import pytest
import torch
from running import same

from macatensor import MacaTensor, maca


def test_tensor() -> None:
    x = torch.rand(2, 3, 4, 5)
    y = maca(x)
    assert y.device == torch.device("maca:0")
    assert y.stride() == (60, 1, 15, 3)
    assert torch.equal(y.cpu(), x)
    assert maca(y) is y


@pytest.mark.parametrize("move", [lambda t: t.maca(), lambda t: t.to("maca"), lambda t: t.to("maca:0"), maca])
def test_ways_to_the_device(move: object) -> None:
    assert repr(move(torch.ones(2))) == "tensor([1., 1.], device='maca:0')"


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.complex32,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(), (0,), (3,), (2, 3), (2, 0, 3)], ids=str)
def test_round_trip(dtype: torch.dtype, size: tuple[int, ...]) -> None:
    host = (torch.arange(max(1, torch.Size(size).numel())).to(torch.float32) % 2).to(dtype)
    host = host[: torch.Size(size).numel()].reshape(size)
    back = maca(host).cpu()
    assert back.dtype == dtype and back.shape == host.shape and back.stride() == host.stride()
    assert torch.equal(back.view(torch.uint8) if size else back.reshape(1).view(torch.uint8),
                       host.view(torch.uint8) if size else host.reshape(1).view(torch.uint8))  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.rand(4, 5).t(),
        lambda: torch.rand(4, 5)[1:, ::2],
        lambda: torch.rand(3, 1).expand(3, 4),
        lambda: torch.rand(2, 3, 4),
        lambda: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.rand(1, 2, 3, 4, 5),
    ],
)
def test_values_of_strided_sources(make: object) -> None:
    host = make()
    assert torch.equal(maca(host).cpu(), host)


def test_conjugate_and_negative_views_are_resolved() -> None:
    z = torch.randn(3, dtype=torch.complex64)
    assert torch.equal(maca(z.conj()).cpu(), z.conj().resolve_conj())
    assert torch.equal(maca(z.conj().imag).cpu(), z.conj().imag.resolve_neg())


def test_numpy() -> None:
    a = np.arange(6, dtype=np.float64).reshape(2, 3)
    same(maca(a), torch.from_numpy(a))
    a.setflags(write=False)
    assert maca(a).tolist() == a.tolist()
    assert maca(a[:, ::-1]).tolist() == a[:, ::-1].tolist()
    assert maca(np.float32(1.5)).dtype == torch.float32
    assert maca(np.zeros((0, 3))).shape == (0, 3)
    assert maca(np.array(3)).item() == 3
    with pytest.raises(TypeError, match="object_|can't convert|str_"):
        maca(np.array(["a"]))


@pytest.mark.parametrize(
    "value", [3, 2.5, True, 1 + 2j, [1, 2], (1.0, 2.0), [[1, 2], [3, 4]], [True, False], -(2**63)]
)
def test_numbers_and_sequences(value: object) -> None:
    same(maca(value), torch.tensor(value))


def test_module_moves_in_place() -> None:
    model = torch.nn.Linear(2, 3)
    weight = model.weight
    assert maca(model) is model
    assert model.weight is weight and isinstance(weight, MacaTensor)


@dataclasses.dataclass
class Batch:
    image: torch.Tensor
    label: object
    scale: float = 2.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    image: torch.Tensor


Pair = collections.namedtuple("Pair", "a b")


def test_nesting() -> None:
    t = torch.rand(2)
    moved = maca(
        {"a": [t, (t, np.ones(2))], "b": Batch(t, [t]), "c": Pair(t, t), "d": collections.OrderedDict(x=t)}
    )
    assert isinstance(moved["a"], list) and isinstance(moved["a"][1], tuple)
    assert isinstance(moved["a"][0], MacaTensor) and isinstance(moved["a"][1][1], MacaTensor)
    assert isinstance(moved["b"], Batch) and isinstance(moved["b"].label[0], MacaTensor)
    assert isinstance(moved["c"], Pair) and isinstance(moved["c"].b, MacaTensor)
    assert isinstance(moved["d"], collections.OrderedDict) and isinstance(moved["d"]["x"], MacaTensor)
    assert isinstance(maca(Frozen(t)).image, MacaTensor)
    assert maca([]) == [] and maca({}) == {} and maca(()) == ()
    counts = maca(collections.defaultdict(list, x=t))
    assert isinstance(counts, collections.defaultdict) and isinstance(counts["x"], MacaTensor)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("text", "builtins.str"),
        (None, "NoneType"),
        (b"bytes", "builtins.bytes"),
        ({1, 2}, "builtins.set"),
        (object(), "builtins.object"),
        (threading.Lock(), "lock"),
        (Batch, "type"),
        ([torch.ones(1), "x"], "builtins.str"),
        ({"a": object()}, "builtins.object"),
        (Batch(torch.ones(1), "label"), "builtins.str"),
    ],
)
def test_other_types_are_errors_that_name_them(value: object, name: str) -> None:
    with pytest.raises(TypeError, match=name):
        maca(value)


def test_gradients_flow_through_the_move() -> None:
    x = torch.randn(3, requires_grad=True)
    maca(x).mul(2).sum().backward()
    assert x.grad is not None and x.grad.device.type == "cpu"
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_nested_and_quantized_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="quantized"):
        maca(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8))
    for make in (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8).to("maca"),):
        with pytest.raises(NotImplementedError, match="tensor; maca accepts: torch.strided. Use to_dense"):
            make()


def test_meta_tensors_have_no_data() -> None:
    with pytest.raises(NotImplementedError, match="meta"):
        maca(torch.empty(2, device="meta"))
    assert maca(torch.ones(2)).to("meta").device.type == "meta"


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_uint64_orders_past_int64(name: str) -> None:
    """PyTorch's CPU has no order of uint64: Python's integers are the reference."""
    left, right = [2**63 + 5, 1, 2**64 - 1, 2**63], [2**63, 2**63 + 5, 2**64 - 1, 7]
    a, b = (maca(torch.tensor(values, dtype=torch.uint64)) for values in (left, right))
    want = [getattr(operator, name)(x, y) for x, y in zip(left, right)]
    assert getattr(torch, name)(a, b).tolist() == want
    assert getattr(torch, name)(a, 3).tolist() == [getattr(operator, name)(x, 3) for x in left]
