"""Fused programs are judged where they are made, for who asks: a wrong one is taken apart, and named.

A new tape's results for its first arguments are compared with those of its operators, one by one. Where a bit differs both
are compared with the graph in float64, as rounding may differ: the tape may be as far away as its operators are, four
times. One that is farther is recorded anew with each of its programs alone, until those are known that are wrong.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from macatensor.compiling import tapes
from macatensor.compiling.listeners import Listeners
from macatensor.dispatch.plan import known_requests
from macatensor.runtime import counters
from macatensor.runtime.boxed import Value
from macatensor.runtime.ffi import native

_FARTHER = 4  # than the operators' results
_ROUNDINGS = 16  # of the largest result, which are no finding


@dataclass(frozen=True)
class Wrong:
    """A fused program that is wrong. ``kernels``: of its parts; ``apart``: how far results are from float64, of the tape
    with it and of its operators."""

    kernels: list[str]
    apart: float
    operators_apart: float

    def __str__(self) -> str:
        return (
            f"the fused program of {', '.join(self.kernels)} is wrong: {self.apart:.3g} from float64, its operators "
            f"{self.operators_apart:.3g}"
        )


_listeners = Listeners[Wrong]()


def is_asked() -> bool:
    return bool(_listeners)


def checking() -> AbstractContextManager[list[Wrong]]:
    """Every tape that is recorded inside is checked; the wrong programs."""
    return _listeners.listening()


_Unseen = Callable[[], AbstractContextManager[object]]
_tools: list[_Unseen] = []
session = 0  # of tools, counted


@contextmanager
def judging(unseen: _Unseen) -> Iterator[list[Wrong]]:
    """For a tool that looks at operators: programs of the graphs that run inside are judged beside; the wrong ones.

    ``unseen``: what is done inside of it the tool does not see."""
    global session
    session += 1
    _tools.append(unseen)
    try:
        with checking() as wrong:
            yield wrong
    finally:
        _tools.remove(unseen)


def is_judging() -> bool:
    """Does a tool want programs to be judged that do not run?"""
    return bool(_tools)


def judge(module: fx.GraphModule, run: tapes.Run, arguments: Sequence[Value]) -> None:
    """Judges the programs of a graph for such arguments, which stay as they are. Raises what :func:`tapes.record`
    raises."""
    with ExitStack() as stack:
        for unseen in _tools:
            stack.enter_context(unseen())
        right(module, run, arguments, tapes.record(run, arguments))


class _Selected:
    """A tape of whose programs some stay apart."""

    def __init__(self, tape: native.Tape, chosen: Callable[[int], bool]):
        self.tape, self.chosen = tape, chosen
        self.steps, self.is_scratch = tape.steps, tape.is_scratch
        self.programs: list[list[str]] = []

    def fuse(self, made: Sequence[tuple[list[int], int, Any]]) -> None:
        kernels = [known_requests[p].kernel if p in known_requests else "" for p, *_ in self.steps()]
        self.programs = [[kernels[i] for i in indices] for indices, *_ in made]
        self.tape.fuse([program for i, program in enumerate(made) if self.chosen(i)])


def right(
    module: fx.GraphModule, run: tapes.Run, arguments: Sequence[Value], tape: tapes.Recorded
) -> tapes.Recorded:
    """The tape, or one without the programs that are wrong."""
    trial = _Trial(module, run, arguments)
    if trial.apart_of(tape) is None:
        return tape
    programs, all_apart = trial.recorded(())
    wrong: dict[int, Wrong] = {}
    for i, kernels in enumerate(programs):
        _, alone = trial.recorded({i})
        if (apart := trial.apart_of(alone)) is not None:
            wrong[i] = Wrong(kernels, *apart)
    if not wrong:  # together alone: all stay apart
        wrong = {
            i: Wrong(kernels, *(trial.apart_of(tape) or (0.0, 0.0))) for i, kernels in enumerate(programs)
        }
    for found in wrong.values():
        counters.count("programs_taken_apart")
        _listeners.tell(found)
        if not _listeners:
            warnings.warn(f"{found}; it runs in parts", RuntimeWarning, stacklevel=2)
    return (
        trial.recorded(set(range(len(programs))) - set(wrong))[1] if len(wrong) < len(programs) else all_apart
    )


class _Trial:
    """What a graph gives for arguments: its operators' results, and float64's."""

    def __init__(self, module: fx.GraphModule, run: tapes.Run, arguments: Sequence[Value]):
        self.run, self.arguments = run, list(arguments)
        self.device = torch.get_device_module("maca")
        self.state = self.device.get_rng_state()
        self.expected = self._results(run)
        self.reference: list[Value] | None = None
        if not any(
            torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()) for n in module.graph.nodes
        ):
            self.reference = self._results(_InFloat64(module).results)
        self.device.set_rng_state(self.state)

    def _results(self, run: Callable[[list[Value]], Sequence[Value]]) -> list[Value]:
        """With copies of the arguments, which it may write; these are results, too."""
        self.device.set_rng_state(self.state)
        given = copied(self.arguments)
        with torch.no_grad():
            results = [*run(list(given))]
        return [r.clone() if isinstance(r, torch.Tensor) else r for r in results + given]

    def recorded(self, chosen: Collection[int]) -> tuple[list[list[str]], tapes.Recorded]:
        """The kernels of all its programs, and the tape with those that are chosen."""
        selected: list[_Selected] = []

        def select(tape: native.Tape) -> Any:
            selected.append(_Selected(tape, lambda i: i in chosen))
            return selected[0]

        tape = tapes.record(self.run, self.arguments, select)
        return selected[0].programs, tape

    def apart_of(self, tape: tapes.Recorded) -> tuple[float, float] | None:
        """How far the worst result is from float64, and that of the operators; None where the tape is right."""
        got = self._results(tape)
        self.device.set_rng_state(self.state)
        references = self.reference or [None] * len(got)
        found = [_judged(*three) for three in zip(got, self.expected, references)]
        return max((f for f in found if f is not None), default=None)


def _judged(got: Value, expected: Value, reference: Value) -> tuple[float, float] | None:
    if not isinstance(got, torch.Tensor) or got.dtype.is_complex:
        return None
    mine, theirs = got.cpu(), expected.cpu()
    if torch.equal(mine, theirs) or not mine.numel():
        return None
    if not mine.is_floating_point():
        return float((mine != theirs).sum()), 0.0
    r = (theirs if reference is None else reference.cpu()).double()
    known = r.isfinite() & theirs.isfinite()
    if not torch.equal(mine.isnan(), theirs.isnan()) or not bool(mine[known].isfinite().all()):
        return float("inf"), 0.0
    if not bool(known.any()):
        return None
    apart, own = (float((t.double() - r)[known].abs().max()) for t in (mine, theirs))
    rounding = torch.finfo(mine.dtype).eps * float(r[known].abs().max())
    return (apart, own) if apart > _FARTHER * own + _ROUNDINGS * rounding else None


def copied(arguments: Sequence[Value]) -> list[Value]:
    """Arguments that a graph may write."""
    return [_copy(a) if isinstance(a, torch.Tensor) else a for a in arguments]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if 0 in tensor.stride():  # nobody writes it
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(
        tensor
    )


class _InFloat64(fx.Interpreter):
    """A graph in which float64 is computed instead of narrower dtypes."""

    def results(self, arguments: list[Value]) -> Sequence[Value]:
        wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in arguments]
        arguments[:] = wide
        results: Sequence[Value] = self.run(*wide, enable_io_processing=False)
        return results

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return super().call_function(
            target, tuple(map(_wide, args)), {k: _wide(v) for k, v in kwargs.items()}
        )


def _wide(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value
