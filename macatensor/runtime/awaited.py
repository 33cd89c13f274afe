"""Device memory that work of the host writes yet: whoever uses it, through whatever view, waits first.

A collective that the host carries ends at some time. Until then each block that it will write holds the number of an
entry here, and the runtime calls :func:`_finish` before a launch, a copy or a graph uses the block.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from macatensor.runtime.ffi import native
from macatensor.runtime.tensor import MacaTensor

if TYPE_CHECKING:
    from macatensor.runtime.ffi import Buffer


class Awaited:
    """The memory of some tensors, which ``finish`` writes when it is called or has written before. It may be called
    several times and by any thread, and raises nothing."""

    def __init__(self, tensors: Iterable[MacaTensor], finish: Callable[[], None]):
        self.finish = finish
        self._places = [_place(t) for t in tensors if t._payload[2].numel]
        with _lock:
            for buffer, _, _ in self._places:
                if not buffer.awaited:
                    buffer.awaited = next(_numbers)
                _awaited.setdefault(buffer.awaited, []).append(self)

    def release(self) -> None:
        """The memory has been written, or never will be."""
        with _lock:
            for buffer, _, _ in self._places:
                others = _awaited.get(buffer.awaited, [])
                if self in others:
                    others.remove(self)
                if not others:
                    _awaited.pop(buffer.awaited, None)
                    buffer.awaited = 0
            self._places = []
        self.finish = _nothing  # of what holds this: tensors are freed without a collection

    def _meets(self, buffer: Buffer, start: int, end: int) -> bool:
        return any(held is buffer and a < end and start < b for held, a, b in self._places)


_lock = threading.Lock()
_numbers = itertools.count(1)
_awaited: dict[int, list[Awaited]] = {}  # by the number that the block holds, oldest first
_thread = threading.local()  # .writes: does it write, or read with care, memory that is awaited?


def _nothing() -> None:
    pass


def _place(tensor: MacaTensor) -> tuple[Buffer, int, int]:
    buffer, offset, meta = tensor._payload
    start = offset * meta.itemsize
    return buffer, start, start + meta.nbytes


def _finish(number: int) -> None:
    if getattr(_thread, "writes", False):
        return
    for entry in list(_awaited.get(number, ())):
        entry.finish()


@contextmanager
def no_waiting() -> Iterator[None]:
    """In the block this thread uses memory at once: it is what writes it, or knows that its part is there."""
    before = getattr(_thread, "writes", False)
    _thread.writes = True
    try:
        yield
    finally:
        _thread.writes = before


def is_at_once() -> bool:
    """Is this thread inside of :func:`no_waiting`?"""
    return getattr(_thread, "writes", False)


def finish_all(tensor: MacaTensor) -> None:
    """Waits for what writes bytes of the tensor; not, as its readers do, for what writes others of the same memory:
    two ranks that send a part of a tensor while they receive another would wait for one another."""
    buffer, start, end = _place(tensor)
    if buffer.awaited:
        for entry in list(_awaited.get(buffer.awaited, ())):
            if entry._meets(buffer, start, end):
                entry.finish()


native.set_finisher(_finish)
