"""Device memory: statistics, limits, the cache. Names, defaults and errors are torch.cuda.memory's."""

from __future__ import annotations

import collections
import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from torch.compiler import is_compiling
from torch.types import Device

from macatensor.device.memory_history import _dump_snapshot as _dump_snapshot
from macatensor.device.memory_history import _record_memory_history as _record_memory_history
from macatensor.device.memory_history import _snapshot as _snapshot
from macatensor.device.memory_history import memory_snapshot as memory_snapshot
from macatensor.device.memory_pools import MemPool as MemPool
from macatensor.device.memory_pools import use_mem_pool as use_mem_pool
from macatensor.runtime import capture
from macatensor.runtime.ffi import MEMORY_LIMIT, allocate, check, ffi, lib, memory_statistics
from macatensor.runtime.ordinal import ordinal
from macatensor.runtime.own_names import own_names
from macatensor.runtime.streams import Stream, StreamContext

if TYPE_CHECKING:
    from macatensor.runtime.ffi import Buffer

# torch.cuda's name -> ours; a block is active as long as it is allocated, since streams are ordered by the runtime
_POOLED = {
    "allocation": "allocation",
    "segment": "segment",
    "active": "allocation",
    "inactive_split": "inactive",
    "allocated_bytes": "allocated_bytes",
    "reserved_bytes": "reserved_bytes",
    "active_bytes": "allocated_bytes",
    "inactive_split_bytes": "inactive_bytes",
    "requested_bytes": "requested_bytes",
}
_POOLS = ("all", "small_pool", "large_pool")
_PARTS = ("current", "peak", "allocated", "freed")


# A number, or several by the pools and the moments that they are of.
NestedStatistic: TypeAlias = "int | Mapping[str, NestedStatistic]"


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, NestedStatistic]:
    """The allocator's numbers as ``{name: {pool: {"current", "peak", "allocated", "freed"}}}`` with torch.cuda's names.

    Bytes or counts. The small pool holds blocks of up to 64 KiB. ``num_alloc_retries`` counts how often the cache
    was emptied to serve a request, ``num_ooms`` the requests that failed. No block is too large to split, so the
    oversize numbers are 0.
    """
    ordinal(device)
    s = memory_statistics()
    result: dict[str, NestedStatistic] = {}
    for name, ours in _POOLED.items():
        pools = getattr(s, ours)
        result[name] = {
            pool: {part: int(getattr(pools[i], part)) for part in _PARTS} for i, pool in enumerate(_POOLS)
        }
    none = dict.fromkeys(_PARTS, 0)
    result["oversize_allocations"] = none
    result["oversize_segments"] = dict(none)
    result["max_split_size"] = -1
    result["num_alloc_retries"] = int(s.retries)
    result["num_ooms"] = int(s.out_of_memory)
    result["num_sync_all_streams"] = int(s.retries)
    result["num_device_alloc"] = int(s.segment[0].allocated)
    result["num_device_free"] = int(s.segment[0].freed)
    return result


def memory_stats(device: Device = None) -> dict[str, int]:
    """:func:`memory_stats_as_nested_dict` with joined keys such as ``"allocated_bytes.all.current"``, sorted."""
    result: list[tuple[str, int]] = []

    def add(prefix: str, value: NestedStatistic) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                add(f"{prefix}.{key}" if prefix else key, inner)
        else:
            result.append((prefix, value))

    add("", memory_stats_as_nested_dict(device))
    return collections.OrderedDict(sorted(result))


def _of_all_pools(statistic: str, figure: str) -> int:
    statistics = memory_statistics()  # held: its arrays do not keep it
    return int(getattr(getattr(statistics, statistic)[0], figure))


def memory_allocated(device: Device = None) -> int:
    """Bytes of live blocks."""
    ordinal(device)
    return _of_all_pools("allocated_bytes", "current")


def max_memory_allocated(device: Device = None) -> int:
    """Most bytes of live blocks since the start or :func:`reset_peak_memory_stats`."""
    ordinal(device)
    return _of_all_pools("allocated_bytes", "peak")


