"""Moves operands between host and device with their memory as it is: gaps, overlaps, offset and all.

``Tensor.to`` would make a dense copy; parity is about the very strides that were drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from macatensor.runtime.boxed import Value
from macatensor.runtime.ffi import allocate
from macatensor.runtime.host_copies import download, host_address, upload
from macatensor.runtime.meta import meta_of_tensor, set_lazy_bits
from macatensor.runtime.tensor import MacaTensor, payload, wrap

_T = TypeVar("_T")


def wide(dtype: torch.dtype) -> torch.dtype:
    """float64 for floats, complex128 for complex, integers as they are."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def _memory(t: torch.Tensor) -> torch.Tensor:
    """The elements of the storage up to the last that ``t`` reaches, as a row."""
    extent = meta_of_tensor(t).extent
    return torch.as_strided(t, (t.storage_offset() + extent if extent else 0,), (1,), 0)


def twin(t: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A copy on the host with the same sizes, strides and offset."""
    memory = _memory(t.detach())
    if memory.dtype is torch.bool:  # a clone of bools makes their bytes 0 and 1
        memory = memory.view(torch.uint8).clone().view(torch.bool)
    else:
        memory = memory.clone()
    if dtype is not None:
        memory = memory.to(dtype)
    return torch.as_strided(memory, t.shape, t.stride(), t.storage_offset())


def place(t: torch.Tensor) -> MacaTensor:
    """A copy on the device with the same sizes, strides and offset."""
    memory = _memory(t.detach()).contiguous()
    nbytes = memory.numel() * memory.element_size()
    # an empty slice may lie past the last element
    buffer = allocate(max(nbytes, int(t.storage_offset()) * t.element_size()))
    if nbytes:
        upload(buffer, 0, host_address(memory), nbytes)
    return wrap(buffer, int(t.storage_offset()), meta_of_tensor(t))


def fetch(t: torch.Tensor) -> torch.Tensor:
    """A copy on the host with the same sizes and strides; it waits for what the device still computes."""
    buffer, offset, meta = payload(t)
    memory = torch.empty(meta.extent, dtype=meta.dtype)
    if meta.numel:
        download(memory, buffer, offset * meta.itemsize, meta.nbytes)
    return set_lazy_bits(torch.as_strided(memory, meta.size, meta.stride), meta)


def host_copy(t: torch.Tensor) -> torch.Tensor:
    """A copy on the host of a strided tensor of any device, with the same sizes and strides; its offset is 0."""
    if isinstance(t, MacaTensor):
        return fetch(t)
    meta = meta_of_tensor(t)
    start = int(t.storage_offset())
    with torch.no_grad():
        plain = t.detach()
        if meta.conj or meta.neg:
            return twin(plain.to("cpu"))
        memory = torch.as_strided(plain, (meta.extent,), (1,), start).to("cpu", copy=True)
    return torch.as_strided(memory, meta.size, meta.stride, 0)


_ALIGNED = 64  # elements: no kernel asks for more bytes than as many of the narrowest


def at_offset(t: torch.Tensor, offset: int) -> torch.Tensor:
    """A copy of a host tensor that begins ``offset`` elements behind the start of its memory."""
    extent = meta_of_tensor(t).extent
    memory = torch.zeros(offset + extent, dtype=t.dtype)
    memory[offset:] = torch.as_strided(t, (extent,), (1,), t.storage_offset())
    return torch.as_strided(memory, t.shape, t.stride(), offset)


def operand_copy(t: torch.Tensor) -> torch.Tensor:
    """:func:`host_copy` that begins where the tensor does between two aligned addresses: kernels may take another way
    for operands that are not aligned."""
    copy = host_copy(t)
    lead = int(t.storage_offset()) % _ALIGNED
    return at_offset(copy, lead) if lead and not copy.is_conj() and not copy.is_neg() else copy


def replace(value: _T, change: Callable[[torch.Tensor], Value]) -> _T:
    """``value`` with every tensor in it changed, the same one once."""
    done: dict[int, Value] = {}

    def visit(v: Value) -> Value:
        if isinstance(v, torch.Tensor):
            if id(v) not in done:
                done[id(v)] = change(v)
            return done[id(v)]
        if isinstance(v, (list, tuple)):
            return type(v)(visit(x) for x in v)
        if isinstance(v, dict):
            return {k: visit(x) for k, x in v.items()}
        return v

    changed: _T = visit(value)
    return changed


def tensors(value: Value) -> list[torch.Tensor | None]:
    """Every tensor (or None in a tensor's place) of a result or of arguments, in order."""
    found: list[torch.Tensor | None] = []
    _gather(value, found)
    return found


def _gather(value: Value, found: list[torch.Tensor | None]) -> None:
    if value is None or isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for v in value:
            _gather(v, found)
    elif isinstance(value, dict):
        for v in value.values():
            _gather(v, found)
