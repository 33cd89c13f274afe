"""Pinned host memory. Once a device is registered PyTorch asks it for pinned memory, which a Python backend cannot
give; so ``pin_memory`` copies, and remembers what it copied."""

from __future__ import annotations

import weakref

import torch
from torch.types import Device

_pinned: dict[int, int] = {}  # address of a storage -> bytes
_library: torch.library.Library | None = None


def _pin_memory(self: torch.Tensor, device: Device = None) -> torch.Tensor:
    copied = torch.empty_like(self)
    copied.copy_(self)
    storage = copied.untyped_storage()
    address = storage.data_ptr()
    _pinned[address] = storage.nbytes()
    weakref.finalize(storage, _pinned.pop, address, None)
    return copied


def _is_pinned(self: torch.Tensor, device: Device = None) -> bool:
    return self.untyped_storage().data_ptr() in _pinned


def register() -> None:
    """Registers ``pin_memory`` and ``is_pinned`` of host tensors."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    _library.impl("_pin_memory", _pin_memory, "CPU")
    _library.impl("is_pinned", _is_pinned, "CPU")
