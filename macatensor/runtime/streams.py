"""Streams and events, with the meaning of their torch.cuda namesakes.

The runtime makes a stream wait for the one that used an operand last, so a program gives the same results with and
without ``wait_stream`` and events. Where that wait was needed CUDA would race; ``MACA_SANITIZE=1`` reports those
places (see sanitizer.py).

So a compiled program has no streams: its launches go to the stream that is current when it is called, and waits inside
of it are left out.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn, Protocol

import torch
from torch.compiler import is_compiling
from torch.types import Device

from macatensor.runtime.ffi import NOT_READY, OK, check, ffi, finish_wait, launch_error, lib
from macatensor.runtime.ordinal import ordinal
from macatensor.runtime.own_names import own_names
from macatensor.runtime.sync_debug import host_wait

if TYPE_CHECKING:
    from macatensor.runtime.ffi import CData

_DEVICE_TYPE = int(torch._C._autograd.DeviceType.PrivateUse1)  # type: ignore[call-overload]
used = False  # has this process queued work, so that a copy to the host may meet its failures?
_entered = threading.local()  # .ids: the streams that the thread's `with` blocks replaced, outermost first


class Observer(Protocol):
    """Is told what orders streams; the sanitizer is one."""

    def event_recorded(self, event: Event, stream_id: int) -> None: ...
    def event_awaited(self, event: Event, stream_id: int) -> None: ...
    def event_synchronized(self, event: Event) -> None: ...
    def stream_synchronized(self, stream_id: int) -> None: ...
    def device_synchronized(self) -> None: ...
    def backward_began(self, stream_id: int) -> None: ...
    def backward_ended(self) -> None: ...
    def collective_issued(
        self, lane: int, name: str, operands: Sequence[torch.Tensor], written: Sequence[torch.Tensor]
    ) -> int: ...
    def collective_awaited(self, lane: int, number: int) -> None: ...


observer: Observer | None = None


def observe(by: Observer | None) -> Observer | None:
    """Tells ``by`` what happens from now on, or nobody; gives who was told before."""
    global observer
    before, observer = observer, by
    return before


def _has_finished(status: int, what: str) -> bool:
    if status not in (OK, NOT_READY):
        raise launch_error(status, what)
    return bool(status == OK)


def _stream(stream: object, what: str) -> Stream:
    """``stream`` or the current one. Raises RuntimeError for a stream of another device, TypeError for none."""
    if stream is None:
        return current_stream()
    if isinstance(stream, Stream):
        return stream
    device = getattr(stream, "device", None)
    if isinstance(device, torch.device) and device.type != "maca":
        raise RuntimeError(f"{what}: device type maca does not match the stream's device type {device.type}.")
    if isinstance(stream, torch.Stream) and stream.stream_id == 0:  # as torch.nn.parallel makes them
        return default_stream()
    raise TypeError(f"{what} got {type(stream).__name__}; expected a torch.maca.Stream")


class Event:
    """A point in a stream's work. ``enable_timing=True`` lets :meth:`elapsed_time` measure, in milliseconds.

    ``blocking`` is taken for CUDA's sake: a wait never spins here. Raises NotImplementedError for ``interprocess`` and
    ``external``: events stay in their process, and graphs record none.
    """

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ):
        if interprocess:
            raise NotImplementedError("maca events are not shared between processes")
        if external:
            raise NotImplementedError("maca events cannot be external: graphs record no events")
        self.enable_timing = enable_timing
        self.blocking = blocking
        self.device = torch.device("maca", 0)
        self._recorded = False
        if not is_compiling():  # one that a compiled program makes is a handle when somebody uses it
            _ = self._handle

    @functools.cached_property
    def _handle(self) -> CData:
        made = ffi.new("maca_event**")
        check(lib.maca_events_create(self.enable_timing, made), "torch.maca.Event")
        return ffi.gc(made[0], lib.maca_events_destroy)

    @classmethod
    def from_ipc_handle(cls, device: Device, handle: bytes) -> Event:
        """Refused: events stay in their process."""
        raise NotImplementedError("maca events are not shared between processes")

    def ipc_handle(self) -> bytes:
        """Refused: events stay in their process."""
        raise NotImplementedError("maca events are not shared between processes")

    def record(self, stream: Stream | None = None) -> None:
        """Marks the end of what ``stream`` (the current one by default) was given so far."""
        if is_compiling():
            return
        stream_id = _stream(stream, "Event.record").stream_id
        check(lib.maca_events_record(self._handle, stream_id), "Event.record")
        self._recorded = True
        if observer is not None:
            observer.event_recorded(self, stream_id)

    def wait(self, stream: Stream | None = None) -> None:
        """Makes ``stream`` (the current one by default) wait for this event; the host goes on."""
        if is_compiling():
            return
        stream_id = _stream(stream, "Event.wait").stream_id
        check(lib.maca_streams_wait_event(stream_id, self._handle), "Event.wait")
        if observer is not None:
            observer.event_awaited(self, stream_id)

    def query(self) -> bool:
        """Has everything before the event finished? True when it was never recorded."""
        return _has_finished(lib.maca_events_query(self._handle), "Event.query")

    def synchronize(self) -> None:
        """Waits for the event; at once when it was never recorded. Raises what failed in the work before it."""
        if is_compiling():
            return
        host_wait("Event.synchronize()")
        status = lib.maca_events_synchronize(self._handle)
        if observer is not None:
            observer.event_synchronized(self)
        finish_wait(status, "Event.synchronize")

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to ``end_event``.

        Raises ValueError for events without timing or never recorded, RuntimeError while one has not finished.
        """
        if not isinstance(end_event, Event):
            raise TypeError(f"elapsed_time got {type(end_event).__name__}; expected a torch.maca.Event")
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self._recorded and end_event._recorded):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        milliseconds = ffi.new("double*")
        status = lib.maca_events_elapsed(self._handle, end_event._handle, milliseconds)
        if not _has_finished(status, "Event.elapsed_time"):
            raise RuntimeError("MACA error: device not ready: an event of the pair has not finished")
        return float(milliseconds[0])

    def __repr__(self) -> str:
        if not self._recorded:
            return "<torch.maca.Event uninitialized>"
        return f"<torch.maca.Event {int(ffi.cast('uintptr_t', self._handle)):#x}>"


