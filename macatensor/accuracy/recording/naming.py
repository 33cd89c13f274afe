"""Names of what is recorded: ``torch.nn.Conv1d.6.fwd``, and which of them a user's word means."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable
from typing import NamedTuple

import torch

_CALL = re.compile(r"(?P<op>.+)\.(?P<index>\d+)\.(?P<direction>fwd|bwd)")

# Where a function is looked for by name, the first that has it names it: F.conv1d is the very object torch.conv1d.
_PLACES = (
    "torch.nn.functional",
    "torch.linalg",
    "torch.fft",
    "torch.special",
    "torch.nn.init",
    "torch.nested",
    "torch.sparse",
    "torch.nn.utils.rnn",
    "torch.autograd",
    "torch.functional",
    "torch.distributed",
    "torch",
    "torch.Tensor",
)


class CallName(NamedTuple):
    """``torch.nn.Conv1d.6.fwd`` taken apart."""

    op: str
    number: int
    direction: str


def parsed(name: str) -> CallName:
    """A call's name taken apart.

    Raises:
        ValueError: it is not of the form ``OP.NUMBER.fwd`` or ``OP.NUMBER.bwd``.
    """
    match = _CALL.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ValueError(
            f"accuracy: {name!r} names no call; expected an operator, its count from 0 and fwd or bwd, as in "
            "'torch.nn.Conv1d.6.fwd'"
        )
    return CallName(match["op"], int(match["index"]), match["direction"])


def _object(path: str) -> object:
    held: object = torch
    for part in path.split(".")[1:]:
        held = getattr(held, part)
    return held


@functools.cache
def _public() -> dict[int, str]:
    """id of a function -> its public name. The functions live as long as PyTorch does."""
    names: dict[int, str] = {}
    for place in _PLACES:
        try:
            held = _object(place)
        except AttributeError:  # a build without distributed
            continue
        for name in dir(held):
            if name.startswith("_") and place != "torch.Tensor" and not name.startswith("_foreach"):
                continue
            try:
                found = getattr(held, name)
            except (AttributeError, RuntimeError):
                continue
            if callable(found) and not isinstance(found, type):
                names.setdefault(id(found), f"{place.replace('torch.functional', 'torch')}.{name}")
    return names


_names: dict[object, str] = {}
_PRIVATE = {
    "torch._C._nn": "torch.nn.functional",
    "torch._C._linalg": "torch.linalg",
    "torch._C._fft": "torch.fft",
    "torch._C._special": "torch.special",
    "torch._C._nested": "torch.nested",
    "torch._C._sparse": "torch.sparse",
    "torch._tensor": "torch",
}


def function_name(func: object) -> str:
    """The public name of a function that a TorchFunctionMode was given: ``torch.nn.functional.conv1d``."""
    found = _names.get(func)
    if found is None:
        found = _names[func] = _function_name(func)
    return found


def _function_name(func: object) -> str:
    found = _public().get(id(func))
    if found is not None:
        return found
    if isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return f"torch.ops.{func}"
    owner = getattr(func, "__self__", None)
    name = getattr(func, "__name__", type(func).__name__)
    if name in ("__get__", "__set__") and owner is not None:  # a property of Tensor, such as T
        return f"torch.Tensor.{owner.__name__}"
    kind = type(func).__name__
    if kind in ("method_descriptor", "wrapper_descriptor", "method-wrapper"):
        return f"torch.Tensor.{name}"
    module = getattr(func, "__module__", None) or "torch"
    qualified = getattr(func, "__qualname__", name).replace("_VariableFunctionsClass.", "")
    if module in ("torch._C._linalg", "torch._C._fft", "torch._C._special"):
        qualified = qualified.split("_", 1)[-1]  # linalg_norm
    return f"{_PRIVATE.get(module, module)}.{qualified}".replace("torch.TensorBase.", "torch.Tensor.")


@functools.cache
def class_name(kind: type) -> str:
    """A module's name, that of its class: ``torch.nn.Conv1d``; the script's own classes have no prefix."""
    module, name = kind.__module__, kind.__qualname__
    if module.startswith("torch.nn.modules.") and getattr(torch.nn, name, None) is kind:
        return f"torch.nn.{name}"
    # written into JSON as it is
    return (name if module == "__main__" else f"{module}.{name}").replace("\\", "/").replace('"', "'")


def aten_name(func: object) -> tuple[str, str]:
    """(``aten.convolution``, ``aten.convolution.default``) of an operator's overload."""
    op = str(func)
    packet = str(getattr(func, "overloadpacket", func))
    return packet, op


_DIMENSIONS = re.compile(r"[123]d$")


@functools.cache
def kind_of(op: str) -> str:
    """What ``relu``, ``relu_``, ``torch.nn.ReLU``, ``aten.relu.default`` have in common: ``relu``."""
    parts = op.split(".")
    last = (
        parts[1]
        if parts[0] not in ("torch",) and len(parts) == 3 and not parts[0][:1].isupper()
        else parts[-1]
    )
    if last.startswith("__") and last.endswith("__"):
        last = last[2:-2]
    return last.removeprefix("_foreach_").replace("_", "").lower()


def is_of(op: str, word: str) -> bool:
    """Does a user's word mean this operator: its whole name, or its kind?"""
    if op == word or op.startswith(word + ".") and word.count(".") == 1 and not word.startswith("torch."):
        return True  # aten.relu means each of its overloads
    if "." in word:
        return False
    wanted, kind = kind_of(word), kind_of(op)
    return wanted == kind or not _DIMENSIONS.search(wanted) and wanted == _DIMENSIONS.sub("", kind)


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """The names most like one that is unknown, as the end of an error message."""
    found = difflib.get_close_matches(name, list(known), count, cutoff=0.4)
    return f"; the nearest: {', '.join(found)}" if found else ""


def check_known(op: str) -> None:
    """Refuses an operator of torch or aten that this PyTorch does not have; others are known when they come.

    Raises:
        ValueError: with the nearest names.
    """
    space, _, last = op.rpartition(".")
    if op.startswith("torch.ops."):
        return
    if op.startswith("aten."):
        packet = op.split(".")[1]
        if not hasattr(torch.ops.aten, packet):
            raise ValueError(
                f"accuracy: this PyTorch has no operator {op!r}" + nearest(packet, dir(torch.ops.aten))
            )
        return
    if not op.startswith("torch."):
        return
    try:
        held = _object(space)
    except AttributeError:
        raise ValueError(
            f"accuracy: this PyTorch has no {space!r}" + nearest(space, [*_PLACES, "torch.nn"])
        ) from None
    if not hasattr(held, last) and last != "AccumulateGrad":
        raise ValueError(
            f"accuracy: this PyTorch has no {op!r}" + nearest(op, [f"{space}.{n}" for n in dir(held)])
        )
