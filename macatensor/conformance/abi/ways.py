"""Level 1: the ways of a request that a library lists, and the times of launches that it keeps."""

from __future__ import annotations

import struct
import time

from .device import DECLINED, OK, UNSUPPORTED, Opened
from .header import Pointer, ffi, status_text
from .plans import create, launch, place, simple
from .requests import FLOAT32, Request, add, mm
from .rules import NotAsked, expect, rule

_NAMES = 64
_M, _K, _N = 24, 40, 16


def _ways(d: Opened, request: Request, capacity: int = _NAMES) -> list[str]:
    """The names that the library writes."""
    d.needs("plan_candidates")
    own = ffi.new("char[]", b"not written")
    names, count = ffi.new("char const*[]", [own] * (_NAMES + 1)), ffi.new("int32_t*", -1)
    status = d.status("plan_candidates", request.pointer, names, capacity, count)
    if status == UNSUPPORTED:
        raise NotAsked("the library lists no ways")
    what = f"plan_candidates of {request.kernel} with a capacity of {capacity}"
    expect(status == OK, f"{what} returned {status_text(status)}")
    expect(0 <= count[0] <= capacity, f"{what} gave count = {count[0]}")
    for i in range(_NAMES + 1):
        if i < count[0]:
            expect(
                names[i] not in (ffi.NULL, own), f"{what} gave count = {count[0]} and did not write name {i}"
            )
        else:
            expect(names[i] == own, f"{what} gave count = {count[0]} and wrote name {i}")
    return [ffi.string(names[i], 1000).decode(errors="replace") for i in range(count[0])]


@rule(1, "plans", "up to `capacity` names, each a value of the attribute `implementation`, and in `count` how many these are",
      "Write no more than capacity names, and into count how many you wrote.")  # fmt: skip
def ways_keep_to_the_capacity(d: Opened) -> None:
    for request in (mm(_M, _K, _N), add(16)):
        names = _ways(d, request)
        for capacity in (0, 1):
            expect(
                _ways(d, request, capacity) == names[:capacity],
                f"with a capacity of {capacity} other names came",
            )
        for name in names:
            expect(
                1 <= len(name) <= 63 and name.isascii() and name.isprintable(),
                f"a way of {request.kernel} is called {name!r}",
            )
        expect(
            len(set(names)) == len(names), f"ways of {request.kernel} have the same name: {', '.join(names)}"
        )


@rule(1, "plans", "names the way in which to compute. A library that cannot go it for this request declines.",
      "Compute as the attribute `implementation` says, or decline: measured times are of the way that was named.")  # fmt: skip
def a_way_computes_or_is_declined(d: Opened) -> None:
    for name in [*_ways(d, mm(_M, _K, _N)), "no such way"]:
        request = Request("mm", [(FLOAT32, [_M, _K]), (FLOAT32, [_K, _N])], [(FLOAT32, [_M, _N])],
                          [("implementation", name)])  # fmt: skip
        status, plan, _ = create(d, request)
        if name == "no such way":
            expect(status == DECLINED, f"mm by a way that is not there returned {status_text(status)}")
        if status != OK:
            continue
        operands = place(d, request, 0.5)
        d.call("plan_launch", plan, launch(d, plan, request, operands))
        d.settle()
        got = struct.unpack(f"{_M * _N}f", d.read(operands[2], 4 * _M * _N))
        expect(set(got) == {_K / 4}, f"mm by {name!r} of 0.5 gave {min(got)} to {max(got)}, not {_K / 4}")


def _taken(d: Opened, capacity: int = 16) -> list[tuple[int, int, int]]:
    records, count = ffi.new("maca_profile_record[]", 16), ffi.new("int32_t*", -1)
    d.call("profile_take", records, capacity, count)
    expect(0 <= count[0] <= capacity, f"profile_take({capacity}) gave count = {count[0]}")
    return [(int(r.correlation), int(r.start_ns), int(r.end_ns)) for r in records[0 : count[0]]]


def _run(d: Opened, plan: Pointer, request: Request, stream: Pointer, correlation: int) -> None:
    d.call("plan_launch", plan, launch(d, plan, request, place(d, request), stream, correlation))
    d.call("stream_synchronize", stream)


@rule(1, "plans", "the device keeps when each launch began and ended, until it is 0 again",
      "Note time and correlation around each launch while profile_set was called with 1; forget what was taken.")  # fmt: skip
def launches_have_their_times(d: Opened) -> None:
    d.needs("profile_set", "profile_take")
    if d.status("profile_set", 1) == UNSUPPORTED:
        raise NotAsked("the library keeps no times")
    request, plan = simple(d, 1 << 20)
    stream = d.stream()
    before = time.time_ns()
    for correlation in (71, 72, 73):
        _run(d, plan, request, stream, correlation)
    after = time.time_ns()
    records = _taken(d, 2) + _taken(d)
    expect(
        [r[0] for r in records] == [71, 72, 73],
        f"three launches have the correlations {[r[0] for r in records]}",
    )
    for _, start, end in records:
        expect(
            before <= start <= end <= after,
            f"a launch ran from {start} to {end} ns, between {before} and {after}",
        )
    expect(not _taken(d), "times that were taken come again")
    d.call("profile_set", 0)
    _run(d, plan, request, stream, 74)
    expect(not _taken(d), "a launch after profile_set(0) has its time kept")
