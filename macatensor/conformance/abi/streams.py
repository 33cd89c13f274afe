"""Level 1: streams and events. Work that takes long enough to be seen under way is a fill of many megabytes."""

from __future__ import annotations

import time

from .device import NOT_READY, OK, ON_DEVICE, Opened, at
from .header import Pointer, ffi, status_text
from .rules import expect, rule

SIZE = 48 << 20
_ROUNDS = 4


def _end(d: Opened, address: Pointer, stream: Pointer = ffi.NULL) -> int:
    """The last byte of the filled memory, read beside the stream that fills it."""
    return d.read(at(address, SIZE - 1), 1, stream)[0]


def _work(d: Opened, address: Pointer, byte: int, stream: Pointer) -> None:
    for value in (byte ^ 0x55, byte):
        d.fill(address, value, SIZE, stream)


@rule(1, "streams", "Work on one stream runs in the order it was submitted.", "Keep one queue a stream.")
def work_of_a_stream_is_in_order(d: Opened) -> None:
    a, b = d.allocate(SIZE), d.allocate(64)
    for stream in (ffi.NULL, d.stream(), d.stream(-1)):
        for byte in range(1, 1 + _ROUNDS):
            _work(d, a, byte, stream)
            d.call("copy", ON_DEVICE, b, at(a, SIZE - 64), 64, 0, stream)
            d.fill(a, 0, 64, stream)
            got = d.read(b, 64, stream)
            expect(set(got) == {byte}, f"a copy behind a fill with {byte} on its stream brought {set(got)}")


@rule(1, "streams", "A NULL stream is the default stream.", "Take NULL wherever a stream is asked for.")
def the_default_stream_is_null(d: Opened) -> None:
    event = d.event()
    d.call("event_record", event, ffi.NULL)
    d.call("stream_wait_event", ffi.NULL, event)
    d.call("stream_synchronize", ffi.NULL)
    status = d.status("stream_query", ffi.NULL)
    expect(status == OK, f"stream_query(NULL) returned {status_text(status)} after a wait for it")


@rule(1, "streams", "after a wait for the same they must not",
      "Let stream_synchronize return when all work that was submitted before has ended.")  # fmt: skip
def a_wait_for_a_stream_waits(d: Opened) -> None:
    a, stream = d.allocate(SIZE), d.stream()
    for byte in range(1, 1 + _ROUNDS):
        _work(d, a, byte, stream)
        d.call("stream_synchronize", stream)
        status = d.status("stream_query", stream)
        expect(status == OK, f"stream_query returned {status_text(status)} right after stream_synchronize")
        expect(_end(d, a) == byte, "stream_synchronize returned before the stream's fill had ended")


@rule(1, "streams", "all streams idle", "Let device_synchronize wait for every stream.")
def a_wait_for_the_device_waits_for_all(d: Opened) -> None:
    a, streams = [d.allocate(SIZE) for _ in range(2)], [d.stream() for _ in range(2)]
    for byte in range(1, 1 + _ROUNDS):
        for address, stream in zip(a, streams):
            _work(d, address, byte, stream)
        d.settle()
        for address in a:
            expect(_end(d, address) == byte, "device_synchronize returned before a stream's fill had ended")


@rule(
    1,
    "streams",
    "The queries and event_elapsed may say MACA_NOT_READY",
    "Return MACA_NOT_READY while work is left.",
)
def a_stream_that_is_ready_is_done(d: Opened) -> None:
    a, stream = d.allocate(SIZE), d.stream()
    for byte in range(1, 1 + _ROUNDS):
        _work(d, a, byte, stream)
        _until(lambda: d.status("stream_query", stream), "stream_query")
        expect(_end(d, a) == byte, "stream_query returned MACA_OK before the stream's fill had ended")


def _until(query, slot: str, seconds: float = 30.0) -> None:  # type: ignore[no-untyped-def]
    started = time.monotonic()
    while (status := query()) == NOT_READY:
        expect(time.monotonic() - started < seconds, f"{slot} says MACA_NOT_READY for {seconds:.0f} s")
        time.sleep(0.0005)
    expect(status == OK, f"{slot} returned {status_text(status)}; expected MACA_OK or MACA_NOT_READY")


@rule(1, "streams", "Streams and events. [M], priority: lower runs first.",
      "Take any priority, and let stream_destroy wait for or keep the work that is under way.")  # fmt: skip
