"""Pools of device memory apart from all other: names, defaults and meaning are those of ``torch.cuda.MemPool``."""

from __future__ import annotations

import contextlib
import enum
import weakref
from collections.abc import Iterator

from torch.types import Device

from macatensor.device.memory_history import Segment, memory_snapshot
from macatensor.runtime.ffi import lib
from macatensor.runtime.ordinal import ordinal
from macatensor.runtime.own_names import own_names


class Memory(enum.Enum):
    """Where a pool's segments come from, beside the device library's own memory."""

    RANKS = "memory that the ranks of a communicator reach without a copy"


class MemPool:
    """Segments of device memory that serve only what is allocated under :func:`use_mem_pool`.

    ``allocator``: None, or the ``mem_allocator`` of an mccl process group: memory that ranks share. ``use_on_oom``: what
    the pool has free serves others, too, before they run out of memory. ``no_split``: a block is a whole segment.
    Segments go back to the device with the pool; those of tensors that outlive it, once these are freed and the cache
    is emptied. Raises TypeError for another allocator and RuntimeError where no memory can be shared.
    """

    def __init__(
        self, allocator: Memory | None = None, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        if not (allocator is None or isinstance(allocator, Memory)):
            raise TypeError(
                f"MemPool got {type(allocator).__name__} for allocator; expected None or the mem_allocator of an mccl "
                "process group. A device library brings an allocator by implementing memory_allocate of maca.h."
            )
        self._allocator = allocator
        self._number = int(lib.maca_memory_open_pool(allocator is Memory.RANKS, use_on_oom, no_split))
        if not self._number:
            raise RuntimeError("MemPool: this device library has no memory that ranks share (comm_allocate)")
        self._users = 0
        weakref.finalize(self, lib.maca_memory_close_pool, self._number).atexit = False

    @property
    def allocator(self) -> Memory | None:
        """What was given as ``allocator``."""
        return self._allocator

    @property
    def id(self) -> tuple[int, int]:
        """As ``segment_pool_id`` stands in :func:`memory_snapshot`."""
        return (0, self._number)

    def use_count(self) -> int:
        """1, and 1 for each :func:`use_mem_pool` under way."""
        return 1 + self._users

    def snapshot(self, include_traces: bool = True) -> list[Segment]:
        """:func:`memory_snapshot` of this pool alone."""
        return memory_snapshot(self.id, include_traces=include_traces)


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: Device = None) -> Iterator[None]:
    """What this thread allocates inside comes from ``pool``; other threads are not concerned."""
    ordinal(device)
    before = lib.maca_memory_set_pool(pool._number)
    pool._users += 1
    try:
        yield
    finally:
        pool._users -= 1
        lib.maca_memory_set_pool(before)


__all__ = own_names(globals())
