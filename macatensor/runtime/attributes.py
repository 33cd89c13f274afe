"""What ``vars()`` shows of a tensor: its attributes as PyTorch's own tensors have them, and not those of ours.

Whoever copies all of a tensor's attributes to another, as PyTorch's own users do, would give it the other's memory, too;
whoever makes a Parameter with those of another, ``type(p)(data, **vars(p))``, would be refused.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

_own: Any = next(c.__dict__["__dict__"] for c in torch.Tensor.__mro__ if "__dict__" in c.__dict__)

# memory; that it is a Parameter, in PyTorch's words for tensors of a class of their own; where a module moved it
OURS = frozenset({"_payload", "_is_param", "_maca_moved_to"})


class _Whole(threading.local):
    """Are ours asked for, too, by this thread?"""

    asked = False


_whole = _Whole()


@contextlib.contextmanager
def whole_attributes() -> Iterator[None]:
    """Inside, ``vars()`` shows ours, too: of two tensors that exchange all they have."""
    _whole.asked = True
    try:
        yield
    finally:
        _whole.asked = False


class _Attributes(dict[str, Any]):
    """What is written here is written to the tensor."""

    def __init__(self, of: torch.Tensor) -> None:
        self._real = _own.__get__(of)
        super().__init__({name: value for name, value in self._real.items() if name not in OURS})

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self._real[name] = value

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        del self._real[name]

    def update(self, *args: Any, **kwargs: Any) -> None:
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __ior__(self, others: Any) -> _Attributes:  # type: ignore[override, misc]
        self.update(others)
        return self

    def setdefault(self, name: str, value: Any = None) -> Any:
        if name not in self:
            self[name] = value
        return self[name]

    def pop(self, name: str, *default: Any) -> Any:
        self._real.pop(name, None)
        return super().pop(name, *default)

    def popitem(self) -> tuple[str, Any]:
        name, value = super().popitem()
        del self._real[name]
        return name, value

    def clear(self) -> None:
        for name in list(self):
            del self[name]

    def copy(self) -> dict[str, Any]:
        return dict(self)

    __copy__ = copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)


def _get(tensor: torch.Tensor) -> dict[str, Any]:
    return _own.__get__(tensor) if _whole.asked else _Attributes(tensor)


def _set(tensor: torch.Tensor, attributes: dict[str, Any]) -> None:
    if _whole.asked:
        _own.__set__(tensor, attributes)
        return
    own, given = _Attributes(tensor), dict(attributes)
    own.clear()
    own.update(given)


attributes = property(_get, _set)
