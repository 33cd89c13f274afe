"""Bytes between host memory and a device buffer: the one place where they cross."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from macatensor.runtime import streams
from macatensor.runtime.ffi import ffi, lib, move_bytes, pointer, raise_pending
from macatensor.runtime.meta import Meta, meta_of_tensor
from macatensor.runtime.sync_debug import host_wait

if TYPE_CHECKING:
    from macatensor.runtime.ffi import Buffer, CData

_cast = ffi.cast


def host_address(host: torch.Tensor) -> CData:
    """Where the first element of a host tensor lies. Raises NotImplementedError when it has no memory there."""
    if host.device.type == "meta":
        raise NotImplementedError(
            "Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() instead of "
            "torch.nn.Module.to() when moving module from meta to a different device."
        )
    address = host.data_ptr() if host.device.type == "cpu" else 0
    if not address:
        raise NotImplementedError(
            f"maca cannot read a {type(host).__name__} on {host.device}; accepted: a strided tensor on the CPU"
        )
    return _cast("void*", address)


def checked_meta(host: torch.Tensor) -> Meta:
    """The Meta of a strided host tensor. Raises RuntimeError where its storage was made smaller than it reaches."""
    meta = meta_of_tensor(host)
    if host.device.type == "cpu" and type(host) in (torch.Tensor, torch.nn.Parameter):
        meta.check_within(host.untyped_storage().nbytes(), int(host.storage_offset()))
    return meta


def _cross(from_host: bool, move: Callable[..., int], non_blocking: bool, *operands: CData | int) -> bool:
    """Moves bytes between the host and a buffer. Were there any?"""
    if not operands[-1]:
        return False
    host_wait("a copy from the host" if from_host else "a copy to the host", waits=not non_blocking)
    move_bytes("copy to the device" if from_host else "copy to the host", move, *operands)
    if streams.observer is not None and not non_blocking:
        streams.observer.stream_synchronized(lib.maca_streams_current())
    return True


def upload(buffer: Buffer, byte_offset: int, address: CData, nbytes: int, non_blocking: bool = False) -> None:
    """Copies host memory into a buffer. Raises the launch error of a copy that failed.

    ``non_blocking`` says that the caller asked for no wait; the host's memory is free to change on return either way.
    """
    _cross(True, lib.maca_buffer_from_host, non_blocking, pointer(buffer), byte_offset, address, nbytes)


def download(
    host: torch.Tensor, buffer: Buffer, byte_offset: int, nbytes: int, non_blocking: bool = False
) -> None:
    """Copies a buffer's bytes to the memory of a host tensor; waits for what the device still computes.

    ``non_blocking`` says that the caller asked for no wait; the bytes are there on return either way.
    """
    address = _cast("void*", host.data_ptr())
    if _cross(False, lib.maca_buffer_to_host, non_blocking, address, pointer(buffer), byte_offset, nbytes):
        if streams.used or lib.maca_task_queue_take_used():
            raise_pending()
