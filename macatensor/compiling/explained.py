"""What compiled programs became, launch by launch: for people, who ask with ``macatensor compile`` or ``TORCH_LOGS``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch

from macatensor.compiling.listeners import Listeners
from macatensor.runtime.boxed import Value
from macatensor.runtime.ffi import native

log = logging.getLogger("maca_fusion")  # TORCH_LOGS=maca_fusion

_ROUNDS = 5  # the shortest time counts
_Run = Callable[[list[Value]], object]


@dataclass
class Step:
    """A launch of the recording. ``fused``: the number of the program that it is part of, None where it is none;
    ``bytes``: that its operands span, ``written`` those of results; ``seconds``: of the operator alone, from Python, where
    somebody asked."""

    operator: str
    kernel: str
    implementation: str
    fused: int | None
    bytes: int
    written: int
    seconds: float | None = None


@dataclass
class Explanation:
    """A tape. ``launches``: after fusion; ``scratch_bytes``: for all that lies between inputs and results; ``seconds``: of a
    call, where somebody asked."""

    inputs: list[str]
    steps: list[Step]
    launches: int
    scratch_bytes: int
    seconds: float | None = None

    def __str__(self) -> str:
        fused = {step.fused for step in self.steps} - {None}
        lines = [
            f"{len(self.steps)} operators, {self.launches} launches, {len(fused)} of them fused, "
            f"{self.scratch_bytes / 2**20:.2f} MiB between"
        ]
        for s in self.steps:
            into = "" if s.fused is None else f"program {s.fused}"
            lines.append(f"  {s.operator:40} {s.kernel:24} {into:12} {s.bytes / 2**10:12,.1f} KiB")
        return "\n".join(lines)


_listeners = Listeners[Explanation]()
_measuring = 0  # how many ask for times


def is_asked() -> bool:
    return bool(_listeners) or log.isEnabledFor(logging.INFO)


def is_measured() -> bool:
    return _measuring > 0


def tell(explanation: Explanation) -> None:
    """Gives it to everyone who asked."""
    log.info("%s", explanation)
    _listeners.tell(explanation)


def explaining() -> AbstractContextManager[list[Explanation]]:
    """The tapes that are recorded inside."""
    return _listeners.listening()


@contextmanager
def measuring() -> Iterator[list[Explanation]]:
    """As :func:`explaining`, with times: each program runs some times more, on copies of what it was given."""
    global _measuring
    _measuring += 1
    try:
        with explaining() as found:
            yield found
    finally:
        _measuring -= 1


def measure(run: _Run, tape: _Run, given: Callable[[], list[Value]]) -> None:
    """Times the operators and the tape that was told last; ``given``: its arguments, anew each time."""
    explanation = _listeners.last()
    if explanation is None:
        return
    device = torch.get_device_module("maca")
    state = device.get_rng_state()
    marks: list[float] = []

    def mark(*_: str) -> None:
        device.synchronize()
        marks.append(time.perf_counter())

    steps = [step for step in explanation.steps if step.kernel]
    with torch.no_grad():
        for _ in range(_ROUNDS):
            arguments = given()
            marks.clear()
            before = native.observe(mark)
            try:
                run(arguments)
                mark()
            finally:
                native.observe(before)  # type: ignore[arg-type]  # what observe() gave
            if len(marks) == len(steps) + 1:
                for step, begin, end in zip(steps, marks, marks[1:]):
                    step.seconds = _shorter(step.seconds, end - begin)
            arguments = given()
            device.synchronize()
            begin = time.perf_counter()
            tape(arguments)
            device.synchronize()
            explanation.seconds = _shorter(explanation.seconds, time.perf_counter() - begin)
    device.set_rng_state(state)


def _shorter(known: float | None, seconds: float) -> float:
    return seconds if known is None else min(known, seconds)
