"""Users' classes of tensors on the device against the same programs on the host."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import macatensor
from macatensor import MacaTensor


class Plain(torch.Tensor):
    """Nothing of its own: PyTorch's ``__torch_function__`` keeps the class."""


class Named(torch.Tensor):
    """An attribute that its function hands on, and a record of what it saw."""

    label: str
    seen: list[str] = []

    @staticmethod
    def __new__(cls, data: Any, label: str = "none", **options: Any) -> Any:
        made = torch.as_tensor(data, **options).as_subclass(cls)
        made.label = label
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert all(issubclass(cls, t) for t in types)
        cls.seen.append(func.__name__)
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, cls):
            result.label = next((a.label for a in args if isinstance(a, cls) and hasattr(a, "label")), "none")
        return result


class Image(torch.Tensor):
    """In the manner of torchvision's: operators give plain tensors, but for a few."""

    @staticmethod
    def __new__(cls, data: Any, requires_grad: bool = False) -> Any:
        return torch.as_tensor(data).requires_grad_(requires_grad).as_subclass(cls)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            output = func(*args, **(kwargs or {}))
        kept = func in (torch.Tensor.clone, torch.Tensor.to, torch.Tensor.detach, torch.Tensor.requires_grad_)
        if kept and isinstance(args[0], cls):
            return output.as_subclass(cls)
        return output.as_subclass(torch.Tensor) if isinstance(output, cls) else output

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.detach().clone().requires_grad_(self.requires_grad)


