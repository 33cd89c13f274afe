"""TorchScript modules on maca: saved from a copy on the host, loaded by way of the host.

PyTorch's reader and writer of archives use storages of C++, which this device does not have.
"""

from __future__ import annotations

import copy
import functools
import itertools
from typing import Any

import torch

_jit: Any = torch.jit


def _on_host(module: Any) -> Any:
    """``module`` itself, or a copy on the host of one that has tensors on maca."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    if any(t.device.type == "maca" for t in tensors):
        return copy.deepcopy(module).to("cpu")
    return module


def _from_host(save: Any) -> Any:
    @functools.wraps(save)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return save(_on_host(self), *args, **kwargs)

    return call


def _by_way_of_the_host(load: Any) -> Any:
    @functools.wraps(load)
    def call(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(map_location, (str, torch.device)) or torch.device(map_location).type != "maca":
            return load(f, map_location, *args, **kwargs)
        return load(f, "cpu", *args, **kwargs).to(map_location)

    return call


def register() -> None:
    """Wraps ``torch.jit.load`` and the ``save`` methods of script modules."""
    for kind in (
        _jit.RecursiveScriptModule,
        torch.jit.ScriptModule,
    ):  # PyTorch copies the methods of the first
        for name in ("save", "save_to_buffer"):
            setattr(kind, name, _from_host(getattr(kind, name)))
    _jit.load = torch.jit._serialization.load = _by_way_of_the_host(torch.jit.load)
