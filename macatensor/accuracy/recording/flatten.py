"""The tensors and values of a call by their places: ``"0"``, ``"weight"``, ``"0.1"`` inside of nesting.

C takes apart what most calls have (``shim/recorder/containers.cpp``): a list of 76 tensors takes 10 us in Python. Here
are other containers.
"""

from __future__ import annotations

import dataclasses

import torch

from macatensor.runtime.tensor import MacaTensor
from macatensor.runtime.uncompiled import uncompiled

Found = list[tuple[str, object]]  # places and what is there

# Types that need no look inside, since asking isinstance of each of 76 tensors in a list takes 10 us.
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
TENSORS = PLAIN | {MacaTensor}
PLAIN_VALUES = frozenset(
    (int, float, bool, str, slice, type(None), type(...), torch.dtype, torch.device, torch.memory_format)
)


_DEPTH = 6  # of nested arguments that are looked into


@uncompiled
def taken_apart(place: str, value: object, depth: int = 0) -> Found | None:
    """What is in a container, and in what it holds. None: it is no container, or holds no tensor."""
    found: Found = []
    for name, held in (_held_by(value) or ()) if depth < _DEPTH else ():
        inner = f"{place}.{name}" if place else name
        parts = (
            None if type(held) in PLAIN_VALUES or _is_tensor(held) else taken_apart(inner, held, depth + 1)
        )
        found += [(inner, held)] if parts is None else parts
    return found if any(_is_tensor(held) for _, held in found) else None


def _is_tensor(value: object) -> bool:
    """By its type: what a mock says of its class is not so."""
    return issubclass(type(value), torch.Tensor)


def _held_by(value: object) -> Found | None:
    """Names and what they stand for. None: it is no container, or does not say what it holds."""
    try:
        if isinstance(value, (list, tuple)):
            return [(str(i), held) for i, held in enumerate(value)]
        if isinstance(value, dict):
            return [(_name(key), held) for key, held in value.items()]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    except Exception:  # an object of the program's own must not stop the program
        pass
    return None


def _name(key: object) -> str:
    """Of a key, which may be any object: one that has none goes by its type."""
    try:
        return str(key)
    except Exception:
        return type(key).__name__
