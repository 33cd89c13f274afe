"""Measures a program step by step while it runs.

After the warm-up, steps are *timed* and *traced* in turn. Of a timed step PyTorch's profiler tells operators and kernels,
which costs little, so that shares of its time are right. In a traced step each operator and wait is known with its line,
some 20 us an operator. Nothing is recorded between steps.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from macatensor.bottlenecks.clock import Clock
from macatensor.bottlenecks.graphs import Graphs
from macatensor.bottlenecks.host import Load, Loads, Sample, Sampler
from macatensor.bottlenecks.spans import Span
from macatensor.bottlenecks.watching import Call, Wait, Watching
from macatensor.device import memory, memory_history
from macatensor.profiling import activities
from macatensor.profiling.activities import Activity
from macatensor.profiling.hooks import quiet_kineto
from macatensor.runtime.ffi import lib
from macatensor.runtime.tensor import MacaTensor

WARM_UP = 3  # steps: plans are built, caches filled, optimizers make their state
STEPS = 20
Report = Callable[[int, int, int], None]  # steps that ended, how many there will be, how many are warm-up
_OPERATOR_SCOPES = (0, 1)  # of RecordScope: functions and backward functions, not ranges of the user


class Enough(BaseException):
    """Ends the program when enough steps are measured; no ``except Exception`` of its own catches it."""


@dataclass
class Step:
    """What was seen of one step; times in ns of the real-time clock."""

    number: int
    is_timed: bool
    start: int = 0
    end: int = 0
    blocked: int = 0  # ns that the main thread neither ran nor wanted to
    device: Sequence[Activity] = ()
    operators: list[tuple[int, int, int]] = field(default_factory=list)  # (thread, start, end) on the host
    loads: list[Load] = field(default_factory=list)
    optimizer: list[Span] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)  # of a timed step
    calls: list[Call] = field(default_factory=list)  # of a traced step, and so on
    waits: list[Wait] = field(default_factory=list)
    live: dict[int, tuple[int, int]] = field(default_factory=dict)  # at its end, by site: blocks, bytes
    allocated: int = 0  # bytes at its end
    reserved: int = 0


def _blocked() -> int:
    """Up to now, in ns: wall time less what the calling thread ran or was kept from running by other processes."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            ran, waited, _ = (int(part) for part in file.read().split())
    except (OSError, ValueError):
        ran, waited = time.thread_time_ns(), 0
    return time.monotonic_ns() - ran - waited


class Session:
    """``steps`` are those measured at most, after ``warm_up``. ``report`` is told of each step's end."""

    def __init__(
        self,
        steps: int = STEPS,
        warm_up: int = WARM_UP,
        report: Report = lambda done, of, warm_up: None,
    ):
        self.limit = steps
        self.warm_up = warm_up
        self.steps: list[Step] = []  # that ended, in order
        self.is_stopped = False  # the program was ended here
        self.clock = Clock(self._tick)
        self.clock.in_optimizer = self._in_optimizer
        self.watching = Watching()
        self.graphs = Graphs()
        self.peak_allocated = self.peak_reserved = 0  # bytes
        self.graphs_kept = 0  # tensors with a graph that lived at the end
        self._report = report
        self._loads = Loads()
        self._step: Step | None = None
        self._ended = 0  # steps, also those not looked at
        self._profile: Any = None
        self._open = contextlib.ExitStack()
        self._blocked = 0
        self._optimizer_began = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Measures what runs in the block, on the calling thread."""
        memory.reset_peak_memory_stats()
        with self.clock.running(), self._loads.running():
            self._begin()
            try:
                yield
            finally:
                self._finish()

    def measured(self, timed: bool) -> list[Step]:
        """Steps of a kind after the warm-up; traced ones of the warm-up where there are no others."""
        of_kind = [s for s in self.steps if s.is_timed == timed]
        return [s for s in of_kind if s.number >= self.warm_up] or of_kind

    def all_calls(self) -> Iterator[Call]:
        """Of every traced step, those of the warm-up among them."""
        return itertools.chain.from_iterable(s.calls for s in self.steps)

    def _tick(self) -> None:
        self._end()
        self._ended += 1
        done = max(0, self._ended - self.warm_up)
        self._report(self._ended, self.warm_up + self.limit, self.warm_up)
        if done >= self.limit:
            self.is_stopped = True
            raise Enough
        self._begin()

    def _begin(self) -> None:
        number = self._ended
        if 0 < number < self.warm_up:
            return
        step = self._step = Step(number, number >= self.warm_up and (number - self.warm_up) % 2 == 0)
        self._loads.found.clear()
        self.graphs.step = number
        if step.is_timed:
            sampler = Sampler()
            self._profile = torch.autograd.profiler.profile(use_device="maca")
            self._open.enter_context(sampler.running())
            with quiet_kineto():
                self._profile.__enter__()
            step.samples = sampler.found
        else:
            activities.start(with_memory=True)
            self.watching.calls, self.watching.waits = step.calls, step.waits
            self._open.enter_context(self.watching.running())
            self._open.enter_context(self.graphs.running())
        step.start, self._blocked = time.time_ns(), _blocked()

    def _end(self) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        lib.maca_runtime_synchronize()  # its work is the step's; an error in it is raised where the program waits
        step.end, step.blocked = time.time_ns(), _blocked() - self._blocked
        self._open.close()
        if step.is_timed:
            with quiet_kineto():
                self._profile.__exit__(None, None, None)
            results = self._profile.kineto_results
            step.device = results.activities
            step.operators = [
                (e.device_resource_id(), e.start_ns(), e.end_ns())
                for e in results.operators
                if e.scope() in _OPERATOR_SCOPES
            ]
            self._profile = None
        else:
            step.device = activities.stop()
            step.live = memory_history.live_by_site()
        step.loads = self._loads.found[:]
        step.allocated, step.reserved = memory.memory_allocated(), memory.memory_reserved()
        self.steps.append(step)

    def _finish(self) -> None:
        """What was begun when the program ended is kept only where nothing else was measured."""
        statistics = memory.memory_stats()
        self.peak_allocated = statistics["allocated_bytes.all.peak"]
        self.peak_reserved = statistics["reserved_bytes.all.peak"]
        whole = [s for s in self.steps if s.number >= self.warm_up]
        self._end()
        if whole and self.steps[-1].number >= self._ended:
            self.steps.pop()
        # isinstance() would ask lazy modules for their class, which import and warn
        held = [t for t in gc.get_objects() if issubclass(type(t), MacaTensor)]
        self.graphs_kept = sum(t.grad_fn is not None for t in held)

    def _in_optimizer(self, entered: bool) -> None:
        if entered:
            self._optimizer_began = time.time_ns()
        elif self._step is not None and self._optimizer_began:
            self._step.optimizer.append((self._optimizer_began, time.time_ns()))