def memory_reserved(device: Device = None) -> int:
    """Bytes held of the device, live or cached."""
    ordinal(device)
    return _of_all_pools("reserved_bytes", "current")


def max_memory_reserved(device: Device = None) -> int:
    """Most bytes held of the device since the start or :func:`reset_peak_memory_stats`."""
    ordinal(device)
    return _of_all_pools("reserved_bytes", "peak")


def memory_cached(device: Device = None) -> int:
    """Deprecated, with a FutureWarning; see :func:`memory_reserved`."""
    _renamed("memory_cached", "memory_reserved")
    return memory_reserved(device)


def max_memory_cached(device: Device = None) -> int:
    """Deprecated, with a FutureWarning; see :func:`max_memory_reserved`."""
    _renamed("max_memory_cached", "max_memory_reserved")
    return max_memory_reserved(device)


def _renamed(old: str, new: str) -> None:
    message = f"`torch.maca.{old}` has been renamed to `torch.maca.{new}`"
    warnings.warn(message, FutureWarning, stacklevel=3)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Peaks start from what is in use now."""
    ordinal(device)
    lib.maca_memory_reset_peaks()


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """``allocated``, ``freed``, ``num_alloc_retries`` and ``num_ooms`` start from 0."""
    ordinal(device)
    lib.maca_memory_reset_accumulated()


def _resets_all(name: str, device: Device) -> None:
    message = f"torch.maca.{name} now calls torch.maca.reset_peak_memory_stats, which resets /all/ peak memory stats."
    warnings.warn(message, FutureWarning, stacklevel=3)
    reset_peak_memory_stats(device)


def reset_max_memory_allocated(device: Device = None) -> None:
    """:func:`reset_peak_memory_stats` with the FutureWarning of its torch.cuda namesake."""
    _resets_all("reset_max_memory_allocated", device)


def reset_max_memory_cached(device: Device = None) -> None:
    """:func:`reset_peak_memory_stats` with the FutureWarning of its torch.cuda namesake."""
    _resets_all("reset_max_memory_cached", device)


def empty_cache() -> None:
    """Gives segments without live blocks back to the device; nothing in a compiled program."""
    if is_compiling():
        return
    capture.refuse("empty_cache()")
    check(lib.maca_memory_empty_cache(), "empty_cache()")


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """(free, total) bytes of the device, within ``MACA_DEVICE_MEMORY``."""
    ordinal(device)
    free, total = ffi.new("uint64_t*"), ffi.new("uint64_t*")
    check(lib.maca_memory_info(free, total), "mem_get_info()")
    if MEMORY_LIMIT:
        left = max(0, MEMORY_LIMIT - memory_reserved())
        return min(int(free[0]), left), min(int(total[0]), MEMORY_LIMIT)
    return int(free[0]), int(total[0])


_fraction = 1.0


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Lets the allocator hold at most ``fraction`` (0 to 1) of the device's total memory; what it holds stays.

    Raises TypeError for anything but a float and ValueError outside 0 to 1.
    """
    global _fraction
    ordinal(device)
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _fraction = fraction
    if fraction == 1:
        lib.maca_memory_set_limit(MEMORY_LIMIT or -1)
    else:
        lib.maca_memory_set_limit(int(mem_get_info()[1] * fraction))


def get_per_process_memory_fraction(device: Device = None) -> float:
    """The fraction that :func:`set_per_process_memory_fraction` set; 1.0 at the start."""
    ordinal(device)
    return _fraction


_raw: dict[int, Buffer] = {}  # address -> buffer, of caching_allocator_alloc


def caching_allocator_alloc(size: int, device: Device = None, stream: Stream | int | None = None) -> int:
    """Allocates ``size`` bytes and returns their opaque address; 0 for 0 bytes.

    ``stream``: the stream that will use them, a Stream or its id; the current one by default. Raises TypeError for
    another kind of stream and OutOfMemoryError.
    """
    ordinal(device)
    if isinstance(stream, int):
        stream = Stream(stream_id=stream)
    elif stream is not None and not isinstance(stream, Stream):
        raise TypeError(
            "Invalid type for stream argument, must be `torch.maca.Stream` or `int` representing the id of an existing stream"
        )
    if size < 0:
        raise ValueError(f"caching_allocator_alloc got {size} bytes; expected none or more")
    if size == 0:
        return 0
    with StreamContext(stream):
        buffer = allocate(size)
    address = int(buffer.address)
    _raw[address] = buffer
    return address


