"""Objects whose methods raise, lie or change what is being looked at, where C looks at them: no crash, and the program
goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import unittest.mock
from pathlib import Path
from typing import Any

import pytest
import torch

from macatensor import accuracy
from macatensor.accuracy.recording import modes
from macatensor.accuracy.recording.describe import Describer
from macatensor.accuracy.recording.recorder import Recorder
from macatensor.accuracy.recording.settings import Settings
from macatensor.runtime.ffi import native_recorder

T = torch.ones(2)


class Unspeakable:
    """Nothing of it can be asked."""

    def __repr__(self) -> str:
        raise ValueError("no text")

    __str__ = __repr__

    @property
    def __class__(self) -> Any:
        raise ValueError("no class")

    @__class__.setter
    def __class__(self, value: Any) -> None:
        raise ValueError("no class")


class Unnamed:
    def __str__(self) -> str:
        raise ValueError("no text")


class Items(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise ValueError("no items")


class Elements(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise ValueError("no elements")


class Endless(list):  # type: ignore[type-arg]
    """A list that holds itself wherever one looks."""

    def __iter__(self) -> Any:
        return iter([self, T])


changing: list[Any] = []


class Emptying(type):
    """The hash of its classes empties the list that is being looked at."""

    def __hash__(cls) -> int:
        changing.clear()
        return 1


class Emptied(metaclass=Emptying):
    pass


class Unhashable(type):
    __hash__ = None  # type: ignore[assignment]


class Thing(metaclass=Unhashable):
    pass


class Lies:
    """Says that it is a tensor."""

    @property
    def __class__(self) -> Any:
        return torch.Tensor

    @__class__.setter
    def __class__(self, value: Any) -> None: ...


def _changing() -> list[Any]:
    changing[:] = [*(Emptied() for _ in range(8)), T]
    return changing


OBJECTS = {
    "nothing can be asked": lambda: Unspeakable(),
    "inside of a list": lambda: [Unspeakable(), T],
    "a key without a name": lambda: {Unnamed(): T},
    "items raise": lambda: Items(a=T),
    "elements raise": lambda: Elements([T]),
    "holds itself": lambda: Endless([1]),
    "changes while it is looked at": _changing,
    "a type without a hash": lambda: Thing(),
    "pretends to be a tensor": lambda: Lies(),
    "a mock of a tensor": lambda: unittest.mock.Mock(spec=torch.Tensor),
    "deep": lambda: _nested(100_000),
    "None": lambda: None,
}


def _nested(depth: int) -> Any:
    held: Any = T
    for _ in range(depth):
        held = [held]
    return held


class Takes(torch.nn.Module):
    def forward(self, x: torch.Tensor, held: Any) -> torch.Tensor:
        return x * 2


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("name", OBJECTS)
def test_an_argument_of_a_module(name: str, level: int, tmp_path: Path) -> None:
    """What cannot be said of an object is left out; the program's result is what it is without a recorder."""
    with accuracy.record(tmp_path, record_level=level):
        assert Takes()(T, OBJECTS[name]()).tolist() == [2.0, 2.0]
    calls = [
        json.loads(line)["call"]
        for file in tmp_path.rglob("calls.jsonl")
        for line in file.read_text().splitlines()
        if line.startswith('{"call"')
    ]
    taken = next(call for call in calls if call["op"].endswith("Takes"))
    assert "error" not in taken and taken["inputs"][0]["tensor"]["shape"] == [2]
    assert any(call["op"] == "aten.mul.Tensor" for call in calls)


@pytest.mark.parametrize("wrong", [None, 3, "x", (), {}, object(), T], ids=lambda v: type(v).__name__)
def test_arguments_of_other_types_are_refused(wrong: Any) -> None:
    """Every method that C has, with one argument, and with as many as it takes, of a type that is none of its own."""
    describer = Describer(0)
    call = native_recorder.RecordedCall(0, "torch.relu.0.fwd", "torch.relu", "fwd")
    held = [
        describer, call, Recorder(Settings(record_level=0), None), native_recorder, modes._Functions(), modes._Operators(),  # type: ignore[arg-type]
    ]  # fmt: skip
    describer.wrote(T)  # methods of tensors are found once
    asked = 0
    for thing in held:
        for name, method in _methods_of_c(thing):
            if name == "set_recorder":
                continue  # takes any object, and every call of PyTorch's is given to it
            for given in ((), (wrong,), *(((wrong,) * count) for count in range(2, 7))):
                asked += 1
                try:
                    getattr(thing, method)(*given)
                except (TypeError, ValueError, RuntimeError, AttributeError, OverflowError):
                    pass
    assert asked > 50
    for name in ("inputs", "outputs"):
        if isinstance(wrong, str) or wrong is None:
            setattr(call, name, wrong)
        else:
            with pytest.raises(TypeError):
                setattr(call, name, wrong)


def _methods_of_c(thing: Any) -> list[tuple[str, str]]:
    """Names of the methods that a type of C has, or of the module's functions."""
    kinds = [thing] if thing is native_recorder else [
        kind for kind in type(thing).__mro__ if kind.__module__ == "libmaca_ffi._recorder"
    ]  # fmt: skip
    return [
        (name, name)
        for kind in kinds
        for name, held in vars(kind).items()
        if type(held).__name__ in ("builtin_function_or_method", "method_descriptor")
    ]


def test_a_recorder_of_no_kind_is_harmless() -> None:
    """Calls that are given to what is no recorder raise, until there is none again."""
    program = (
        "import torch, macatensor\n"
        "from macatensor.accuracy.recording import modes\n"
        "from macatensor.runtime.ffi import native_recorder as n\n"
        "n.set_recorder(3)\n"
        "mode = modes._Functions()\n"
        "try:\n    mode(torch.add, (), (torch.ones(1), 1))\n"
        "except AttributeError as error:\n    print(error)\n"
        "n.set_recorder(None)\n"
        "print(mode(torch.add, (), (torch.ones(1), 1)).item())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "function_begins" in done.stdout and done.stdout.endswith("2.0\n"), done
