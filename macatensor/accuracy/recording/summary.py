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

from macatensor.accuracy.recording.numbers import Numbers
from macatensor.accuracy.recording.quiet import quiet
from macatensor.dispatch import named_kernels
from macatensor.dispatch.request import DTYPE_CODES, Declined
from macatensor.runtime import counters
from macatensor.runtime.ffi import check, ffi, host_library_path, lib, native, pointer
from macatensor.runtime.meta import Meta, meta_of
from macatensor.runtime.plan_caches import PlanCache
from macatensor.runtime.tensor import MacaTensor, physical

_LIMIT = 1 << 14  # signatures kept
_RESULT: Meta = meta_of((8,), (1,), torch.float64)
_unpack = struct.Struct("7dQ").unpack

_plans = PlanCache()  # False: the device's library has no kernel for it
_summaries: dict[Any, Any] = {}


@functools.cache
def _function() -> int | None:
    """The address of the host library's function."""
    mode = os.RTLD_NOW | os.RTLD_LOCAL | getattr(os, "RTLD_DEEPBIND", 0)
    try:
        function = ctypes.CDLL(str(host_library_path()), mode=mode).maca_host_summarize
    except (OSError, AttributeError):  # built without it
        return None
    return ctypes.cast(function, ctypes.c_void_p).value


@functools.cache
def _openmp() -> Any:
    """Addresses of the OpenMP runtime that PyTorch's CPU operators use, where that is GCC's; else None."""
    names = (
        "GOMP_parallel_start", "GOMP_parallel_end", "omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads"
    )  # fmt: skip
    try:
        functions = [getattr(ctypes.CDLL(None), name) for name in names]
    except (OSError, AttributeError):
        return None
    return (ctypes.c_void_p * len(names))(*(ctypes.cast(f, ctypes.c_void_p).value for f in functions))


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
    check(lib.maca_buffer_to_host(ffi.from_buffer(held), pointer(made), 0, 64), "copy to the host")
    counters.discount(launches=1, bytes_to_host=64)
    return _unpack(held)


def _plan_of(tensor: MacaTensor, meta: Meta) -> Any:
    if len(_plans) >= _LIMIT:
        _plans.clear()
    try:
        plan: Any = named_kernels.plan("summary", [tensor], [_RESULT], {})
    except Declined:
        plan = False
    _plans[meta] = plan
    return plan


def host_summary(tensor: torch.Tensor) -> Any:
    """A RecordedSummary for host tensors of these sizes, strides and dtype, which are no conjugates and no negatives;
    None when the host library has none."""
    function, code = _function(), DTYPE_CODES.get(tensor.dtype)
    if function is None or code is None or tensor.is_conj() or tensor.is_neg():
        return None
    key = (tensor.dtype, tensor.shape, tensor.stride())
    found = _summaries.get(key)
    if found is None:
        if len(_summaries) >= _LIMIT:
            _summaries.clear()
        found = _summaries[key] = native.RecordedSummary(
            function, _threads(), code, tensor.dtype.itemsize * 8, tuple(tensor.shape), tensor.stride()
        )
    return found


def _on_host(tensor: torch.Tensor) -> Any:
    if tensor.is_conj() or tensor.is_neg():
        with quiet():
            tensor = tensor.detach().resolve_conj().resolve_neg()
    summary = host_summary(tensor)
    return None if summary is None else summary(tensor)
