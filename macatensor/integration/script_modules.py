"""TorchScript modules on maca: saved from a copy on the host, loaded by way of the host.

PyTorch's reader and writer of archives use storages of C++, which this device does not have.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable
from typing import TypeVar

import torch

_T = TypeVar("_T")
_Module = TypeVar("_Module", bound=torch.nn.Module)


def _on_host(module: _Module) -> _Module:
    """``module`` itself, or a copy on the host of one that has tensors on maca."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    if any(t.device.type == "maca" for t in tensors):
        return copy.deepcopy(module).to("cpu")
    return module


def _from_host(save: Callable[..., _T]) -> Callable[..., _T]:
    @functools.wraps(save)
    def call(self: torch.nn.Module, *args: object, **kwargs: object) -> _T:
        return save(_on_host(self), *args, **kwargs)

    return call


def _by_way_of_the_host(load: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    @functools.wraps(load)
    def call(f: object, map_location: object = None, *args: object, **kwargs: object) -> torch.nn.Module:
        if not isinstance(map_location, (str, torch.device)) or torch.device(map_location).type != "maca":
            return load(f, map_location, *args, **kwargs)
        return load(f, "cpu", *args, **kwargs).to(map_location)

    return call


def register() -> None:
    """Wraps ``torch.jit.load`` and the ``save`` methods of script modules."""
    for kind in (
        torch.jit._script.RecursiveScriptModule,
        torch.jit.ScriptModule,
    ):  # PyTorch copies the methods of the first
        for name in ("save", "save_to_buffer"):
            setattr(kind, name, _from_host(getattr(kind, name)))
    torch.jit.load = torch.jit._serialization.load = _by_way_of_the_host(torch.jit.load)
