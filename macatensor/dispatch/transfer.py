"""Copies between host and device."""

from __future__ import annotations

from typing import cast

import torch

from macatensor.dispatch.errors import not_strided
from macatensor.dispatch.request import Scalar
from macatensor.runtime import counters, layout
from macatensor.runtime.ffi import allocate
from macatensor.runtime.host_copies import checked_meta, download, host_address, upload
from macatensor.runtime.meta import meta_of_tensor, set_lazy_bits
from macatensor.runtime.tensor import MacaTensor, plain, wrap


def check_index(device: torch.device | None) -> None:
    """One device a process: any index but 0 is refused when a tensor is made."""
    if device is not None and device.type == "maca" and device.index not in (None, 0):
        raise RuntimeError(
            f"MACA error: invalid device ordinal {device.index}: one device is visible in a process, maca:0. "
            "Choose which with MACA_VISIBLE_DEVICES."
        )


def to_device(
    source: torch.Tensor,
    memory_format: torch.memory_format | None = None,
    dtype: torch.dtype | None = None,
    non_blocking: bool = False,
) -> MacaTensor:
    """A copy of a strided host tensor on the device.

    ``memory_format`` None applies the layout policy: 4-D tensors become channels_last.
    """
    if source.layout != torch.strided or source.is_quantized or source.is_nested:
        kind = "quantized" if source.is_quantized else "nested" if source.is_nested else str(source.layout)
        raise not_strided("a copy to maca", kind)
    given = source.detach()
    meta = checked_meta(given)
    host = given.resolve_conj().resolve_neg()
    if dtype is not None and dtype != host.dtype:
        host = host.to(dtype)
    form = layout.transfer_format(host.dim(), memory_format)
    if form is torch.preserve_format:
        if not meta.dense:
            host = torch.empty_like(host).copy_(host)
    else:
        host = host.contiguous(memory_format=form)
    if host is not given:
        meta = meta_of_tensor(host)
    buffer = allocate(meta.nbytes)
    if meta.numel:
        upload(buffer, 0, host_address(host), meta.nbytes, non_blocking)
    return wrap(buffer, 0, meta)


# Gaps that are copied along rather than closed on the device first: one pass over the host copy is cheaper.
_GAPS = 4
_COMPUTABLE = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
    }
    | {torch.float32, torch.float64, torch.complex64, torch.complex128}
)


def to_host(source: MacaTensor, non_blocking: bool = False, launches: bool = True) -> torch.Tensor:
    """A copy on the host with the same sizes, dtype and (where they are dense) strides; lazy bits are resolved.

    ``launches``: may the device close large gaps first? Not where the host computes what it would launch.
    """
    buffer, offset, meta = source._payload
    held = meta
    if not meta.dense:
        counters.count("strided_copies")
        if launches and meta.extent > _GAPS * meta.numel and meta.dtype in _COMPUTABLE:
            copied = plain(source).clone()
            assert isinstance(copied, MacaTensor)
            buffer, offset, held = copied._payload
    if held.dense:
        host = torch.empty_strided(held.size, held.stride, dtype=held.dtype, device="cpu")
    else:
        host = torch.empty(held.extent, dtype=held.dtype, device="cpu")
    download(host, buffer, offset * held.itemsize, held.nbytes, non_blocking)
    if not held.dense:
        host = host.as_strided(held.size, held.stride).clone()
    if meta.conj:
        torch.view_as_real(host).select(-1, 1).neg_()
    if meta.neg:
        host.neg_()
    return host


def read_number(source: torch.Tensor) -> Scalar:
    """The first element of ``source``, which is on the device; waits for it. ``item()`` gives the same in 1.4 us more, and
    where the Python key is excluded not at all."""
    number: Scalar = MacaTensor.__torch_dispatch__(
        torch.ops.aten._local_scalar_dense.default, (), (source,), None
    )
    return number


def read_integer(source: torch.Tensor) -> int:
    """That of a tensor of integers."""
    return cast(int, read_number(source))


def overwrite(target: MacaTensor, source: torch.Tensor) -> None:
    """Writes a host tensor of the same sizes without a launch: what lies between ``target``'s elements goes to the host
    and back."""
    buffer, offset, meta = target._payload
    if not meta.numel:
        return
    begin, memory = offset * meta.itemsize, torch.empty(meta.extent, dtype=meta.dtype, device="cpu")
    download(memory, buffer, begin, meta.nbytes)
    set_lazy_bits(memory.as_strided(meta.size, meta.stride), meta).copy_(source)
    upload(buffer, begin, host_address(memory), meta.nbytes, False)
