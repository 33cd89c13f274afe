"""Pinned host memory: the device library's, where it has some. PyTorch asks an allocator in C++ for it, which a Python
backend cannot give; so ``pin_memory`` and ``is_pinned`` of host tensors are ours."""

from __future__ import annotations

import warnings

import torch
from torch.types import Device

from macatensor.runtime.boxed import Value
from macatensor.runtime.ffi import ffi, lib, pinned_memory
from macatensor.runtime.meta import meta_of_tensor
from macatensor.runtime.tensor import MacaTensor, method

_library: torch.library.Library | None = None
_is_said = False


def _pin_memory(self: torch.Tensor, device: Device = None) -> torch.Tensor:
    meta = meta_of_tensor(self)
    if meta.overlaps_itself():  # there is no writing to it
        return _pin_memory(self.contiguous())
    nbytes = meta.nbytes
    capsule = pinned_memory(nbytes) if nbytes else None
    if capsule is None:
        if nbytes:
            _say_once()
        return torch.empty_like(self).copy_(self)
    storage = torch._C._from_dlpack(capsule).untyped_storage()
    pinned = torch.empty(0, dtype=self.dtype, device="cpu")
    return pinned.set_(storage, 0, self.size(), self.stride()).copy_(self)


def _say_once() -> None:
    global _is_said
    if not _is_said:
        _is_said = True
        warnings.warn(
            "the device library pins no host memory: pin_memory() copies to ordinary memory, is_pinned() says False, "
            "and copies between it and maca wait with non_blocking=True too",
            UserWarning,
            stacklevel=3,
        )


def _is_pinned(self: torch.Tensor, device: Device = None) -> bool:
    return bool(lib.maca_host_is_pinned(ffi.cast("void*", self.untyped_storage().data_ptr())))


@method("pin_memory")
def _refuse(self: MacaTensor, device: Value = None) -> None:
    raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")


def register() -> None:
    """Registers ``pin_memory`` and ``is_pinned`` of host tensors."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    _library.impl("_pin_memory", _pin_memory, "CPU")
    _library.impl("is_pinned", _is_pinned, "CPU")
