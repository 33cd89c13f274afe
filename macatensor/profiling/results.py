"""The results of PyTorch's profiler with the device's activities among them.

PyTorch makes tables, averages and traces of a ``_ProfilerResult``, whose ``events()`` are those of Kineto. Kineto takes
activities of a device only from C++. So :class:`Results` stands in for that object and adds events of ours, which
answer the same questions; which operator gave a launch follows from thread and time, as each runs inside of its operator.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from functools import cached_property

from torch._C._autograd import DeviceType

from macatensor.profiling import traces
from macatensor.profiling.activities import Activity
from macatensor.profiling.events import DeviceEvent
from macatensor.profiling.memory import Held, Live
from macatensor.runtime.boxed import Value

# record_function ranges that PyTorch makes of each call that reaches a tensor subclass: never of interest here
_NOISE = "PythonSubclass"


class Results:
    """A ``_ProfilerResult`` and the device's activities. ``with_host``: were events of the host asked for? ``before``: blocks
    of memory in use at the start, ``held``: what those in use at the end are for."""

    def __init__(
        self,
        of_host: Value,
        activities: Sequence[Activity],
        with_host: bool,
        before: Sequence[Live] = (),
        held: Held | None = None,
    ):
        self._of_host = of_host
        self.activities = activities
        self._with_host = with_host
        self.before = before
        self.held = held or {}

    def __getattr__(self, name: str) -> Value:
        return getattr(self._of_host, name)

    @cached_property
    def device_events(self) -> list[DeviceEvent]:
        """The activities, each with the innermost operator of the host that gave it."""
        operators = self.operators
        last = max((e.correlation_id() for e in operators), default=0)
        owners = innermost(
            [(e.device_resource_id(), e.start_ns(), e.end_ns()) for e in operators],
            [(a.thread, a.given) for a in self.activities],
        )
        return [
            DeviceEvent(a, last + i, None if owner is None else operators[owner])
            for i, (a, owner) in enumerate(zip(self.activities, owners), 1)
        ]

    @cached_property
    def _host_events(self) -> list[Value]:
        return [e for e in self._of_host.events() if e.name() != _NOISE]

    @cached_property
    def operators(self) -> list[Value]:
        """Kineto's events of operators and ranges of the host."""
        return [
            e
            for e in self._host_events
            if e.device_type() == DeviceType.CPU
            and not e.is_async()
            and e.end_ns() > e.start_ns()
            and not getattr(e, "is_python_function", bool)()
        ]

    def events(self) -> list[Value]:
        return [*(self._host_events if self._with_host else []), *self.device_events]

    def save(self, path: str) -> None:
        """The trace in Chrome's format."""
        self._of_host.save(path)
        traces.add(path, self.device_events, {_NOISE})


def innermost(spans: Sequence[tuple[int, int, int]], points: Sequence[tuple[int, int]]) -> list[int | None]:
    """For each (thread, time) the index of the last begun span (thread, start, end) of that thread that is not over.

    Spans of a thread lie inside of one another or apart.
    """
    found: list[int | None] = []
    by_thread: dict[int, list[int]] = {}
    for i, (thread, _, _) in enumerate(spans):
        by_thread.setdefault(thread, []).append(i)
    starts: dict[int, list[int]] = {}
    outer: dict[int, int | None] = {}  # of a span, the one around it
    for thread, indices in by_thread.items():
        indices.sort(key=lambda i: (spans[i][1], -spans[i][2]))
        starts[thread] = [spans[i][1] for i in indices]
        open_: list[int] = []
        for i in indices:
            while open_ and spans[open_[-1]][2] < spans[i][2]:
                open_.pop()
            outer[i] = open_[-1] if open_ else None
            open_.append(i)
    for thread, time in points:
        at = bisect.bisect_right(starts.get(thread, []), time) - 1
        candidate: int | None = by_thread[thread][at] if at >= 0 else None
        while candidate is not None and spans[candidate][2] < time:
            candidate = outer[candidate]
        found.append(candidate)
    return found
