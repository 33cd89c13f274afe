"""A tensor's numbers: by the host library's kernel "summary" where it can reach the elements, on maca and on the host; by
PyTorch's operators elsewhere.

The kernel is a single pass that reads memory without PyTorch's dispatcher: nothing can record, trace, differentiate or
transform it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from macatensor.accuracy.recording.numbers import Numbers, by_operators
from macatensor.accuracy.recording.quiet import quiet
from macatensor.dispatch import named_kernels
from macatensor.dispatch.request import DTYPE_CODES, Declined
from macatensor.runtime import counters
from macatensor.runtime.ffi import check, ffi, host_library_path, lib, pointer
from macatensor.runtime.meta import Meta, meta_of
from macatensor.runtime.plan_caches import PlanCache
from macatensor.runtime.tensor import MacaTensor, physical

if TYPE_CHECKING:
    from macatensor.runtime.ffi import Program

_LIMIT = 1 << 14  # signatures kept
_LONG = 1 << 18  # elements: below it keeping the interpreter's lock costs less than taking it again
_RESULT: Meta = meta_of((8,), (1,), torch.float64)
_unpack = struct.Struct("7dQ").unpack
_Result = ctypes.c_double * 8

_plans: PlanCache[Program | Literal[False]] = PlanCache()  # False: the device's library has no kernel for it
_layouts: dict[tuple[torch.dtype, torch.Size, tuple[int, ...]], _Layout] = {}


@functools.cache
def _functions() -> tuple[Callable[..., int], Callable[..., int]] | None:
    """The host library's function: as it is called with the interpreter's lock, and without."""
    mode = os.RTLD_NOW | os.RTLD_LOCAL | getattr(os, "RTLD_DEEPBIND", 0)
    try:
        found = [load(str(host_library_path()), mode=mode) for load in (ctypes.PyDLL, ctypes.CDLL)]
        kept, free = (library.maca_host_summarize for library in found)
    except (OSError, AttributeError):  # built without it
        return None
    for function in (kept, free):
        function.argtypes = [*[ctypes.c_int32] * 3, *[ctypes.c_void_p] * 5]
        function.restype = ctypes.c_int32
    return kept, free


@functools.cache
def _openmp() -> ctypes.Array[ctypes.c_void_p] | None:
    """Addresses of the OpenMP runtime that PyTorch's CPU operators use, where that is GCC's; else None."""
    names = (
        "GOMP_parallel_start", "GOMP_parallel_end", "omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads"
    )  # fmt: skip
    try:
        functions = [getattr(ctypes.CDLL(None), name) for name in names]
    except (OSError, AttributeError):
        return None
    return (ctypes.c_void_p * len(names))(*(ctypes.cast(f, ctypes.c_void_p).value for f in functions))


@functools.cache
def _threads() -> int:
    found = _openmp()
    return 0 if found is None else ctypes.addressof(found)


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


def _on_maca(tensor: MacaTensor) -> tuple[float, ...] | None:
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
    check(lib.maca_buffer_to_host(ffi.from_buffer(held), pointer(made), 0, 64), "copy to the host")
    counters.discount(launches=1, bytes_to_host=64)
    return _unpack(held)


def _plan_of(tensor: MacaTensor, meta: Meta) -> Program | Literal[False]:
    if len(_plans) >= _LIMIT:
        _plans.clear()
    try:
        plan: Program | Literal[False] = named_kernels.plan("summary", [tensor], [_RESULT], {})
    except Declined:
        plan = False
    _plans[meta] = plan
    return plan


class _Layout(NamedTuple):
    """What the function is told of all host tensors with the same dtype, sizes and strides."""

    arguments: tuple[object, ...]  # code, bits, rank, sizes, strides
    reach: int  # elements from the first to behind the last in memory
    run: Callable[..., int]


def _layout(tensor: torch.Tensor) -> _Layout | None:
    """None when the host library has no function, or none for the dtype."""
    key = (tensor.dtype, tensor.shape, tensor.stride())
    found = _layouts.get(key)
    if found is None:
        functions, code = _functions(), DTYPE_CODES.get(tensor.dtype)
        if functions is None or code is None:
            return None
        if len(_layouts) >= _LIMIT:
            _layouts.clear()
        dtype, sizes, strides = key
        numbers = ctypes.c_int64 * len(sizes)
        reach = 1 + sum((n - 1) * abs(step) for n, step in zip(sizes, strides)) if tensor.numel() else 0
        told = (code, dtype.itemsize * 8, len(sizes), numbers(*sizes), numbers(*strides))
        found = _layouts[key] = _Layout(told, reach, functions[tensor.numel() > _LONG])
    return found


def _on_host(tensor: torch.Tensor) -> tuple[float, ...] | None:
    if tensor.is_conj() or tensor.is_neg():
        with quiet():
            tensor = tensor.detach().resolve_conj().resolve_neg()
    layout = _layout(tensor)
    if layout is None:
        return None
    data = tensor.data_ptr()
    # a storage that was made smaller, or the zeros of forward-mode derivatives, which have none, do not hold all
    end = (tensor.storage_offset() + layout.reach) * tensor.dtype.itemsize
    if layout.reach and (not data or end > tensor.untyped_storage().nbytes()):
        return None
    found = _Result()
    return None if layout.run(*layout.arguments, data, found, _threads()) else _unpack(found)


def measure(tensor: torch.Tensor) -> Numbers | None:
    """The numbers of a strided tensor; None where there are no elements to read (meta and fake tensors)."""
    found = summarize(tensor)
    if found is None and tensor.device.type != "meta":
        with quiet():
            held = tensor.detach()
            if held._is_zerotensor():
                held = torch.zeros(held.shape, dtype=held.dtype, device=held.device)
            elif held.numel() and (not held.untyped_storage().nbytes() or not held.data_ptr()):
                return None  # its memory was given back
            found = by_operators(held)
    return found
