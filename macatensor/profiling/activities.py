"""What the device did while it was profiled, as the runtime noted it (shim/profile.h)."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from macatensor.runtime.ffi import check, ffi, lib

if TYPE_CHECKING:
    from macatensor.runtime.ffi import CData


class Kind(IntEnum):
    """Of ``maca_profile_kind``."""

    LAUNCH = 0
    TO_DEVICE = 1
    TO_HOST = 2
    ON_DEVICE = 3
    FILL = 4
    MEMORY = 5


_NAMES = {
    Kind.TO_DEVICE: "Memcpy HtoD",
    Kind.TO_HOST: "Memcpy DtoH",
    Kind.ON_DEVICE: "Memcpy DtoD",
    Kind.FILL: "Memset",
    Kind.MEMORY: "[memory]",
}
_CATEGORIES = {Kind.LAUNCH: "kernel", Kind.FILL: "gpu_memset"}


class Activity(NamedTuple):
    """A launch, a copy, a fill, or a block that was taken or given back. Times in ns of the real-time clock."""

    kind: Kind
    name: str
    implementation: str  # that the library chose; "": it does not say
    thread: int  # the operating system's number of the thread that gave it
    stream: int
    given: int  # to the library
    start: int
    end: int
    bytes: int  # that operands span, that were moved, or by which memory in use grew
    total: int  # of memory: in use then
    address: int  # of memory

    @property
    def category(self) -> str:
        """As CUDA's traces have it."""
        return _CATEGORIES.get(self.kind, "gpu_memcpy")


def start(with_memory: bool) -> None:
    """Forgets what was noted and notes what comes; ``with_memory``: blocks taken and given back, too."""
    check(lib.maca_profile_start(with_memory), "profiler")


def stop() -> list[Activity]:
    """Waits for the device; what it did since :func:`start`, in the order in which it was given."""
    check(lib.maca_profile_stop(), "profiler")
    count = int(lib.maca_profile_events(ffi.NULL, 0))
    events = ffi.new("maca_profile_event[]", max(count, 1))
    lib.maca_profile_events(events, count)
    texts: dict[CData, str] = {ffi.NULL: ""}

    def text(held: CData) -> str:
        if held not in texts:
            texts[held] = ffi.string(held).decode(errors="replace")
        return texts[held]

    found = []
    for i in range(count):
        e = events[i]
        kind = Kind(e.kind)
        found.append(
            Activity(
                kind,
                text(e.name) if kind is Kind.LAUNCH else _NAMES[kind],
                text(e.implementation),
                e.thread,
                e.stream,
                e.given_ns,
                e.start_ns,
                e.end_ns,
                e.bytes,
                e.total_bytes,
                e.correlation,
            )
        )
    return found
