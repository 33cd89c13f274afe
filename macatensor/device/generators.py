"""Generators of random numbers for ``generator=``. PyTorch makes one in C++, for devices that live there: of maca it is a
generator of the host that names maca as its device, and from which each operator on maca takes its seed."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from macatensor.runtime.ordinal import ordinal
from macatensor.runtime.own_names import own_names

_OfHost = torch._C.Generator


class Generator(_OfHost):
    """A stream of random numbers beside the device's own, as ``torch.Generator("cuda")`` is one.

    ``manual_seed``, ``seed``, ``initial_seed``, ``get_state`` and ``set_state`` are those of a generator of the host, so
    that a state may go from one to the other. The same seed gives the numbers of ``torch.Generator()`` with that seed.
    """

    def __new__(cls, device: torch.types.Device = None) -> Generator:
        ordinal(device)  # another's raises
        return super().__new__(cls)

    def __init__(self, device: torch.types.Device = None) -> None:
        super().__init__()

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """``maca:0``."""
        return torch.device("maca", 0)

    def clone_state(self) -> Generator:
        """Another with the same state."""
        return self._of(self.get_state())

    def __reduce__(self) -> tuple[Any, ...]:
        return Generator._of, (self.get_state(),)

    @staticmethod
    def _of(state: torch.Tensor) -> Generator:
        made = Generator()
        made.set_state(state)
        return made


class _OfAnyDevice(type):
    """Instances and names of PyTorch's own type are those of the type in its place."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _OfHost)

    def __subclasscheck__(cls, value: type) -> bool:
        return issubclass(value, _OfHost)

    def __getattr__(cls, name: str) -> Any:
        return getattr(_OfHost, name)


def register() -> None:
    """Puts a type in the place of ``torch.Generator`` that makes generators of maca, too."""

    class AnyGenerator(metaclass=_OfAnyDevice):
        __doc__ = _OfHost.__doc__

        def __new__(cls, device: Any = None) -> Any:
            if isinstance(device, (str, int, torch.device)) and torch.device(device).type == "maca":
                return Generator(device)
            return _OfHost(device)

    AnyGenerator.__name__ = AnyGenerator.__qualname__ = "Generator"
    AnyGenerator.__module__ = "torch"
    torch.Generator = AnyGenerator  # type: ignore[misc]
    annotations: Any = importlib.import_module("torch.jit.annotations")
    known = annotations.try_ann_to_type

    def try_ann_to_type(ann: Any, *args: Any, **kwargs: Any) -> Any:
        """Functions that were annotated before are scripted as ever."""
        return known(AnyGenerator if ann is _OfHost else ann, *args, **kwargs)

    annotations.try_ann_to_type = try_ann_to_type


__all__ = own_names(globals(), internal=("register",))
