"""What torch.maca says of its device, and the choice of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.types import Device

from macatensor.device.memory import mem_get_info
from macatensor.runtime.ffi import LIBRARY, device_info, ffi, lib
from macatensor.runtime.ordinal import ordinal
from macatensor.runtime.own_names import own_names

if TYPE_CHECKING:
    from macatensor.runtime.ffi import CData


class DeviceProperties(NamedTuple):
    """What the library says of its device."""

    name: str
    total_memory: int  # bytes
    multi_processor_count: int  # compute threads on a host library
    simd: str
    libraries: str
    kernel_count: int
    major: int  # version of maca.h that the library implements
    minor: int


def _text(field: CData) -> str:
    return str(ffi.string(field).decode())


def _check_index(device: Device) -> None:
    try:
        valid = ordinal(device) >= 0
    except RuntimeError:
        valid = False
    if not valid:
        raise AssertionError("Invalid device id")


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Name, memory, threads and instruction set of the device. Raises AssertionError for an index there is not."""
    _check_index(device)
    info = device_info()
    major, minor = _version()
    return DeviceProperties(
        _text(info.name),
        int(mem_get_info()[1]),
        int(info.threads),
        _text(info.simd),
        _text(info.libraries),
        int(info.kernel_count),
        major,
        minor,
    )


def get_device_name(device: Device = None) -> str:
    """Name of the device. Raises AssertionError for an index there is not."""
    _check_index(device)
    info = device_info()  # the name is a part of it, which does not keep it
    return _text(info.name)


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """(major, minor) version of maca.h that the library implements: what a program may rely on."""
    _check_index(device)
    return _version()


def _version() -> tuple[int, int]:
    return divmod(int(lib.maca_runtime_abi()), 1000)


def get_arch_list() -> list[str]:
    """The instruction set that kernels run with, as the library names it (``["avx512"]``)."""
    simd = get_device_properties().simd
    return [simd] if simd else []


def get_gencode_flags() -> str:
    """Empty: no kernel was compiled by NVCC."""
    return ""


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """False: there is one device, and CUDA too says False of a device and itself.

    Raises AssertionError for an index there is not.
    """
    for given, what in ((device, "device"), (peer_device, "peer device")):
        try:
            valid = ordinal(given) == 0
        except RuntimeError:
            valid = False
        if not valid:
            raise AssertionError(f"Invalid {what} id")
    return False


def current_blas_handle() -> int:
    """0: the library's BLAS is called without a handle."""
    return 0


def library_info() -> dict[str, object]:
    """Path, name and ABI version of the loaded library, and its device's properties."""
    properties = get_device_properties()
    return {
        "path": str(LIBRARY),
        "library": ffi.string(lib.maca_runtime_library()).decode(),
        "abi": f"{properties.major}.{properties.minor}",
        **properties._asdict(),
    }


def set_device(device: Device) -> None:
    """Accepts device 0 in any spelling; a negative index changes nothing.

    Raises RuntimeError for an index there is not, ValueError for a device of another type.
    """
    ordinal(device)


class device:
    """``with torch.maca.device(0):``; None and negative indices change nothing."""

    def __init__(self, device: Device):
        self.idx = ordinal(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = 0

    def __exit__(self, *error: object) -> None:
        self.idx = self.prev_idx


class device_of(device):
    """``with torch.maca.device_of(tensor):``; a tensor of another device changes nothing."""

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage):
        place: torch.device = obj.device
        super().__init__(obj.get_device() if place.type == "maca" else -1)


__all__ = own_names(globals())
