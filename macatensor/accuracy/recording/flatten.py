"""The tensors and values of a call by their places: ``"0"``, ``"weight"``, ``"0.1"`` inside of nesting."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch

from macatensor.runtime.tensor import MacaTensor
from macatensor.runtime.uncompiled import uncompiled

_DEPTH = 6  # of nested arguments that are looked into

Found = list[tuple[str, Any]]  # places and what is there

# Types that need no look inside, since asking isinstance of each of 76 tensors in a list takes 10 us.
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
TENSORS = PLAIN | {MacaTensor}
PLAIN_VALUES = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, torch.memory_format))


@functools.lru_cache(1024)
def _places(place: str, count: int) -> tuple[str, ...]:
    return tuple(f"{place}.{i}" if place else str(i) for i in range(count))


def flatten(value: Any, place: str, found: Found, tensors: Found, depth: int = 0) -> None:
    """Appends what is in ``value`` with its place to ``found``, and what of it are tensors to ``tensors``; a list,
    tuple or dict without tensors stays whole."""
    kind = type(value)
    if kind in TENSORS:
        found.append((place, value))
        tensors.append((place, value))
        return
    if kind in PLAIN_VALUES:
        found.append((place, value))
        return
    inner: Any = None
    if isinstance(value, torch.Tensor):
        tensors.append((place, value))
    elif depth < _DEPTH:
        if isinstance(value, (list, tuple)):
            kinds = set(map(type, value))
            if value and kinds <= TENSORS:
                pairs = zip(_places(place, len(value)), value)
                start = len(tensors)
                tensors.extend(pairs)
                found.extend(tensors[start:])
                return
            if not kinds <= PLAIN_VALUES:
                inner = enumerate(value)
        elif isinstance(value, dict):
            inner = value.items()
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            inner = [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    if inner is not None:
        start, before = len(found), len(tensors)
        for name, held in inner:
            flatten(held, f"{place}.{name}" if place else str(name), found, tensors, depth + 1)
        if len(tensors) > before:
            return
        del found[start:]
    found.append((place, value))


@uncompiled
def pairs_in(value: Any, place: str, depth: int) -> Found:
    """What :func:`flatten` finds, for a container that is no list, tuple or dict of Python's own."""
    found: Found = []
    flatten(value, place, found, [], depth)
    return found
