"""The device's part of a trace in Chrome's format, as traces of CUDA have it: kernels and copies on their streams, arrows
from where each was given, memory in use, the device's properties."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from typing import Any

from macatensor.device.properties import get_device_properties
from macatensor.profiling.activities import Kind
from macatensor.profiling.events import DeviceEvent

_DEVICE = 0  # the process that stands for the device
_AFTER_HOST = 5_000_000  # where viewers put it: below the processes of the host
_PRIVATE_USE_1 = 20  # c10's number of the device type


def add(path: str, events: Sequence[DeviceEvent], without: set[str]) -> None:
    """Adds the device to the trace that Kineto wrote, and takes out operators that are named in ``without``."""
    opened: Any = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt") as file:
        trace = json.load(file)
    base = int(trace.get("baseTimeNanoseconds", 0))
    kept = [e for e in trace["traceEvents"] if e.get("name") not in without]
    host = next((e["pid"] for e in kept if e.get("cat") == "cpu_op"), 1)
    trace["traceEvents"] = [*kept, *_names(events), *_of(events, base, host)]
    properties = get_device_properties()
    trace["deviceProperties"] = [
        {"id": 0, "name": properties.name, "totalGlobalMem": properties.total_memory},
    ]
    with opened(path, "wt") as file:
        json.dump(trace, file)


def _names(events: Sequence[DeviceEvent]) -> Iterator[dict[str, Any]]:
    def named(what: str, thread: int, **args: object) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": _DEVICE, "tid": thread, "ts": 0, "args": args}

    yield named("process_name", 0, name="python")
    yield named("process_labels", 0, labels="MACA 0")
    yield named("process_sort_index", 0, sort_index=_AFTER_HOST)
    for stream in sorted({e.activity.stream for e in events if e.activity.kind is not Kind.MEMORY}):
        yield named("thread_name", stream, name=f"stream {stream}")
        yield named("thread_sort_index", stream, sort_index=stream)


def _of(events: Sequence[DeviceEvent], base: int, host: int) -> Iterator[dict[str, Any]]:
    def at(time: int) -> float:
        return (time - base) / 1000

    for event in events:
        activity = event.activity
        where = {"pid": host, "tid": activity.thread, "ts": at(activity.given)}
        if activity.kind is Kind.MEMORY:
            args: dict[str, object] = {
                "Addr": activity.address,
                "Bytes": activity.bytes,
                "Total Allocated": activity.total,
                "Device Id": 0,
                "Device Type": _PRIVATE_USE_1,
            }
            yield {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": activity.name,
                **where,
                "args": args,
            }
            continue
        number = event.number
        linked = {"External id": event.owner_id} if event.owner_id else {}
        given = {"cbid": 0, "correlation": number, **linked}
        call = "macaLaunchKernel" if activity.kind is Kind.LAUNCH else "macaMemcpyAsync"
        # the host is inside of a call that runs at once; what lies beneath shows it
        until = (
            min(activity.start, activity.given + 1000) if activity.start > activity.given else activity.given
        )
        yield {
            "ph": "X",
            "cat": "privateuse1_runtime",
            "name": call,
            **where,
            "dur": at(until) - at(activity.given),
            "args": given,
        }
        yield {"ph": "s", "id": number, "cat": "ac2g", "name": "ac2g", **where}
        on_device = {"pid": _DEVICE, "tid": activity.stream, "ts": at(activity.start)}
        yield {"ph": "f", "id": number, "cat": "ac2g", "name": "ac2g", "bp": "e", **on_device}
        args = {"device": 0, "context": 0, "stream": activity.stream, "correlation": number, **linked}
        args["bytes"] = activity.bytes
        if activity.implementation:
            args["implementation"] = activity.implementation
        yield {
            "ph": "X",
            "cat": activity.category,
            "name": activity.name,
            **on_device,
            "dur": max(activity.end - activity.start, 1) / 1000,
            "args": args,
        }
