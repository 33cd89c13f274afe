"""Counters of what usually goes unseen: launches, plan misses, fallbacks, copies."""

from __future__ import annotations

from collections import Counter

from macatensor.runtime.ffi import ffi, lib

_counts: Counter[str] = Counter()  # by the name that counters() gives
composites: Counter[str] = Counter()  # calls taken apart, by operator
fallbacks: Counter[str] = Counter()  # calls computed on the host, by operator
users_kernels: Counter[str] = Counter()  # calls of kernels that users registered, by operator
consultations: Counter[str] = (
    Counter()
)  # calls repeated on the host for the error PyTorch would raise, by operator
_base: dict[str, int] = {}


def count(name: str, times: int = 1) -> None:
    """Counts ``plan_misses`` (plans built), ``plan_evictions`` (dropped because a cache was full), ``strided_copies``
    (contiguous copies that a kernel's operand needed), ``layout_conversions`` (copies of a 4-D tensor between
    channels_last and contiguous), ``tapes`` (recorded for compiled graphs), ``graphs_without_tape``,
    ``graphs_from_disk`` (read, as an earlier process compiled them) or ``programs_taken_apart`` (fused ones that were
    wrong)."""
    _counts[name] += times


def counted(name: str) -> int:
    """How often :func:`count` was given ``name``: in 0.1 us, where :func:`counters` takes some."""
    return _counts[name]


def _runtime() -> dict[str, int]:
    c = ffi.new("maca_counters*")
    lib.maca_runtime_counters(c)
    return {
        "launches": c.launches,
        "weight_packs": c.packs,
        "bytes_to_device": c.bytes_to_device,
        "bytes_to_host": c.bytes_to_host,
        "bytes_on_device": c.bytes_on_device,
        "stream_waits": c.stream_waits,
        "extension_launches": c.extension_launches,
    }


def counters() -> dict[str, int]:
    """Counts since import or the last :func:`reset_counters`.

    ``plan_hits`` is what was launched without building a plan; ``fallbacks`` are calls that ran on the host;
    ``users_kernels`` are calls of kernels that users registered for the device's key; ``extension_launches`` are those
    among the launches that :mod:`macatensor.cpp_extension` serves;
    ``strided_copies`` and ``layout_conversions`` are copies the runtime made to please a kernel.
    """
    runtime = {name: value - _base.get(name, 0) for name, value in _runtime().items()}
    return {
        "launches": runtime.pop("launches"),
        "plan_hits": max(0, _runtime()["launches"] - _base.get("launches", 0) - _counts["plan_misses"]),
        "plan_misses": _counts["plan_misses"],
        "plan_evictions": _counts["plan_evictions"],
        "fallbacks": sum(fallbacks.values()),
        "composites": sum(composites.values()),
        "users_kernels": sum(users_kernels.values()),
        "consultations": sum(consultations.values()),
        "strided_copies": _counts["strided_copies"],
        "layout_conversions": _counts["layout_conversions"],
        "tapes": _counts["tapes"],
        "graphs_without_tape": _counts["graphs_without_tape"],
        "graphs_from_disk": _counts["graphs_from_disk"],
        "programs_taken_apart": _counts["programs_taken_apart"],
        **runtime,
    }


def reset_counters() -> None:
    """Sets every counter to zero."""
    _counts.clear()
    composites.clear()
    users_kernels.clear()
    fallbacks.clear()
    consultations.clear()
    _base.update(_runtime())


def discount(**counts: int) -> None:
    """Leaves out what a tool did for itself, ``launches`` and the like: counters say what the program did."""
    for name, count in counts.items():
        _base[name] = _base.get(name, 0) + count
