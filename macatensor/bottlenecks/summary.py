"""The steps of a session in figures of one step: shares of its time, operators, kernels, memory."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from macatensor.bottlenecks.lines import NOWHERE, Line
from macatensor.bottlenecks.session import Session, Step
from macatensor.bottlenecks.spans import clipped, covers, length, union
from macatensor.bottlenecks.watching import Call
from macatensor.profiling.activities import Activity, Kind
from macatensor.profiling.results import innermost
from macatensor.runtime.tensor import MacaTensor


@dataclass(frozen=True)
class Shares:
    """Parts of a step's time, 1 in sum. ``launch``: the host was in an operator while the device did nothing;
    ``python``: it ran something else; ``idle``: it waited, too."""

    kernel: float
    launch: float
    python: float
    idle: float


@dataclass
class Work:
    """What an operator or kernel did in one step, on average; times in seconds."""

    name: str
    implementation: str = ""
    calls: float = 0.0
    seconds: float = 0.0  # on the device
    flops: float = 0.0
    bytes: float = 0.0
    lines: Counter[Line] = field(default_factory=Counter)

    @property
    def line(self) -> Line:
        """Which line called it most."""
        return self.lines.most_common(1)[0][0] if self.lines else NOWHERE


@dataclass(frozen=True)
class Launched:
    """A launch, copy or fill with the call that gave it; None where no operator did, as in a compiled graph."""

    activity: Activity
    call: Call | None
    step: int

    @property
    def seconds(self) -> float:
        return (self.activity.end - self.activity.start) / 1e9


@dataclass(frozen=True)
class Moment:
    """Memory in use, in bytes, ``seconds`` after the step began."""

    seconds: float
    bytes: int


@dataclass(frozen=True)
class Held:
    """Bytes of the peak, by what made them."""

    what: str
    line: Line
    bytes: int


class Summary:
    """Figures of a session. Needs at least one step that was traced."""

    def __init__(self, session: Session):
        self.session = session
        self.timed = session.measured(timed=True)
        self.traced = session.measured(timed=False)

    @property
    def is_warm(self) -> bool:
        """Was the warm-up left out?"""
        return bool(self.timed)

    @cached_property
    def seconds(self) -> float:
        """Of a step, the median."""
        return statistics.median((s.end - s.start) / 1e9 for s in self.timed or self.traced)

    @cached_property
    def shares(self) -> Shares:
        """Of the timed steps; of traced ones, which overstate Python, where there are none."""
        kernel = launch = python = total = 0
        for step in self.timed or self.traced:
            within = step.start, step.end
            device = clipped(_busy(step), within)
            host = clipped([*self._host(step), *device], within)
            wall = step.end - step.start
            rest = wall - length(host)
            kernel += length(device)
            launch += length(host) - length(device)
            python += rest - min(rest, max(0, step.blocked))
            total += wall
        total = max(total, 1)
        return Shares(
            kernel / total, launch / total, python / total, (total - kernel - launch - python) / total
        )

    @staticmethod
    def _host(step: Step) -> Iterable[tuple[int, int]]:
        if step.is_timed:
            return [(start, end) for _, start, end in step.operators]
        return [(c.start, c.end) for c in step.calls]

    @cached_property
    def launched(self) -> list[Launched]:
        """Of the traced steps."""
        found = []
        for step in self.traced:
            given = [a for a in step.device if a.kind is not Kind.MEMORY]
            owners = innermost(
                [(c.thread, c.start, c.end) for c in step.calls], [(a.thread, a.given) for a in given]
            )
            found += [
                Launched(a, None if owner is None else step.calls[owner], step.number)
                for a, owner in zip(given, owners)
            ]
        return found

    @cached_property
    def calls(self) -> list[Call]:
        """Of the traced steps."""
        return [c for step in self.traced for c in step.calls]

    def per_step(self, count: float) -> float:
        """Of something that was counted over the traced steps."""
        return count / max(1, len(self.traced))

    @cached_property
    def launches(self) -> float:
        """Of kernels in a step."""
        return self.per_step(sum(found.activity.kind is Kind.LAUNCH for found in self.launched))

    @cached_property
    def kernel_seconds(self) -> float:
        """On the device in a step."""
        return self.per_step(sum(found.seconds for found in self.launched))

    @cached_property
    def operators(self) -> list[Work]:
        """The longest first."""
        return self._works(lambda found: (found.call.name if found.call else "compiled graph", ""))

    @cached_property
    def kernels(self) -> list[Work]:
        """By kernel and implementation, the longest first."""
        return self._works(lambda found: (found.activity.name, found.activity.implementation))

    def _works(self, key: Callable[[Launched], tuple[str, str]]) -> list[Work]:
        works: dict[tuple[str, str], Work] = {}
        counted: set[int] = set()
        for found in self.launched:
            name = key(found)
            work = works.setdefault(name, Work(*name))
            work.calls += self.per_step(1)
            work.seconds += self.per_step(found.seconds)
            work.bytes += self.per_step(found.activity.bytes)
            if found.call is not None:
                work.lines[found.call.line] += 1
                if (
                    id(found.call) not in counted
                ):  # of several launches of a call the first has its operations
                    counted.add(id(found.call))
                    work.flops += self.per_step(found.call.flops)
        return sorted(works.values(), key=lambda w: -w.seconds)

    @cached_property
    def host_lines(self) -> list[tuple[Line, float]]:
        """Lines of the program with the share of a step that they took between operators, the longest first."""
        seen: Counter[Line] = Counter()
        total = 0
        for step in self.timed:
            loading = [(load.start, load.end) for load in step.loads]  # said of the loader
            busy = union([*_busy(step), *self._host(step), *loading])
            samples = [s for s in step.samples if step.start <= s.at < step.end]
            total += len(samples)
            seen.update(s.line for s in samples if not covers(busy, s.at))
        return [(line, count / total) for line, count in seen.most_common()] if total else []

    @cached_property
    def loading(self) -> float:
        """Share of a step in which the program waited for a data loader."""
        steps = self.timed or self.traced
        wall = sum(s.end - s.start for s in steps)
        return sum(load.end - load.start for s in steps for load in s.loads) / max(wall, 1)

    @cached_property
    def _fullest(self) -> Step | None:
        of = [s for s in self.traced if any(a.kind is Kind.MEMORY for a in s.device)]
        return max(of, key=lambda s: max(a.total for a in s.device if a.kind is Kind.MEMORY), default=None)

    @cached_property
    def memory(self) -> list[Moment]:
        """In use over the traced step that needed most."""
        step = self._fullest
        if step is None:
            return []
        return [Moment((a.given - step.start) / 1e9, a.total) for a in step.device if a.kind is Kind.MEMORY]

    @cached_property
    def peak(self) -> int:
        """Most bytes in use in a step."""
        return max((m.bytes for m in self.memory), default=0)

    @cached_property
    def at_peak(self) -> list[Held]:
        """What was in use at the peak, the largest first: what the step made, by operator and line, and what was there."""
        step = self._fullest
        if step is None:
            return []
        changes = [a for a in step.device if a.kind is Kind.MEMORY]
        owners = innermost(
            [(c.thread, c.start, c.end) for c in step.calls], [(a.thread, a.given) for a in changes]
        )
        held: dict[int, tuple[int, tuple[str, Line]]] = {}
        before = changes[0].total - changes[0].bytes
        found: list[Held] = []
        for change, owner in zip(changes, owners):
            if change.bytes > 0:
                call = None if owner is None else step.calls[owner]
                held[change.address] = change.bytes, (call.name, call.line) if call else ("others", NOWHERE)
            elif change.address in held:
                del held[change.address]
            else:
                before += change.bytes
            if change.total == self.peak and not found:
                made: defaultdict[tuple[str, Line], int] = defaultdict(int)
                for size, key in held.values():
                    made[key] += size
                found = [Held(what, line, size) for (what, line), size in made.items()]
                found += self._of_before(before)
        return sorted(found, key=lambda h: -h.bytes)

    def _of_before(self, size: int) -> list[Held]:
        """What was in use before the step: parameters and the optimizer's state as far as it is known."""
        optimizer = self.session.clock.optimizer
        if optimizer is None:
            return [Held("in use before the step", NOWHERE, size)]
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        states = itertools.chain.from_iterable(s.values() for s in optimizer.state.values())
        parts = {
            "parameters": sum(p.nbytes for p in parameters if isinstance(p, MacaTensor)),
            "optimizer state": sum(t.nbytes for t in states if isinstance(t, MacaTensor)),
        }
        found = [Held(name, NOWHERE, part) for name, part in parts.items() if 0 < part <= size]
        rest = size - sum(h.bytes for h in found)
        return [*found, Held("others before the step", NOWHERE, rest)] if rest > 0 else found


def _busy(step: Step) -> list[tuple[int, int]]:
    return [(a.start, a.end) for a in step.device if a.kind is not Kind.MEMORY]


def lines_of(calls: Sequence[Call]) -> list[tuple[Line, int]]:
    """How many calls each line made, the most first."""
    return Counter(c.line for c in calls).most_common()
