"""Between operands of a collective and contiguous host tensors, which carriers move."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils._python_dispatch import _disable_current_modes

from macatensor.dispatch.transfer import to_device
from macatensor.runtime.awaited import no_waiting
from macatensor.runtime.host_copies import host_address, upload
from macatensor.runtime.meta import meta_of
from macatensor.runtime.tensor import MacaTensor, wrap


def room_for(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous host tensor of any content, for what comes back into ``tensor``."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def together(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The bytes of contiguous host tensors one after the other: a view where they lie so, else a copy."""
    first, at = parts[0], parts[0].data_ptr()
    storage = first.untyped_storage().data_ptr()
    for part in parts:
        if part.numel() and (part.data_ptr() != at or part.untyped_storage().data_ptr() != storage):
            return torch.cat([as_bytes(t) for t in parts])
        at += part.nbytes
    start = first.storage_offset() * first.element_size()
    whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(first.untyped_storage())
    return whole[start : start + sum(t.nbytes for t in parts)]


def put(target: torch.Tensor, host: torch.Tensor) -> None:
    """Writes host elements into an operand. Autograd does not count it as a change, as of other backends."""
    host = host.view(target.shape)
    if not isinstance(target, MacaTensor):
        target.detach().copy_(host)
        return
    buffer, offset, meta = target._payload
    with no_waiting(), _disable_current_modes():
        if not meta.numel:
            return
        if meta.dense and meta.stride == host.stride() and not (meta.conj or meta.neg):
            upload(buffer, offset * meta.itemsize, host_address(host), meta.nbytes)
        else:
            if meta.itemsize == 1 and meta.dtype.is_floating_point:  # float8, of which devices have no copies
                host, meta = host.view(torch.uint8), meta_of(meta.size, meta.stride, torch.uint8)
            torch.ops.aten.copy_.default(wrap(buffer, offset, meta), to_device(host, torch.contiguous_format))


def put_all(targets: Sequence[torch.Tensor], hosts: Sequence[torch.Tensor]) -> None:
    for target, host in zip(targets, hosts):
        put(target, host)


def as_bytes(host: torch.Tensor) -> torch.Tensor:
    """A contiguous host tensor's memory, for carriers that know no bfloat16, complex numbers or float8."""
    return host.reshape(-1).view(torch.uint8)
