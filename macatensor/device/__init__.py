"""``torch.maca``: the device module, with the names of torch.cuda."""

from __future__ import annotations

import torch
from torch.types import Device

from macatensor.device import jiterator, memory, nvtx
from macatensor.device.graphed_callables import make_graphed_callables
from macatensor.device.graphs import MacaGraph, graph, graph_pool_handle, is_current_stream_capturing
from macatensor.device.memory import (
    caching_allocator_alloc,
    caching_allocator_delete,
    change_current_allocator,
    empty_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    list_gpu_processes,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from macatensor.device.properties import (
    DeviceProperties,
    can_device_access_peer,
    current_blas_handle,
    device,
    device_of,
    get_arch_list,
    get_device_capability,
    get_device_name,
    get_device_properties,
    get_gencode_flags,
    library_info,
    set_device,
)
from macatensor.device.tensor_types import (
    BFloat16Tensor,
    BoolTensor,
    ByteTensor,
    CharTensor,
    DoubleTensor,
    FloatTensor,
    HalfTensor,
    IntTensor,
    LongTensor,
    ShortTensor,
)
from macatensor.dispatch.named_kernels import launch
from macatensor.dispatch.request import Declined
from macatensor.runtime import random
from macatensor.runtime import streams as streams
from macatensor.runtime.ffi import finish_wait, lib
from macatensor.runtime.ordinal import ordinal
from macatensor.runtime.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from macatensor.runtime.streams import (
    Event,
    ExternalStream,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    get_stream_from_external,
    set_stream,
    stream,
)
from macatensor.runtime.sync_debug import get_sync_debug_mode, host_wait, set_sync_debug_mode

OutOfMemoryError = torch.OutOfMemoryError
CUDAGraph = MacaGraph  # under the name that scripts for torch.cuda look for
_initialized = True  # torch.utils.checkpoint keeps random states only of devices that say so


def is_available() -> bool:
    """A library is loaded, or importing macatensor would have failed."""
    return True


def is_initialized() -> bool:
    """True: the library is loaded by the import."""
    return True


def init() -> None:
    """Nothing is left to do after import."""


def _lazy_init() -> None:
    pass


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    """One: PyTorch's Python device guard knows one device. ``MACA_VISIBLE_DEVICES`` picks which."""
    return 1


def current_device() -> int:
    """0, the index of the one device."""
    return 0


def synchronize(device: Device = None) -> None:
    """Waits for the work of all streams. Raises what failed in it."""
    ordinal(device)
    host_wait("synchronize()")
    status = lib.maca_runtime_synchronize()
    if streams.observer is not None:
        streams.observer.device_synchronized()
    finish_wait(status, "synchronize()")


def ipc_collect() -> None:
    """Nothing to collect: maca's memory is not shared between processes."""


def _sleep(cycles: int) -> None:
    """Keeps the current stream busy for ``cycles`` cycles of a 1 GHz clock, that is nanoseconds.

    Raises ValueError for a negative number, NotImplementedError where the library has no such kernel.
    """
    if cycles < 0:
        raise ValueError(f"_sleep got {cycles} cycles; expected 0 or more")
    try:
        launch("delay", [], [], {"cycles": int(cycles)})
    except Declined as error:
        raise NotImplementedError(f"the device library cannot delay a stream: {error}") from None


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: every library computes in bfloat16, if need be through float32."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes of ``torch.autocast("maca")``."""
    return [torch.bfloat16, torch.float16]


__all__ = [
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CUDAGraph",
    "CharTensor",
    "DeviceProperties",
    "DoubleTensor",
    "Event",
    "ExternalStream",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "MacaGraph",
    "OutOfMemoryError",
    "ShortTensor",
    "Stream",
    "StreamContext",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "can_device_access_peer",
    "change_current_allocator",
    "current_blas_handle",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_allocator_backend",
    "get_amp_supported_dtype",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_gencode_flags",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_stream_from_external",
    "get_sync_debug_mode",
    "graph",
    "graph_pool_handle",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "jiterator",
    "library_info",
    "list_gpu_processes",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "nvtx",
    "random",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "streams",
    "synchronize",
]