class Old(torch.Tensor):
    """Made by ``_make_subclass``; its operators give plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, data: torch.Tensor, unit: str = "m") -> Any:
        return torch.Tensor._make_subclass(cls, data)

    def __init__(self, data: torch.Tensor, unit: str = "m"):
        self.unit = unit


class Weight(torch.nn.Parameter):
    """A Parameter that knows how it is split."""

    def __new__(cls, data: Any, requires_grad: bool = True, split: int = 0) -> Any:
        return super().__new__(cls, data, requires_grad)

    def __init__(self, data: Any, requires_grad: bool = True, split: int = 0):
        self.split = split


CLASSES = [Plain, Named, Image, Old]


def of(kind: Any, host: torch.Tensor, device: str) -> Any:
    return host.detach().to(device).as_subclass(kind)


def described(value: Any) -> Any:
    """Classes, attributes and elements, whatever the device."""
    if isinstance(value, (list, tuple)):
        return [described(v) for v in value]
    if not isinstance(value, torch.Tensor):
        return value
    kind = getattr(type(value), "users_class", type(value))
    kind = torch.Tensor if kind is MacaTensor else kind
    attributes = {k: v for k, v in vars(value).items() if k != "_payload"}
    elements = value.detach().cpu().as_subclass(torch.Tensor).double().round(decimals=4)
    return kind, attributes, elements.tolist(), value.requires_grad, value.is_leaf


USES: dict[str, Callable[[Any], Any]] = {
    "sum of two": lambda t: t + t,
    "with a plain one": lambda t: t * torch.ones(3, device=t.device),
    "plain first": lambda t: torch.ones(3, device=t.device) - t,
    "function": lambda t: torch.relu(t),
    "product": lambda t: t @ t.T,
    "several": lambda t: torch.split(t, 1),
    "list": lambda t: torch.cat([t, t]),
    "largest": lambda t: t.max(0),
    "view": lambda t: t.view(3, 2)[1:],
    "cast": lambda t: t.double(),
    "clone": lambda t: t.clone(),
    "detach": lambda t: t.detach(),
    "like": lambda t: torch.zeros_like(t),
    "new": lambda t: t.new_ones(2),
    "in place": lambda t: t.add_(1).mul_(2),
    "sizes in place": lambda t: t.t_().unsqueeze_(0),
    "resized": lambda t: t.resize_(2, 2),
    "item set": lambda t: t.__setitem__((0, 0), 7.0) or t,
    "out": lambda t: torch.add(t, t, out=t),
    "data": lambda t: t.data,
    "plain again": lambda t: t.as_subclass(torch.Tensor),
    "another class": lambda t: t.as_subclass(Plain),
    "unbound": lambda t: torch.Tensor.as_subclass(t, Plain),
    "numbers": lambda t: (t.sum().item(), t.tolist(), len(t), t.shape, float(t[0, 0]), bool((t == t).all())),
    "copied": copy.copy,
    "pickled": lambda t: pickle.loads(pickle.dumps(t)),
    "class called": lambda t: type(t)(t.as_subclass(torch.Tensor)) if type(t).__name__ != "Plain" else t,
    "iterated": lambda t: list(t),
    "condition": lambda t: torch.where(t > 0, t, 0),
    "normed": lambda t: torch.nn.functional.layer_norm(t, (3,)),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("kind", CLASSES)
def test_uses_agree_with_the_host(kind: Any, use: Callable[[Any], Any]) -> None:
    host = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
    theirs, ours = of(kind, host, "cpu"), of(kind, host, "maca")
    assert isinstance(ours, kind) and isinstance(ours, MacaTensor) and type(ours).__name__ == kind.__name__
    for t in (theirs, ours):
        t.label = "n"
    expected, found = use(theirs), use(ours)
    assert described(found) == described(expected)
    assert described(ours) == described(theirs)


@pytest.mark.parametrize("kind", [Plain, Named, Image])
def test_deep_copies_agree_with_the_host(kind: Any) -> None:
    theirs, ours = (of(kind, torch.ones(2, 3), device) for device in ("cpu", "maca"))
    for t in (theirs, ours):
        t.label = ["n"]
    copied = copy.deepcopy(ours)
    # PyTorch's own copies no class whose function is put aside meanwhile
    assert described(copied) == described(copy.deepcopy(theirs) if kind is Image else theirs)
    ours.zero_()
    assert copied.as_subclass(torch.Tensor).tolist() == [[1.0] * 3] * 2


def test_lazy_modules_are_made_on_maca() -> None:
    for module in (torch.nn.LazyLinear(3, device="maca"), torch.nn.LazyLinear(3).to("maca")):
        module(torch.ones(2, 4, device="maca")).sum().backward()
        assert type(module.weight) is MacaTensor and isinstance(module.weight, torch.nn.Parameter)
        assert module.weight.grad.tolist() == [[2.0] * 4] * 3


@pytest.mark.parametrize("kind", CLASSES)
def test_gradients_agree_with_the_host(kind: Any) -> None:
    host = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
    leaves = []
    for device in ("cpu", "maca"):
        leaf = of(kind, host, device).requires_grad_()
        (leaf.exp() * leaf).sum().backward()
        leaves.append(leaf)
    assert described(leaves[1].grad) == described(leaves[0].grad)
    held = host.to("maca").requires_grad_()
    (held.as_subclass(kind) * 2).sum().backward()
    assert held.grad.tolist() == [[2.0] * 3] * 2


@pytest.mark.parametrize("kind", CLASSES)
def test_moving_keeps_the_class(kind: Any) -> None:
    host = of(kind, torch.ones(2, 3), "cpu")
    expected = type(host.to(torch.float64))  # what this class keeps
    there = host.to("maca")
    assert there.device.type == "maca"
    assert getattr(type(there), "users_class", torch.Tensor) is expected
    back = there.to("cpu")
    assert type(back) is expected and torch.equal(back.as_subclass(torch.Tensor), torch.ones(2, 3))
    assert type(of(kind, torch.ones(2), "maca")) is type(of(kind, torch.zeros(3), "maca"))


def test_functions_see_the_users_class_alone() -> None:
    seen = []
    for device in ("cpu", "maca"):
        Named.seen.clear()
        t = Named(torch.ones(2, 3, device=device), label="x")
        assert t.label == "x" and (t + 1).label == "x" and torch.sin(t).label == "x" and t.cpu().label == "x"
        seen.append(list(Named.seen))
    assert seen[1] == seen[0] and "sin" in seen[0]
    assert isinstance(t, MacaTensor) and type(t.cpu()) is Named and isinstance(t.cpu().to("maca"), Named)


def test_initialization_runs_once() -> None:
    ours = Old(torch.ones(2, device="maca"), unit="s")
    assert isinstance(ours, Old) and ours.unit == "s" and not ours.requires_grad
    again = type(ours)(torch.ones(2), unit="kg")
    assert type(again) is Old and again.unit == "kg" and again.device.type == "cpu"
    assert type(ours + 1) is MacaTensor  # as on the host, where it is torch.Tensor


def test_files_open_where_they_are_sent() -> None:
    file = io.BytesIO()
    torch.save(Named(torch.ones(2, device="maca"), label="x"), file)
    for where in ("maca", "cpu"):
        file.seek(0)
        loaded = torch.load(file, weights_only=False, map_location=where)
        assert isinstance(loaded, Named) and loaded.label == "x" and loaded.device.type == where
        assert loaded.as_subclass(torch.Tensor).tolist() == [1.0, 1.0]


def test_text_has_the_users_name() -> None:
    host = torch.tensor([1.0, 2.0])
    assert repr(of(Plain, host, "cpu")) == "Plain([1., 2.])"
    assert repr(of(Plain, host, "maca")) == "Plain([1., 2.], device='maca:0')"


def test_parameters_of_users_classes() -> None:
    for device in ("cpu", "maca"):
        tensor = torch.ones(3, 2, device=device)
        weight = Weight(tensor, split=4)
        assert isinstance(weight, Weight) and isinstance(weight, torch.nn.Parameter)
        assert weight.split == 4 and weight.requires_grad and weight.is_leaf
        flagged = torch.nn.Parameter(of(Plain, torch.ones(2), device))
        assert isinstance(flagged, Plain) and isinstance(flagged, torch.nn.Parameter)
        module = torch.nn.Linear(2, 3, bias=False, device=device)
        module.weight = weight
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
        module(torch.ones(1, 2, device=device)).sum().backward()
        optimizer.step()
        assert type(weight + 1) in (torch.Tensor, MacaTensor)
        torch.testing.assert_close(weight.detach().cpu().as_subclass(torch.Tensor), torch.full((3, 2), 0.899))


def test_modules_move_parameters_of_users_classes() -> None:
    module = torch.nn.Linear(2, 3, bias=False)
    weight = module.weight = Weight(torch.ones(3, 2), split=4)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    module.to("maca")
    assert module.weight is weight and isinstance(weight, (Weight, MacaTensor)) and weight.split == 4
    assert isinstance(weight, Weight) and weight.device.type == "maca"
    module(torch.ones(1, 2, device="maca")).sum().backward()
    optimizer.step()
    module.to("cpu")
    assert module.weight is weight and type(weight) is Weight and weight.split == 4
    assert weight.tolist() == [[0.5, 0.5]] * 3


def test_modules_move_attributes_of_parameters() -> None:
    module = torch.nn.Linear(2, 3)
    module.weight.no_decay = True
    module.to("maca")
    assert module.weight.no_decay
    module.to("cpu")
    assert module.weight.no_decay


def test_classes_that_are_no_users() -> None:
    ours = torch.ones(2, device="maca")

    class Dispatching(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError

    class Slotted(torch.Tensor):
        __slots__ = ("unit",)

    for kind, said in ((Dispatching, "_make_wrapper_subclass"), (Slotted, "__slots__")):
        with pytest.raises(TypeError, match=said):
            ours.as_subclass(kind)
    with pytest.raises((TypeError, RuntimeError), match="Tensor|type"):
        ours.as_subclass(int)  # type: ignore[arg-type]


def test_nothing_runs_on_the_host() -> None:
    before = macatensor.counters()["fallbacks"]
    ours = of(Plain, torch.rand(4, 4), "maca")
    assert isinstance(torch.linalg.norm(ours @ ours).sigmoid(), Plain)
    assert macatensor.counters()["fallbacks"] == before


class Copying(torch.Tensor):
    """Hands on all of its attributes, as fastai's classes do."""

    way: str = "update"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        first = next((a for a in args if isinstance(a, cls)), None)
        if isinstance(result, cls) and first is not None:
            if cls.way == "update":
                result.__dict__.update(first.__dict__)
            elif cls.way == "or":
                result.__dict__ |= vars(first)
            elif cls.way == "same":
                result.__dict__ = first.__dict__
            else:
                result.__dict__ = copy.copy(first.__dict__)
        return result