def caching_allocator_delete(mem_ptr: int) -> None:
    """Frees what :func:`caching_allocator_alloc` gave. Raises RuntimeError for any other address but 0."""
    if mem_ptr and _raw.pop(mem_ptr, None) is None:
        raise RuntimeError(f"invalid device pointer: {mem_ptr:#x}")


def get_allocator_backend() -> str:
    """``"native"``: the runtime's own caching allocator."""
    return "native"


def change_current_allocator(allocator: object) -> None:
    """Refused with RuntimeError: operators have run their memory through the runtime's allocator since import."""
    raise RuntimeError(
        "Can't swap an already initialized allocator: the runtime between Python and the device library owns "
        "maca's memory from import on. A device library brings its own by implementing memory_allocate of maca.h."
    )


def list_gpu_processes(device: Device = None) -> str:
    """A line for each process known to use the device: only this one, since a device library cannot list others."""
    held = memory_reserved(device) / (1024 * 1024)
    return f"GPU:0\nprocess {os.getpid():>10d} uses {held:>12.3f} MB GPU memory"


def _size(value: int, reference: int) -> str:
    units = ["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"]
    scale: float = reference
    unit = units[0]
    for bigger in units[1:]:
        if scale < 768 * 1024:
            break
        unit = bigger
        value //= 1024
        scale /= 1024
    return f"{value:6d} {unit}"


def _number(value: int, reference: int) -> str:
    scale: float = reference
    unit = " "
    for bigger in ("K", "M"):
        if scale < 750 * 1000:
            break
        unit = bigger
        value //= 1000
        scale /= 1000
    return f"{value:7d} {unit} "


_ROWS = (
    ("allocated_bytes", "Allocated memory", _size),
    ("active_bytes", "Active memory", _size),
    ("requested_bytes", "Requested memory", _size),
    ("reserved_bytes", "GPU reserved memory", _size),
    ("inactive_split_bytes", "Non-releasable memory", _size),
    ("allocation", "Allocations", _number),
    ("active", "Active allocs", _number),
    ("segment", "GPU reserved segments", _number),
    ("inactive_split", "Non-releasable allocs", _number),
)


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """The statistics as the table that ``torch.cuda.memory_summary`` prints; ``abbreviated`` leaves the pools out."""
    index = ordinal(device)
    stats = memory_stats(device)
    rule, thin = "=" * 75, "-" * 75
    lines = [
        rule,
        f" {'':16} PyTorch MACA memory summary, device ID {index:<17d} ",
        thin,
        f"  {'':9} MACA OOMs: {stats['num_ooms']:<12d} | {'':6} macaMalloc retries: {stats['num_alloc_retries']:<8d}  ",
        rule,
        "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ",
    ]
    for key, title, form in _ROWS:
        lines.append(thin)
        pools = [("all", title)]
        if not abbreviated:
            pools += [("large_pool", "      from large pool"), ("small_pool", "      from small pool")]
        reference = [stats[f"{key}.all.{part}"] for part in _PARTS]
        for pool, name in pools:
            cells = [form(stats[f"{key}.{pool}.{part}"], r) for part, r in zip(_PARTS, reference)]
            lines.append(f" {name:<21} | {' | '.join(cells)} ")
    for key, title in (
        ("oversize_allocations", "Oversize allocations"),
        ("oversize_segments", "Oversize GPU segments"),
    ):
        cells = [_number(stats[f"{key}.{part}"], stats[f"{key}.{part}"]) for part in _PARTS]
        lines += [thin, f" {title:<21} | {' | '.join(cells)} "]
    lines.append(rule)
    return "|" + "|\n|".join(lines) + "|\n"


__all__ = own_names(globals())
