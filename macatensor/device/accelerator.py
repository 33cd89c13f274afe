"""``torch.accelerator`` on maca.

PyTorch's C++ asks a device's guard, hooks and allocator, and from Python a backend can give it hardly any of them:
``synchronize()`` and the memory functions fail in C++. Here they go to torch.maca while the current accelerator is
maca, and to PyTorch's own function for any other. ``Graph`` and ``empty_host_cache`` stay PyTorch's, and fail: a
graph needs a class of C++ behind it (``torch.maca.MacaGraph`` captures), and no cache of pinned memory is kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.types import Device

from macatensor import device as maca
from macatensor.device.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from macatensor.dispatch.request import DTYPE_CODES
from macatensor.runtime.streams import current_stream, set_stream


def get_device_capability(device: Device = None) -> dict[str, set[torch.dtype]]:
    """``{"supported_dtypes": ...}``: dtypes that tensors on maca may have."""
    maca.get_device_properties(device)
    return {"supported_dtypes": set(DTYPE_CODES)}


_FUNCTIONS: dict[str, Callable[..., object]] = {
    "synchronize": maca.synchronize,
    "current_stream": current_stream,
    "set_stream": set_stream,
    "get_device_capability": get_device_capability,
    "empty_cache": empty_cache,
    "memory_stats": memory_stats,
    "memory_allocated": memory_allocated,
    "max_memory_allocated": max_memory_allocated,
    "memory_reserved": memory_reserved,
    "max_memory_reserved": max_memory_reserved,
    "reset_accumulated_memory_stats": reset_accumulated_memory_stats,
    "reset_peak_memory_stats": reset_peak_memory_stats,
    "get_memory_info": mem_get_info,
}


def _on_maca(ours: Callable[..., object], theirs: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(theirs)
    def call(*args: object, **kwargs: object) -> object:
        accelerator = torch.accelerator.current_accelerator()
        is_maca = accelerator is not None and accelerator.type == "maca"
        return (ours if is_maca else theirs)(*args, **kwargs)

    return call


def register() -> None:
    """Lets ``torch.accelerator`` reach torch.maca. Functions that this PyTorch does not have yet are left out."""
    for name, function in _FUNCTIONS.items():
        theirs = getattr(torch.accelerator, name, None)
        if theirs is not None:
            setattr(torch.accelerator, name, _on_maca(function, theirs))