@pytest.mark.parametrize("way", ["update", "or", "same", "copy"])
def test_attributes_are_copied_without_the_memory(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Copying, "way", way)
    for device in ("cpu", "maca"):
        x: Any = torch.arange(6.0).view(2, 3).to(device).as_subclass(Copying)
        x.label = "one"
        assert list(x.__dict__) == ["label"] and x.__dict__.get("label") == "one"
        found = x + 100
        assert found.label == "one" and found.tolist() == [[100, 101, 102], [103, 104, 105]]
        assert (x @ x.t()).tolist() == [[5, 14], [14, 50]] and x.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert pickle.loads(pickle.dumps(x)).label == "one"


def test_attributes_are_written_through_vars() -> None:
    x: Any = torch.ones(2, device="maca").as_subclass(Plain)
    held = vars(x)
    held["a"] = 1
    held.update({"b": 2}, c=3)
    assert (x.a, x.b, x.c, held.setdefault("d", 4), x.d, held.pop("c")) == (1, 2, 3, 4, 4, 3)
    del held["a"]
    assert not hasattr(x, "a") and not hasattr(x, "c") and x.__dict__ == {"b": 2, "d": 4}
    held.clear()
    assert vars(x) == {} and x.tolist() == [1, 1] and type(vars(x).copy()) is dict


