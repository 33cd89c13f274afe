"""DLPack: tensors of the device handed on within PyTorch, which share their memory then, and copies on the host.

Other libraries know no device of the kind that the capsule names (``kDLExtDev``), and refuse it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.utils.dlpack
from maca_autoload import to_dlpack
from torch.utils import _device

from macatensor.runtime.ffi import native
from macatensor.runtime.tensor import MacaTensor, method, payload, wrap

HOST = (1, 0)
OURS = (12, 0)  # kDLExtDev

_SIGNED, _UNSIGNED, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_CODES = {
    torch.int8: _SIGNED, torch.int16: _SIGNED, torch.int32: _SIGNED, torch.int64: _SIGNED,
    torch.uint8: _UNSIGNED, torch.uint16: _UNSIGNED, torch.uint32: _UNSIGNED, torch.uint64: _UNSIGNED,
    torch.float16: _FLOAT, torch.float32: _FLOAT, torch.float64: _FLOAT, torch.bfloat16: _BFLOAT,
    torch.complex32: _COMPLEX, torch.complex64: _COMPLEX, torch.complex128: _COMPLEX, torch.bool: _BOOL,
}  # fmt: skip


@method("__dlpack_device__")
def _device_of(self: MacaTensor) -> tuple[int, int]:
    return OURS


@method("__dlpack__")
def _export(
    self: MacaTensor,
    *,
    stream: object = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> object:
    """A capsule of the tensor itself, or of a copy on the host for who asks for one with ``dl_device=(1, 0)``.

    Raises BufferError as PyTorch does, and for another device.
    """
    if self.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if self.is_conj() or self.is_neg():
        raise BufferError("Can't export tensors with the conjugate or negative bit set")
    device = OURS if dl_device is None else tuple(dl_device)
    if device == HOST and copy is not False:
        return self.cpu().__dlpack__(max_version=max_version)
    if device != OURS:
        raise BufferError(
            "a tensor on maca:0 cannot be exported through DLPack to another device without a copy: other libraries "
            "cannot reach its memory. Use Tensor.cpu() first, or from_dlpack(tensor, device='cpu')"
        )
    if self.dtype not in _CODES:
        raise BufferError(f"{self.dtype} has no type of DLPack here; use Tensor.view(torch.uint8)")
    held = self.clone() if copy else self.detach()
    bits = held.element_size() * 8
    return native.lend(held, held.data_ptr(), _CODES[held.dtype], bits, tuple(held.shape), held.stride())


_Capsule = type(torch._C._to_dlpack(torch.empty(0, device="cpu")))
_take: Any = torch._C._from_dlpack
_dlpack: Any = torch.utils.dlpack
_asarray: Any = torch.asarray


@functools.wraps(_take)
def _from_dlpack(capsule: object) -> torch.Tensor:
    lender = native.lender(capsule)
    taken: torch.Tensor = _take(capsule) if lender is None else wrap(*payload(lender))
    if taken.device.type == "maca" and not isinstance(taken, MacaTensor):
        raise BufferError("the capsule is of another maker's device, whose memory cannot be reached here")
    return taken


@functools.wraps(_asarray)
def _array(obj: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    # C++ takes a capsule past torch._C._from_dlpack
    made: torch.Tensor = _asarray(_from_dlpack(obj) if isinstance(obj, _Capsule) else obj, *args, **kwargs)
    return made


def register() -> None:
    """Capsules of this device become tensors of it."""
    bound: Any = torch._C
    bound._from_dlpack = _from_dlpack
    lent: Any = to_dlpack(_dlpack.to_dlpack)
    torch.to_dlpack = _dlpack.to_dlpack = lent  # type: ignore[attr-defined]
    _device._device_constructors()  # what a default device applies to: PyTorch keeps this set, with its own asarray
    torch.asarray = _array
