"""The host library's kernel "summary": a single pass over a tensor's elements, on maca and on the host.

It reads memory without PyTorch's dispatcher: nothing can record, trace, differentiate or transform it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from typing import Any

import torch

from macatensor import counting, flags, internal
from macatensor.accuracy.recording.numbers import Numbers
from macatensor.accuracy.recording.quiet import quiet
from macatensor.ffi import ffi, host_library_path, lib, pointer
from macatensor.meta import Meta, meta_of
from macatensor.request import DTYPE_CODES, Declined
from macatensor.tensor import MacaTensor, physical

_LONG = 1 << 18  # elements: below it keeping the interpreter's lock costs less than taking it again
_LIMIT = 1 << 14  # signatures kept
_RESULT: Meta = meta_of((8,), (1,), torch.float64)
_unpack = struct.Struct("7dQ").unpack

_plans: dict[Meta, Any] = {}  # False: the device's library has no kernel for it
flags.caches.append(_plans)
_arguments: dict[Any, Any] = {}


@functools.cache
def _function() -> tuple[Any, Any] | None:
    """The function of the host library, keeping the interpreter's lock and releasing it."""
    mode = os.RTLD_NOW | os.RTLD_LOCAL | getattr(os, "RTLD_DEEPBIND", 0)
    try:
        path = str(host_library_path())
        return (
            ctypes.PyDLL(path, mode=mode).maca_host_summarize,
            ctypes.CDLL(path, mode=mode).maca_host_summarize,
        )
    except (OSError, AttributeError):  # built without it
        return None


def summarize(tensor: torch.Tensor) -> Numbers | None:
    """The numbers of a tensor whose elements the host library reaches; None of any other."""
    if isinstance(tensor, MacaTensor):
        found = _on_maca(tensor)
    elif tensor.is_cpu:
        found = _on_host(tensor)
    else:
        return None
    if found is None:
        return None
    low, high, mean, norm, nan, inf, finite, bits = found
    if not finite:
        return Numbers(None, None, None, None, int(nan), int(inf), f"{bits:016x}")
    return Numbers(low, high, mean, norm, int(nan), int(inf), f"{bits:016x}")


def _on_maca(tensor: MacaTensor) -> Any:
    meta = tensor._payload[2]
    if meta.conj or meta.neg:
        tensor = physical(tensor)
        meta = tensor._payload[2]
    plan = _plans.get(meta)
    if plan is None:
        plan = _plan_of(tensor, meta)
    if plan is False:
        return None
    made = plan.launch_into_buffer(tensor._payload)
    held = bytearray(64)
    lib.maca_buffer_to_host(ffi.from_buffer(held), pointer(made), 0, 64)
    counting.discount(launches=1, bytes_to_host=64)
    return _unpack(held)


def _plan_of(tensor: MacaTensor, meta: Meta) -> Any:
    if len(_plans) >= _LIMIT:
        _plans.clear()
    try:
        plan: Any = internal.plan("summary", [tensor], [_RESULT], {})
    except Declined:
        plan = False
    _plans[meta] = plan
    return plan


def _on_host(tensor: torch.Tensor) -> Any:
    functions = _function()
    if functions is None:
        return None
    if tensor.is_conj() or tensor.is_neg():
        with quiet():
            tensor = tensor.detach().resolve_conj().resolve_neg()
    key = (tensor.dtype, tensor.shape, tensor.stride())
    arguments = _arguments.get(key)
    if arguments is None:
        code = DTYPE_CODES.get(tensor.dtype)
        if code is None:
            return None
        rank = tensor.dim()
        sizes = (ctypes.c_int64 * max(rank, 1))(*tensor.shape)
        strides = (ctypes.c_int64 * max(rank, 1))(*tensor.stride())
        is_long = tensor.numel() > _LONG
        if len(_arguments) >= _LIMIT:
            _arguments.clear()
        bits = tensor.dtype.itemsize * 8
        reach = (
            sum((n - 1) * abs(s) for n, s in zip(tensor.shape, tensor.stride())) + 1 if tensor.numel() else 0
        )
        arguments = _arguments[key] = (functions[is_long], code, bits, rank, sizes, strides, reach)
    call, code, bits, rank, sizes, strides, reach = arguments
    pointer = tensor.data_ptr()
    if reach and (
        not pointer
        or (tensor.storage_offset() + reach) * tensor.dtype.itemsize > tensor.untyped_storage().nbytes()
    ):
        return (
            None  # a storage that was made smaller, or the zeros of forward-mode derivatives, which have none
        )
    held = (ctypes.c_double * 8)()
    if call(code, bits, rank, sizes, strides, ctypes.c_void_p(pointer), held):
        return None
    return _unpack(held)