def streams_come_and_go(d: Opened) -> None:
    a = d.allocate(SIZE)
    for priority in (-100, -1, 0, 1, 100):
        stream = d.stream(priority)
        _work(d, a, 3, stream)
        d.call("stream_destroy", stream)
        d.settle()
        expect(_end(d, a) == 3, "work of a stream that was destroyed is lost")
        d.fill(a, 0, SIZE)
        d.settle()  # the next stream does not wait for the default one
    for _ in range(200):
        d.call("stream_destroy", d.stream())


@rule(1, "events", "one that was never recorded has finished", "Let a new event be finished.")
def a_new_event_has_finished(d: Opened) -> None:
    event = d.event()
    status = d.status("event_query", event)
    expect(status == OK, f"event_query of an event that was never recorded returned {status_text(status)}")
    d.call("event_synchronize", event)
    d.call("stream_wait_event", d.stream(), event)
    d.settle()


@rule(1, "events", "after a wait for the same they must not",
      "Finish an event when all work that its stream was given before event_record has ended.")  # fmt: skip
def an_event_comes_after_its_work(d: Opened) -> None:
    a, stream, event = d.allocate(SIZE), d.stream(), d.event()
    for byte in range(1, 1 + _ROUNDS):
        _work(d, a, byte, stream)
        d.call("event_record", event, stream)
        d.call("event_synchronize", event)
        expect(_end(d, a) == byte, "event_synchronize returned before the work ahead of the event had ended")
        status = d.status("event_query", event)
        expect(status == OK, f"event_query returned {status_text(status)} right after event_synchronize")


@rule(
    1,
    "events",
    "The queries and event_elapsed may say MACA_NOT_READY",
    "Ask the same state as event_synchronize does.",
)
def an_event_that_is_ready_is_done(d: Opened) -> None:
    a, stream, event = d.allocate(SIZE), d.stream(), d.event()
    for byte in range(1, 1 + _ROUNDS):
        _work(d, a, byte, stream)
        d.call("event_record", event, stream)
        _until(lambda: d.status("event_query", event), "event_query")
        expect(
            _end(d, a) == byte, "event_query returned MACA_OK before the work ahead of the event had ended"
        )


@rule(1, "events", "Work on one stream runs in the order it was submitted.",
      "Hold back what a stream is given after stream_wait_event until the event has finished.")  # fmt: skip
def a_stream_waits_for_an_event(d: Opened) -> None:
    a, b = d.allocate(SIZE), d.allocate(64)
    first, second, event = d.stream(), d.stream(), d.event()
    for byte in range(1, 1 + _ROUNDS):
        _work(d, a, byte, first)
        d.call("event_record", event, first)
        d.call("stream_wait_event", second, event)
        d.call("copy", ON_DEVICE, b, at(a, SIZE - 64), 64, 0, second)
        got = d.read(b, 64, second)
        d.settle()
        expect(
            set(got) == {byte},
            f"a stream that waits for an event read {set(got)}, written before it was {byte}",
        )


@rule(
    1,
    "events",
    "Events time in milliseconds",
    "Take the time when the stream reaches the event; subtract in ms.",
)
def events_time_in_milliseconds(d: Opened) -> None:
    a, stream = d.allocate(SIZE), d.stream()
    start, end, elapsed = d.event(True), d.event(True), ffi.new("double*", -1.0)
    _work(d, a, 1, stream)
    d.call("stream_synchronize", stream)
    began = time.monotonic()
    d.call("event_record", start, stream)
    for byte in range(6):
        _work(d, a, byte, stream)
    d.call("event_record", end, stream)
    d.call("event_synchronize", end)
    took = 1e3 * (time.monotonic() - began)
    d.call("event_elapsed", start, end, elapsed)
    said = elapsed[0]
    expect(
        0 <= said <= took * 1.05 + 1, f"event_elapsed gave {said:g}; {took:.1f} ms passed on the host's clock"
    )
    # a device may be a lot faster than its caller's clock shows, not a thousand times
    expect(said >= took / 500, f"event_elapsed gave {said:g}; {took:.1f} ms passed on the host's clock")


@rule(
    1,
    "events",
    "Functions may be called from any thread at any time.",
    "An event may be recorded again and again.",
)
def an_event_is_recorded_again(d: Opened) -> None:
    event, stream = d.event(), d.stream()
    for _ in range(500):
        d.call("event_record", event, stream)
    d.call("event_synchronize", event)
    for _ in range(200):
        d.call("event_destroy", d.event())
    d.call("event_destroy", event)
