"""What the recorder's C parts are given that is not what most programs have: no crash, nothing lost, nothing kept."""

from __future__ import annotations

import collections
import dataclasses
import enum
import gc
import json
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from macatensor import accuracy
from macatensor.accuracy.recording import modes
from macatensor.accuracy.recording.describe import Describer, value_text
from macatensor.accuracy.recording.recorder import Recorder
from macatensor.accuracy.recording.settings import Settings
from macatensor.runtime.ffi import native_recorder


class Sizes(list):  # type: ignore[type-arg]
    pass


class Options(dict):  # type: ignore[type-arg]
    pass


class Unnamed:
    def __str__(self) -> str:
        raise ValueError("no text")


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    pass


@dataclasses.dataclass
class Pair:
    x: Any
    y: Any


Point = collections.namedtuple("Point", "x y")
T = torch.ones(2)
RECURSIVE: list[Any] = [T]
RECURSIVE.append(RECURSIVE)

T2, DEEP, OTHERS = (
    torch.ones(3).max(0),
    [[[[[[[T]]]]]]],
    (object(), Colour.RED, Text("x"), torch.Generator(), int),
)
PLAIN: tuple[Any, ...] = (Sizes([1]), Options(a=2), Point(1, 2), Pair(1, 2))

# a call's arguments, and the places and objects that are found
CONTAINERS: dict[str, tuple[tuple[Any, ...], list[tuple[str, Any]]]] = {
    "nested": (
        ([T, [T, 1]], {"a": {"b": T}}),
        [("0.0", T), ("0.1.0", T), ("0.1.1", 1), ("1.a.b", T)],
    ),
    "list and tuple without tensors": (
        ([1, 2.0, "x"], (None, True)),
        [("0", [1, 2.0, "x"]), ("1", (None, True))],
    ),
    "subclasses": (
        (Sizes([T, 1]), Options(a=T), Point(T, 2), Pair(T, [T])),
        [("0.0", T), ("0.1", 1), ("1.a", T), ("2.0", T), ("2.1", 2), ("3.x", T), ("3.y.0", T)],
    ),
    "subclasses without tensors": (PLAIN, [(str(i), held) for i, held in enumerate(PLAIN)]),
    "results of operators": (
        (T2, torch.Size([1, 2])),
        [("0.0", T2[0]), ("0.1", T2[1]), ("1", torch.Size([1, 2]))],
    ),
    "too deep": (
        (DEEP, RECURSIVE),
        [("0", DEEP), *[("1" + ".1" * i + ".0", T) for i in range(6)], ("1" + ".1" * 6, RECURSIVE)],
    ),
    "names that need escapes": (
        ({'a"b': T, "\n": T, "ä": T, "\udc80": T, 3: T, (1, 2): T},),
        [(f"0.{name}", T) for name in ('a"b', "\n", "ä", "\udc80", "3", "(1, 2)")],
    ),
    "names that raise": (
        ({Unnamed(): T}, Options({Unnamed(): T})),
        [("0.Unnamed", T), ("1.Unnamed", T)],
    ),
    "other objects": (OTHERS, [(str(i), held) for i, held in enumerate(OTHERS)]),
    "empty": (([], (), {}, Sizes(), ""), [("0", []), ("1", ()), ("2", {}), ("3", Sizes()), ("4", "")]),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_are_taken_apart(name: str) -> None:
    args, expected = CONTAINERS[name]
    found = native_recorder.flatten_call(args, {})
    assert [place for place, _ in found] == [place for place, _ in expected]
    for (_, held), (_, wanted) in zip(found, expected):
        assert held is wanted or not isinstance(wanted, torch.Tensor) and held == wanted


VALUES = [
    0, -1, 2**62, -(2**63), 2**64, 10**30, True, None, 0.0, -0.0, 1e-320, 1e300, 0.1, 5e15, 1e16, float("inf"), "",
    "plain", 'quote"', "back\\slash", "\x7f", "tab\t", "ä", "\udc80", "x" * 1001, [1, 2], (1, 2), [1], (1,), [], (),
    [True, 1], [1, 2.5], [2**70], [0] * 1001, [[1]], torch.Size([1, 2]), Sizes([1]), Colour.RED, Text("a"), {"a": 1},
    torch.float32, torch.device("cpu"), slice(1, 2), 1j, b"bytes",
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda v: f"{type(v).__name__}-{str(v)[:12]!a}")
def test_values_are_written_as_in_python(value: Any) -> None:
    describer = Describer(0)
    expected = "" if value is None else f',"value":{value_text(value)}'
    text = describer.arguments([("p", value)], 0)
    assert text == f'[{{"place":"p"{expected}}}]'
    json.loads(text)


def test_objects_that_were_not_made_ready_refuse() -> None:
    entries = native_recorder.RecordedEntries.__new__(native_recorder.RecordedEntries)
    for call in (
        lambda: entries.arguments([("0", T)], 0),
        lambda: entries.wrote(T),
        lambda: entries.strided(T, 0, 0, True, "0"),
        lambda: entries.written_by(T, 0, 0),
    ):
        with pytest.raises(RuntimeError, match="__init__"):
            call()
    bare = native_recorder.RecordedCalls()
    for call in (
        lambda: bare.api_begins(
            native_recorder.RecordedCall(0, "torch.x.0.fwd", "torch.x", "fwd"), (), {}, True
        ),
        lambda: bare.operator_begins(torch.ops.aten.add.Tensor, (), {}),
        lambda: bare.name("x", "fwd"),
    ):
        with pytest.raises(RuntimeError, match="members"):
            call()
    bare.describer = bare.lock = bare.numbers = bare.serials = bare.pending = 3
    bare.counts_forward = bare.counts_backward = bare.writer = bare.stacks = 3
    with pytest.raises(TypeError, match="other types"):
        bare.name("torch.x", "fwd")


def test_operators_of_backward_are_called_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the mode of functions an overload would go there first, and be called by Python a second time."""
    called = []
    monkeypatch.setattr(torch._ops.OpOverload, "__call__", lambda self, *a, **k: called.append(str(self)))
    x = torch.randn(4, requires_grad=True)
    y = torch.tanh(x * 2).sum()
    with accuracy.record(str(tmp_path), record_level=0):
        y.backward()
    assert not called and x.grad is not None


class Passes(TorchFunctionMode):
    """A mode of the program."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_the_programs_mode_stays_on_in_backward(tmp_path: Path) -> None:
    x = torch.randn(4, requires_grad=True)
    with accuracy.record(str(tmp_path), record_level=0):
        y = torch.tanh(x * 2).sum()
        with Passes() as mine:
            torch.autograd.backward(y)
            count = torch._C._len_torch_function_stack()
            assert count == 2 and torch._C._get_function_stack_at(count - 1) is mine
    assert x.grad is not None
    ran = {call["op"] for call in lines(tmp_path) if call["direction"] == "bwd"}
    assert {"aten.tanh_backward.default", "torch.tanh", "torch.autograd.AccumulateGrad"} <= ran


def test_a_mode_is_its_own_method() -> None:
    for mode, name in (
        (modes._Functions(), "__torch_function__"),
        (modes._Operators(), "__torch_dispatch__"),
    ):
        assert getattr(mode, name) is mode and getattr(mode, name).__self__ is mode
        assert mode(torch.add, (), (T, 1)).equal(T + 1)  # nothing records
        assert getattr(type(mode), name)(mode, torch.add, (), (T, 1), {}).equal(T + 1)
        with pytest.raises(AttributeError, match="nothing"):
            _ = mode.nothing


def test_arguments_of_other_types_refuse() -> None:
    describer = Describer(0)
    call = native_recorder.RecordedCall(0, "torch.relu.0.fwd", "torch.relu", "fwd")
    recorder = Recorder(Settings(record_level=0), None)  # type: ignore[arg-type]
    for error, refused in (
        (TypeError, lambda: describer.arguments(3, 0)),
        (TypeError, lambda: describer.arguments([3], 0)),
        (TypeError, lambda: describer.arguments([(3, T)], 0)),
        (ValueError, lambda: describer.arguments([], 2)),
        (ValueError, lambda: native_recorder.RecordedCall(2, "a", "b", "fwd")),
        (TypeError, lambda: native_recorder.RecordedCall(0, 1, "b", "fwd")),
        (TypeError, lambda: native_recorder.flatten_call([T], {})),
        (TypeError, lambda: recorder.function_ends(3, None, None)),
        (TypeError, lambda: recorder.operator_ends(call, torch.ops.aten.add.Tensor, 3, {}, None, None)),
        (TypeError, lambda: native_recorder.configure(nothing=1)),
        (TypeError, lambda: native_recorder.configure(3)),
    ):
        with pytest.raises(error):
            refused()
    assert json.loads(call.line()) == {
        "call": {
            "number": -1,
            "level": "api",
            "name": "torch.relu.0.fwd",
            "op": "torch.relu",
            "direction": "fwd",
        }
    }
    assert json.loads(call.line('an "error"'))["call"]["error"] == 'an "error"'


class Raises(torch.Tensor):
    """Does not say what others say."""

    @property
    def dtype(self) -> Any:  # type: ignore[override]
        raise ValueError("no dtype")

    @property
    def requires_grad(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no gradient")


def lines(folder: Path) -> list[dict[str, Any]]:
    found = []
    for file in folder.rglob("calls.jsonl"):
        found += [json.loads(line) for line in file.read_text().splitlines()]
    return [line["call"] for line in found if "call" in line]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_tensors_of_other_kinds(level: int, tmp_path: Path) -> None:
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    kinds = {
        "sparse": torch.eye(3).to_sparse(),
        "jagged": jagged,
        "zero": torch._efficientzerotensor((2, 2)),
        "meta": torch.ones(2, device="meta"),
        "conj": torch.ones(2, dtype=torch.complex64).conj(),
        "neg": torch.ones(2, dtype=torch.complex64).conj().imag,
        "empty": torch.ones(0, 3),
        "scalar": torch.tensor(2.5),
        "bits": torch.ones(2, dtype=torch.uint8).view(torch.bits8),
        "shared": torch.from_numpy(torch.ones(2).numpy()),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    with torch.inference_mode():
        kinds["inference"] = torch.ones(2)
    with accuracy.record(tmp_path, record_level=level):
        for tensor in kinds.values():
            torch.Tensor.detach(tensor)
    found = [c for c in lines(tmp_path) if c["op"] == "torch.Tensor.detach"]
    assert len(found) == len(kinds)
    by_kind = {kind: c["inputs"][0]["tensor"] for kind, c in zip(kinds, found)}
    assert by_kind["sparse"]["layout"] == "sparse_coo" and by_kind["jagged"]["layout"] == "jagged"
    assert by_kind["scalar"]["shape"] == [] and by_kind["empty"]["shape"] == [0, 3]
    assert by_kind["parameter"]["requires_grad"] is True
    if level:
        assert by_kind["neg"]["max"] == by_kind["neg"]["min"] == 0.0
        assert by_kind["scalar"]["mean"] == by_kind["scalar"]["norm"] == 2.5
        assert "hash" in by_kind["inference"] and "hash" not in by_kind["meta"]


class Forbids(Raises):
    def as_subclass(self, kind: Any) -> Any:
        raise ValueError("stays what it is")


def test_attributes_that_raise(tmp_path: Path) -> None:
    """What a subclass forbids does not stop the program: what can be read is recorded, with a warning where not all."""
    elements = torch.ones(3)
    with (
        accuracy.record(tmp_path, record_level=1),
        pytest.warns(UserWarning, match="a Forbids is recorded without"),
    ):
        for kind in (Raises, Forbids):
            torch.neg(elements.as_subclass(kind))
    entries = [c["inputs"][0]["tensor"] for c in lines(tmp_path) if c["op"] == "torch.neg"]
    assert [(e["dtype"], e["shape"], e.get("mean")) for e in entries] == [
        ("float32", [3], 1.0),
        ("float32", [3], None),
    ]


def test_a_program_s_own_errors_pass(tmp_path: Path) -> None:
    with accuracy.record(tmp_path, record_level=0):
        with pytest.raises(RuntimeError, match="size of tensor a") as raised:
            torch.add(torch.ones(3), torch.ones(2))
        assert raised.value.__context__ is None
        torch.add(torch.ones(2), torch.ones(2))
    assert [c.get("error", "")[:12] for c in lines(tmp_path) if c["op"] == "torch.add"] == [
        "RuntimeError",
        "",
    ]


@pytest.mark.parametrize("device", ["cpu", "maca"])
def test_nothing_is_kept(device: str, tmp_path: Path) -> None:
    """Neither tensors nor calls stay: not even of calls that raised."""
    with accuracy.record(tmp_path, record_level=1):
        x = torch.ones(4, 4, device=device, requires_grad=True)
        y = torch.relu(torch.stack([x, x * 2]))
        y.sum().backward()
        with pytest.raises(RuntimeError):
            torch.mm(x, torch.ones(3, device=device))
        held = [weakref.ref(x), weakref.ref(y)]
        del x, y
        gc.collect()
        assert [h() for h in held] == [None, None]
        x = torch.ones(4, device=device)
        grown = []
        for _ in range(3):  # storages that are gone are looked for after every 1024 new ones
            before = len(gc.get_objects())
            for _ in range(1024):
                torch.add(x, 1)
            gc.collect()
            grown.append(len(gc.get_objects()) - before)
        assert min(grown) < 100, grown


@pytest.mark.parametrize("device", ["cpu", "maca"])
def test_more_views_than_are_remembered(device: str, tmp_path: Path) -> None:
    x = torch.arange(600.0, device=device)
    with accuracy.record(tmp_path, record_level=1):
        for i in range(300):
            torch.relu(x[i : i + 2])
        torch.relu(x[0:2])
    means = [c["inputs"][0]["tensor"]["mean"] for c in lines(tmp_path) if c["op"] == "torch.relu"]
    assert means == [i + 0.5 for i in range(300)] + [0.5]


def test_threads_that_run_at_once(tmp_path: Path) -> None:
    def work(i: int) -> None:
        x = torch.full((4,), float(i), requires_grad=True)
        for _ in range(50):
            (torch.tanh(x) * 2).sum().backward()

    with accuracy.record(tmp_path, record_level=1):
        threads = [threading.Thread(target=work, args=(i,), name=f'no. "{i}"') for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    calls = lines(tmp_path)
    tanh = [c for c in calls if c["op"] == "torch.tanh" and c["direction"] == "fwd"]
    assert sorted(c["number"] for c in calls) == list(range(len(calls)))
    assert {c["name"] for c in tanh} == {f"torch.tanh.{i}.fwd" for i in range(200)}
    for i in range(4):
        mine = [c for c in tanh if c["thread"] == f'no. "{i}"']
        assert len(mine) == 50 and all(c["inputs"][0]["tensor"]["mean"] == i for c in mine)