def test_swapped_tensors_exchange_memory_and_attributes() -> None:
    for device in ("cpu", "maca"):
        for kind in (Plain, torch.Tensor):
            a: Any = torch.zeros(3).to(device).as_subclass(Plain)
            b: Any = torch.ones(2).to(device).as_subclass(kind)
            a.label = "one"
            torch.utils.swap_tensors(a, b)
            assert (a.tolist(), b.tolist(), b.sum().item()) == ([1, 1], [0, 0, 0], 0)
            assert type(b).__name__ == "Plain" and vars(b) == {"label": "one"} and not hasattr(a, "label")
    host: Any = torch.zeros(3).as_subclass(Plain)
    ours: Any = torch.ones(2, device="maca").as_subclass(Plain)
    torch.utils.swap_tensors(host, ours)
    assert host.device.type == "maca" and host.tolist() == [1, 1] and ours.device.type == "cpu"
    assert vars(host) == {} and host.add(1).tolist() == [2, 2]


def test_vars_of_plain_tensors_shows_no_memory() -> None:
    """Of plain tensors and Parameters, too: as the tools do that merge and freeze weights."""
    first, second = (torch.nn.Parameter(torch.full((2,), number, device="maca")) for number in (1.0, 2.0))
    second.unit = "m"  # type: ignore[attr-defined]
    first.__dict__.update(second.__dict__)
    assert first.tolist() == [1.0, 1.0] and vars(first)["unit"] == "m" and "_payload" not in vars(first)
    first.__dict__ = {"unit": "s"}
    assert first.tolist() == [1.0, 1.0] and vars(first) == {"unit": "s"}
    torch.utils.swap_tensors(first, second)
    assert first.tolist() == [2.0, 2.0] and first.unit == "m" and second.unit == "s"  # type: ignore[attr-defined]