_LEAST, _GREATEST = 0, -1  # priorities; the host library runs all streams alike


class Stream:
    """A queue of work that runs in order, beside other streams. Stream 0 is the default one.

    ``priority``: lower is more urgent; a value outside :meth:`priority_range` becomes the nearest inside. On the host
    library the default stream runs work at once, every other stream has a worker thread, and priorities change
    nothing. Raises ValueError and RuntimeError for a device that is not maca:0.
    """

    def __init__(self, device: Device = None, priority: int = 0, *, stream_id: int | None = None):
        ordinal(device)
        self._owned = False
        self.priority = min(_LEAST, max(_GREATEST, int(priority)))
        if stream_id is None:
            made = ffi.new("int64_t*")
            check(lib.maca_streams_create(self.priority, made), "torch.maca.Stream")
            stream_id = int(made[0])
            self._owned = True
            global used
            used = True
        self.stream_id = stream_id
        self.device = torch.device("maca", 0)
        self.device_index = 0
        self.device_type = _DEVICE_TYPE

    def __del__(self) -> None:
        if getattr(self, "_owned", False) and lib is not None:
            lib.maca_streams_destroy(self.stream_id)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "cannot copy or pickle a torch.maca.Stream: it is a queue of this process; make another"
        )

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """(least, greatest) priority: the greatest is the smaller number."""
        return _LEAST, _GREATEST

    def synchronize(self) -> None:
        """Waits for everything submitted so far. Raises what failed in it."""
        if is_compiling():
            return
        host_wait("Stream.synchronize()")
        status = lib.maca_streams_synchronize(self.stream_id)
        if observer is not None:
            observer.stream_synchronized(self.stream_id)
        finish_wait(status, "Stream.synchronize")

    def query(self) -> bool:
        """Has everything submitted finished?"""
        return _has_finished(lib.maca_streams_query(self.stream_id), "Stream.query")

    def wait_event(self, event: Event) -> None:
        """Work submitted from now on waits for ``event``. Raises TypeError for what is no ``torch.maca.Event``."""
        if not isinstance(event, Event):
            raise TypeError(f"wait_event got {type(event).__name__}; expected a torch.maca.Event")
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Work submitted from now on waits for what ``stream`` was given so far."""
        if stream is None:
            raise TypeError("wait_stream got NoneType; expected a torch.maca.Stream")
        if not is_compiling():
            self.wait_event(_stream(stream, "Stream.wait_stream").record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """Records ``event`` (a new one by default) here and returns it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device))

    def __repr__(self) -> str:
        return f"<torch.maca.Stream device={self.device} maca_stream={self.stream_id:#x}>"

    def __enter__(self) -> Stream:
        if is_compiling():
            return self
        _entered.ids = (*getattr(_entered, "ids", ()), lib.maca_streams_current())
        set_stream(self)
        return self

    def __exit__(self, *_: object) -> None:
        if is_compiling():
            return
        *outer, before = _entered.ids
        _entered.ids = outer
        lib.maca_streams_set_current(before)


class ExternalStream(Stream):
    """Refused with NotImplementedError: a library's stream handles are its own and reach it only through maca.h."""

    def __init__(self, stream_ptr: int, device: Device = None, **kwargs: object):
        self._owned = False
        raise NotImplementedError(
            "maca takes no streams of other libraries: what a stream is, only the device library knows. "
            "Make one with torch.maca.Stream()."
        )


def get_stream_from_external(data_ptr: int, device: Device = None) -> Stream:
    """Refused with NotImplementedError, as :class:`ExternalStream`."""
    return ExternalStream(data_ptr, device)


def current_stream(device: Device = None) -> Stream:
    """The stream that the calling thread's launches go to."""
    ordinal(device)
    number = 0 if is_compiling() else lib.maca_streams_current()
    return Stream(stream_id=number) if number else default_stream()


def default_stream(device: Device = None) -> Stream:
    """Stream 0."""
    ordinal(device)
    return Stream(stream_id=0) if is_compiling() else _default()


@functools.cache  # each call of a compiled function asks for the current one
def _default() -> Stream:
    return Stream(stream_id=0)


def set_stream(stream: Stream | None) -> None:
    """Makes ``stream`` the calling thread's current one; None changes nothing."""
    if stream is None or is_compiling():
        return
    check(lib.maca_streams_set_current(_stream(stream, "set_stream").stream_id), "set_stream")


class StreamContext:
    """``with torch.maca.stream(s):`` launches inside go to ``s``; None changes nothing."""

    def __init__(self, stream: Stream | None):
        self.stream = None if stream is None else _stream(stream, "StreamContext")

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *error: object) -> None:
        if self.stream is not None:
            self.stream.__exit__(*error)


def stream(stream: Stream | None) -> StreamContext:
    """A :class:`StreamContext`. Raises TypeError for what is no stream, RuntimeError for one of another device."""
    return StreamContext(stream)


__all__ = own_names(globals(), internal=("Observer", "observe"))
