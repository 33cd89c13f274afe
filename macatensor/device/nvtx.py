"""``torch.maca.nvtx``: ranges and marks as torch.cuda.nvtx takes them, shown by ``torch.profiler``.

There is no NVTX on maca. A range becomes a ``record_function`` of the profiler, a mark one without length, and without
a profiler neither does anything.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch.autograd.profiler import record_function

_open = threading.local()  # .ranges: what this thread pushed and has not popped
_started: dict[int, record_function] = {}
_ids = itertools.count(1)


def _ranges() -> list[record_function]:
    if not hasattr(_open, "ranges"):
        _open.ranges = []
    return _open.ranges  # type: ignore[no-any-return]


def _begin(msg: str) -> record_function:
    entered = record_function(msg)
    entered.__enter__()
    return entered


def range_push(msg: str) -> int:
    """Begins a range inside the thread's open ones; returns its depth, 0 for the outermost."""
    ranges = _ranges()
    ranges.append(_begin(msg))
    return len(ranges) - 1


def range_pop() -> int:
    """Ends the innermost range; returns its depth, or -2 as NVTX does when none is open."""
    ranges = _ranges()
    if not ranges:
        return -2
    ranges.pop().__exit__(None, None, None)
    return len(ranges)


def range_start(msg: str) -> int:
    """Begins a range that any thread may end; returns its handle for :func:`range_end`."""
    handle = next(_ids)
    _started[handle] = _begin(msg)
    return handle


def range_end(range_id: int) -> None:
    """Ends a range of :func:`range_start`; an unknown handle is ignored, as by NVTX."""
    started = _started.pop(range_id, None)
    if started is not None:
        started.__exit__(None, None, None)


def mark(msg: str) -> None:
    """An instant."""
    with record_function(msg):
        pass


@contextmanager
def range(msg: str, *args: object, **kwargs: object) -> Iterator[None]:
    """A range over a ``with`` block or a decorated function; further arguments format ``msg``."""
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()


__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]
