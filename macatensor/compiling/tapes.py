"""A graph as a tape: its launches, recorded once for the sizes, strides and dtypes of its inputs, run by C.

Nothing runs while a tape is recorded: inputs and results are stand-ins, of memory that is nowhere. What asks for their
numbers (``item()``, shapes that depend on data, the host's fallback) is refused as in any capture, and such a graph has
no tape. A run launches; it takes memory for results and for what lives in between when that is written first, and gives
the latter back when it has been read.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from macatensor.compiling import explained, fusion, numbers
from macatensor.dispatch.plan import known_requests
from macatensor.runtime import capture
from macatensor.runtime.boxed import Value
from macatensor.runtime.ffi import native
from macatensor.runtime.meta import Meta
from macatensor.runtime.tensor import MacaTensor, Payload, is_maca, payload, wrap, wrapper_arguments


class Output(enum.IntEnum):
    """Where a result comes from, as shim/launcher/tape.cpp has it."""

    NEW = 0  # memory that each run allocates
    ARGUMENT = 1  # an argument itself
    VIEW_OF_ARGUMENT = 2
    CONSTANT = 3  # the same object each time


class Unrecordable(Exception):
    """A graph that cannot be a tape; the text says why."""


class Busy(Exception):
    """Something is being captured now; another time there may be a tape."""


_recording = threading.Lock()


class _View(NamedTuple):
    """A result that shares memory with an argument, or with a result before it."""

    position: int  # among the results
    of_argument: bool
    base: int
    offset: int  # from where the argument begins; of results from where their memory begins
    meta: Meta | None  # None: it is the base itself


class Sharing:
    """A tape some of whose results share memory: they are views, which count their writes together, as in PyTorch.

    What is saved for a backward pass would otherwise not know that the program wrote it meanwhile.
    """

    def __init__(self, tape: native.Tape, views: Sequence[_View]):
        self.tape = tape
        self.views = views
        self.launches, self.scratch_bytes = tape.launches, tape.scratch_bytes

    def __call__(self, arguments: list[Value]) -> Any:
        results = self.tape(arguments)
        if results is NotImplemented:
            return results
        for position, of_argument, base, offset, meta in self.views:
            source: Any = arguments[base] if of_argument else results[base]
            if meta is not None:
                start = source._payload[1] + offset if of_argument else offset
                source = source.as_strided(meta.size, meta.stride, start)
            results[position] = source
        return results


Recorded = native.Tape | Sharing
Run = Callable[[list[Value]], Sequence[Value]]


def key_of(arguments: Sequence[Value]) -> tuple[object, ...]:
    """What a tape is made for: metas of tensors, ranges of floats, and other numbers with their types."""
    return tuple([a._payload[2] if is_maca(a) else (type(a), numbers.key_of(a)) for a in arguments])


def record(
    function: Run,
    arguments: Sequence[Value],
    select: Callable[[native.Tape], native.Tape] = lambda tape: tape,
) -> Recorded:
    """The tape of ``function`` for arguments like these. Raises :class:`Unrecordable`, or :class:`Busy`.

    ``select``: what is fused instead of the tape, as it chooses among the programs.
    """
    varying = [i for i, a in enumerate(arguments) if numbers.range_of(a) is not None]
    recorded = _recorded(function, _with_stand_ins(arguments, varying, 0))
    if varying:
        other = _recorded(function, _with_stand_ins(arguments, varying, 1))
        _vary(recorded, other, varying)
    tape, stand_ins, metas, results, seen = recorded
    metas = [numbers.range_of(a) if i in varying else a for i, a in enumerate(metas)]
    memory: list[Payload] = []
    outputs = [_output(tape, result, stand_ins, varying, memory) for result in results]
    views = _views(results, outputs, metas)
    tape.give(memory)
    steps = tape.steps() if explained.is_asked() else []
    fused, heirs = fusion.fuse(select(tape), known_requests)
    tape.finish(metas, outputs, heirs)
    if steps:
        _explain(tape, [str(m) for m in metas], steps, seen, fused)
    return Sharing(tape, views) if views else tape


class _Recorded(NamedTuple):
    tape: native.Tape
    stand_ins: list[Value]
    metas: list[Meta | object]
    results: Sequence[Value]
    seen: list[tuple[str, str, str]]  # launches, where an explanation is asked for


def _recorded(function: Run, arguments: Sequence[Value]) -> _Recorded:
    tape = native.Tape()
    stand_ins: list[Value] = []
    metas: list[Meta | object] = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            if type(argument) is not MacaTensor:
                raise Unrecordable(f"an input is a {type(argument).__name__} on {argument.device}")
            meta = payload(argument)[2]
            if meta.conj or meta.neg:
                raise Unrecordable("an input is a lazy conjugate or negative")
            stand_ins.append(wrap(tape.input(meta.nbytes), 0, meta))
            metas.append(meta)
        else:
            stand_ins.append(argument)
            metas.append(argument)
    if not _recording.acquire(blocking=False):
        raise Busy
    try:
        if capture.current is not None:
            raise Busy
        capture.begin(tape, threading.get_ident())
        seen: list[tuple[str, str, str]] = []
        before = native.observe(lambda *launch: seen.append(launch)) if explained.is_asked() else None
        try:
            tape.begin()
            with torch.no_grad():
                results = function(list(stand_ins))
        except capture.Refused as error:
            raise Unrecordable(str(error)) from error
        finally:
            tape.end()
            capture.end()
            if explained.is_asked():
                native.observe(before)  # type: ignore[arg-type]  # what observe() gave
    finally:
        _recording.release()
    return _Recorded(tape, stand_ins, metas, results, seen)


def _with_stand_ins(arguments: Sequence[Value], varying: Sequence[int], turn: int) -> list[Value]:
    """``arguments``, where floats that may vary are others."""
    found = list(arguments)
    for i in varying:
        found[i] = numbers.stand_in(found[i], i, turn)
    return found


def _vary(one: _Recorded, other: _Recorded, varying: Sequence[int]) -> None:
    """Says which scalars are which floats. Raises :class:`Unrecordable` where recordings with other floats differ in more
    than these: an operator has looked at one."""
    scalars = one.tape.scalars(), other.tape.scalars()
    known = {(one.stand_ins[i], other.stand_ins[i]): number for number, i in enumerate(varying)}
    same = one.tape.steps() == other.tape.steps() and all(
        type(a) is type(b) and (isinstance(a, torch.Tensor) or a == b or (a, b) in known)
        for a, b in zip(one.results, other.results, strict=True)
    )
    for i, pair in enumerate(zip(*scalars)):
        if pair in known and type(pair[0]) is float:
            one.tape.vary(i, known[pair])
        else:
            same &= repr(pair[0]) == repr(pair[1])
    if not same or len(scalars[0]) != len(scalars[1]):
        raise Unrecordable("an operator looks at a number that may be another in the next call")


def _explain(
    tape: native.Tape,
    inputs: list[str],
    steps: list[tuple[int, int, list[tuple[int, int, int, bool]]]],
    seen: list[tuple[str, str, str]],
    fused: list[list[int]],
) -> None:
    launched = iter(seen)
    program_of = {step: number for number, indices in enumerate(fused) for step in indices}
    rows = []
    for index, (program, _, touches) in enumerate(steps):
        operator, kernel, implementation = next(launched) if program else ("copy", "", "")
        rows.append(
            explained.Step(
                operator,
                kernel,
                implementation,
                program_of.get(index),
                sum(end - begin for _, begin, end, _ in touches),
                sum(end - begin for _, begin, end, writes in touches if writes),
            )
        )
    explained.tell(explained.Explanation(inputs, rows, tape.launches, tape.scratch_bytes))


def _output(
    tape: native.Tape,
    result: Value,
    stand_ins: list[Value],
    varying: Sequence[int],
    memory: list[Payload],
) -> tuple[int, int, int, object, Meta | None]:
    """(kind, index, offset, arguments of the wrapper or the constant, meta); new memory is added to ``memory``."""
    if not is_maca(result):
        if isinstance(result, torch.Tensor):
            raise Unrecordable(f"a result is on {result.device}")
        for i in varying:
            if type(result) is float and result == stand_ins[i]:
                return Output.ARGUMENT, i, 0, None, None
        return Output.CONSTANT, 0, 0, result, None
    buffer, offset, meta = result._payload
    if meta.conj or meta.neg:
        raise Unrecordable("a result is a lazy conjugate or negative")
    make = wrapper_arguments(meta)
    for i, stand_in in enumerate(stand_ins):
        if stand_in is result:
            return Output.ARGUMENT, i, 0, None, None
        if is_maca(stand_in) and stand_in._payload[0] is buffer:
            return Output.VIEW_OF_ARGUMENT, i, offset, make, meta
    if not tape.owns(result._payload):
        return Output.CONSTANT, 0, 0, result, None
    index = next((i for i, held in enumerate(memory) if held[0] is buffer), len(memory))
    if index == len(memory):
        memory.append(result._payload)
    return Output.NEW, index, offset, make, meta


def _views(
    results: Sequence[Value],
    outputs: Sequence[tuple[int, int, int, object, Meta | None]],
    metas: Sequence[Meta | object],
) -> list[_View]:
    """The results that share memory. Raises :class:`Unrecordable` for those of two dtypes."""
    found = []
    first: dict[int, int] = {}  # of each piece of memory, the first result in it
    for i, (kind, index, offset, _, meta) in enumerate(outputs):
        if meta is None or kind not in (Output.NEW, Output.VIEW_OF_ARGUMENT):
            continue
        if kind == Output.VIEW_OF_ARGUMENT:
            base, of = metas[index], _View(i, True, index, offset, meta)
        else:
            before = first.setdefault(index, i)
            if before == i:
                continue
            base, same = outputs[before][4], results[before] is results[i]
            of = _View(i, False, before, offset, None if same else meta)
        if not isinstance(base, Meta) or base.dtype is not meta.dtype:
            raise Unrecordable("results share memory as numbers of two dtypes")
        found.append(of)
    return found
