"""Finds the first operator of a program whose own error breaks its bound, shrinks its inputs, writes a repro.

Every call is looked at cheaply first (:mod:`macatensor.accuracy.local.screen`); only where that leaves a doubt is it judged
in full, against float64 and the sums of its terms. So one run of the program is enough and nothing has to repeat.
Each kernel is also launched again from the same inputs: results that differ are those of a race in it; and from operands
with memory around them, which it must leave alone. A call that is right by itself is tried in other circumstances, and
a repro in a process of its own, before it is handed over. Every operator is waited for, so a race between streams does
not happen here; with MACA_SANITIZE=1 it is reported all the same.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch

from macatensor.accuracy.local.circumstances import Circumstance
from macatensor.accuracy.local.local_error import chosen_devices, known_operators
from macatensor.accuracy.local.op_call import OpCall, resolved, same_bits
from macatensor.accuracy.local.origin import Origin, origin, traced
from macatensor.accuracy.local.program import nothing_ran
from macatensor.accuracy.local.repro import fails, write_repro
from macatensor.accuracy.local.screen import is_clean
from macatensor.accuracy.local.shrink import shrink, sizes_of
from macatensor.accuracy.output_folder import output_folder
from macatensor.compiling.checked import Wrong
from macatensor.device import sanitizer
from macatensor.files.scripts import run_as_main
from macatensor.parity.transport import host_copy, tensors
from macatensor.parity.watch import Seen, Verdict, Watch, is_on_maca
from macatensor.runtime.launches import implementations, launches
from macatensor.runtime.tensor import MacaTensor
from op_table import Kind, Row

_AGAIN = 2  # further launches of a kernel from the same inputs
_SIGNATURE_CALLS = 16  # calls of the same operator and sizes that are launched again
_RACE_RUNS = (
    24  # launches that tell a race from a kernel that is always wrong, and that a shrunk race has to show in
)
_EVERY_TIME = (
    8  # launches that are all wrong in a kernel that always is; of a race of 4 in 10, one time in 1,500
)
_REPEATED = (Kind.KERNEL, Kind.DYNAMIC, Kind.COMPOSITE)


@dataclass
class Finding:
    """The first operator that is wrong.

    ``kind``: ``"bound"`` (its error breaks its bound), ``"NaN"`` (NaN or infinity where the reference has none),
    ``"memory"`` (it writes what it must not) or ``"race"`` (not the same for the same inputs). ``call``: shrunk, in the
    circumstance in which it is wrong; ``original``: as the program made it.
    """

    op: str
    kind: str
    text: str
    number: int  # of the call, from 0
    origin: Origin
    original: OpCall
    call: OpCall
    repro: Path | None = None
    note: str = ""  # why there is no repro
    rate: float = 1.0  # share of launches that are wrong
    implementation: str = ""  # the algorithm that the device library chose for the shrunk call

    def __str__(self) -> str:
        what = {
            "race": "is not the same for the same inputs",
            "NaN": "gives NaN or infinity where there is none",
            "memory": "writes where it must not",
        }
        lines = [
            f"{self.op} {what.get(self.kind, 'breaks its bound')}: {self.text}",
            f"  call {self.number}, {self.origin}",
            *(f"    {frame}" for frame in self.origin.shown),
            f"  inputs {sizes_of(self.original)}, still wrong with {sizes_of(self.call)}",
        ]
        if self.call.circumstance is not Circumstance.ALONE:
            lines.append(f"  wrong {self.call.circumstance.value}, right by itself")
        if self.implementation:
            lines.append(f"  the library's implementation: {self.implementation}")
        if self.kind == "race":
            lines.append(f"  {self.rate:.0%} of {_RACE_RUNS} launches differ")
        if self.repro:
            lines.append(f"  repro: python {self.repro}" + (f"  ({self.note})" if self.note else ""))
        else:
            lines.append(f"  no repro: {self.note}")
        return "\n".join(lines)


@dataclass
class Bisection:
    """What :func:`bisect` found. ``finding`` is None when every judged call kept its bound.

    ``programs``: fused programs of compiled graphs that are wrong though their operators, which ran one by one, are right.
    """

    finding: Finding | None = None
    calls: int = 0
    clean: int = 0  # settled by the cheap look
    judged: int = 0  # in full
    unjudged: dict[str, str] = field(default_factory=dict)  # operator -> why
    hazards: list[sanitizer.Hazard] = field(
        default_factory=list
    )  # with MACA_SANITIZE=1: streams without an order between them
    programs: list[Wrong] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.finding is not None or bool(self.hazards or self.programs)

    def __str__(self) -> str:
        seen = f"{self.calls} calls: {self.clean} clean at first sight, {self.judged} judged against float64"
        if self.unjudged:
            seen += f", without reference {', '.join(f'{k} ({v})' for k, v in sorted(self.unjudged.items()))}"
        head = str(self.finding) if self.finding else "every operator keeps its bound"
        return "\n".join([head, *map(str, self.programs), seen, *map(str, self.hazards)])


class _Stop(BaseException):
    """Ends the program; no ``except Exception`` of its own catches it."""


class _Bisect(Watch):
    def __init__(self, devices: tuple[str, ...], op_list: frozenset[str]):
        super().__init__(devices, with_programs=not op_list)
        self.op_list = op_list
        self.result = Bisection()
        self.found: tuple[Seen, Verdict, Origin, str] | None = None
        self.launched_again: Counter[tuple[object, ...]] = Counter()
        self.fenced: set[tuple[object, ...]] = set()
        self.is_over = False
        self.hazards_before = len(sanitizer.hazards)

    def wants(self, row: Row | None, name: str) -> bool:
        if self.found is not None:
            # not inside of a backward pass, whose traceback autograd would print
            if torch._C._current_graph_task_id() == -1 and not self.is_over:
                self.is_over = True
                raise _Stop
            return False
        return not self.op_list or name in self.op_list or (row is not None and row.operator in self.op_list)

    def after(self, seen: Seen) -> None:
        with self.lock:
            if self.found is not None:
                return
            self.result.calls += 1
            if seen.why_not:
                self.result.unjudged[seen.name] = seen.why_not.removeprefix("n/a: ")
                return
            verdict = Verdict("pass")
            if is_clean(seen):
                self.result.clean += 1
            else:
                verdict = self.soon(seen)
                if verdict.text.startswith("n/a"):
                    self.result.unjudged[seen.name] = verdict.text.removeprefix("n/a: ")
                    return
                self.result.judged += 1
            kind = "bound" if verdict.failed else ""
            if not kind and (trespass := self.trespass(seen)):
                kind, verdict = "memory", Verdict(f"FAIL: {trespass}")
            if not kind and self.differs(seen):
                kind, verdict = "race", Verdict("FAIL: another launch from the same inputs gives other bits")
            if kind:
                self.found = seen, verdict, origin(), kind

    def trespass(self, seen: Seen) -> str:
        """What the call wrote, or writes when it is launched again, that it must not."""
        if seen.row is None or seen.row.kind not in _REPEATED or not is_on_maca(seen.operands):
            return ""
        spoilt = _spoilt_operand(seen)
        signature = _signature(seen)
        if spoilt or signature in self.fenced:
            return spoilt
        self.fenced.add(signature)
        try:
            found = OpCall.of(seen).trespasses([None if t is None else resolved(t) for t in seen.host])
        except Exception:  # no kernel for this overload, or none that takes these strides
            return ""
        return found[0] if found else ""

    def differs(self, seen: Seen) -> bool:
        """Does another launch from the same inputs give other bits?"""
        row = seen.row
        if row is None or row.random or row.kind not in _REPEATED or not is_on_maca(seen.operands):
            return False
        signature = _signature(seen)
        self.launched_again[signature] += 1
        if self.launched_again[signature] > _SIGNATURE_CALLS:
            return False
        call = OpCall.of(seen)
        got = [None if t is None else resolved(t) for t in seen.host]
        try:
            return any(
                not same_bits(results, got) or not same_bits(changed, seen.changed)
                for results, changed in call.runs("maca", _AGAIN)
            )
        except Exception:  # no kernel that takes these strides
            return False


def _signature(seen: Seen) -> tuple[object, ...]:
    return (seen.name, *(t._payload[2] for t in seen.operands if isinstance(t, MacaTensor)))


def _spoilt_operand(seen: Seen) -> str:
    """Which operand has other values than before, though the call only reads it and writes no other in its memory."""
    assert seen.copies is not None
    written = {
        id(t._payload[0]) for t in seen.operands if isinstance(t, MacaTensor) and id(t) in seen.written
    }
    for i, (t, copy) in enumerate(zip(seen.operands, tensors(seen.copies))):
        if isinstance(t, MacaTensor) and copy is not None and id(t._payload[0]) not in written:
            if not same_bits([resolved(host_copy(t))], [resolved(copy)]):
                return f"writes operand {i}, which it only reads"
    return ""


def _device_of(seen: Seen) -> str:
    here = [t for t in seen.operands + seen.results if isinstance(t, torch.Tensor)]
    return "maca" if is_on_maca([*here]) else here[0].device.type if here else "cpu"


def _rate(call: OpCall, device: str, runs: int) -> float:
    """The share of launches that are wrong, or not as the first right one."""
    first: list[torch.Tensor | None] | None = None
    wrong = 0
    for _ in range(runs):
        results, changed = call.run(device)
        if first is not None and same_bits(results + changed, first):
            continue
        if call.judge(device).failed:
            wrong += 1
        elif first is None:
            first = results + changed
        else:
            wrong += 1
    return wrong / runs


def _is_sometimes_wrong(call: OpCall, device: str) -> bool:
    call.judge(device)  # operands that contradict each other raise
    return any(call.judge(device).failed for _ in range(_RACE_RUNS))


def _kind_of(verdict: Verdict) -> str:
    return "NaN" if any(f"got {strange}" in verdict.text for strange in ("nan", "inf", "-inf")) else "bound"


def _wrong_in(original: OpCall, device: str) -> OpCall | None:
    """The call in the first circumstance in which it is wrong every time."""
    for circumstance in Circumstance:
        call = replace(original, circumstance=circumstance)
        if all(call.judge(device).failed for _ in range(_EVERY_TIME)):
            return call
    return None


class _Reproduced(NamedTuple):
    """A call that shows again what was found, shrunk. ``rate``: the share of its launches that do."""

    kind: str
    call: OpCall
    verdict: Verdict
    rate: float = 1.0


def _again(original: OpCall, verdict: Verdict, kind: str, device: str, seconds: float) -> _Reproduced:
    if kind == "memory":
        if not original.trespasses():
            return _Reproduced(kind, original, verdict, 0.0)
        smaller = shrink(original, lambda c: bool(c.trespasses()), seconds)
        return _Reproduced(kind, smaller, Verdict(f"FAIL: {smaller.trespasses()[0]}"))
    wrong = None if kind == "race" else _wrong_in(original, device)
    if wrong is None:
        rate = _rate(original, device, _RACE_RUNS)
        if not rate and kind != "race":
            return _Reproduced(_kind_of(verdict), original, verdict, rate)
        smaller = shrink(original, lambda c: _is_sometimes_wrong(c, device), seconds)
        return _Reproduced("race", smaller, verdict, rate)
    kind = _kind_of(wrong.judge(device))

    def still(c: OpCall) -> bool:
        again = c.judge(device)
        return again.failed and _kind_of(again) == kind

    smaller = shrink(wrong, still, seconds)
    return _Reproduced(kind, smaller, smaller.judge(device))


_ONE_CALL = "the call is right by itself, launched anew, from rewritten memory and on another stream: what ran before it counts"


def _describe(
    found: tuple[Seen, Verdict, Origin, str], number: int, folder: Path, seconds: float, try_repro: bool
) -> Finding:
    seen, verdict, came, kind = found
    device = _device_of(seen)
    original = OpCall.of(seen)
    kind, smaller, verdict, rate = _again(original, verdict, kind, device, seconds)
    text = verdict.text.removeprefix("FAIL: ") + (f"; bound {verdict.bound}" if verdict.bound else "")
    with launches() as made:
        smaller.run(device)
    finding = Finding(
        seen.name,
        kind,
        text,
        number,
        came,
        original,
        smaller,
        rate=rate,
        implementation=implementations(made),
    )
    if not rate:
        finding.note = _ONE_CALL
        return finding
    file = folder / f"repro_{seen.name.replace('.', '_')}.py"
    try:
        finding.repro = write_repro(
            file, smaller, text, str(came), device, kind == "race", trespasses=kind == "memory"
        )
    except NotImplementedError as error:
        finding.note = str(error)
    if finding.repro is not None and try_repro and not fails(finding.repro):
        finding.note = "in a process of its own it shows nothing: what ran before the call counts"
    return finding


def bisect(
    function: Callable[..., object],
    *args: object,
    device: str | None = "maca",
    op_list: Sequence[str] = (),
    output_dir: str | Path = ".",
    seconds: float = 20.0,
    try_repro: bool = True,
    **kwargs: object,
) -> Bisection:
    """Runs ``function(*args, **kwargs)`` up to the first operator whose local error breaks its row's bound.

    Forward, backward and optimizer steps; the run ends there. The operator's inputs are shrunk while it stays wrong,
    for ``seconds`` at most, and a file ``repro_OP.py`` of plain torch code is written to ``output_dir``.

    Args:
        device: ``"maca"``, ``"cuda"`` or ``"cpu"``: operators on it are judged; None: on all.
        op_list: names as in ``"sum"`` or ``"add.Tensor"``: only these are judged.
        try_repro: the file is run in a process of its own; where it shows nothing there, the finding says so.

    Raises:
        ValueError: an unknown device or operator, or a program without an operator on the device.
    """
    folder = output_folder(output_dir)
    watch = _Bisect(chosen_devices(device), known_operators(op_list))
    with contextlib.suppress(_Stop), traced(), watch.watching():
        function(*args, **kwargs)
    return _finish(watch, folder, seconds, try_repro, getattr(function, "__name__", "the function"))


def _finish(watch: _Bisect, folder: Path, seconds: float, try_repro: bool, program: str) -> Bisection:
    result = watch.result
    result.programs = watch.programs
    result.hazards = sanitizer.hazards[watch.hazards_before :]
    if watch.found is not None:
        with watch.closed():
            result.finding = _describe(watch.found, result.calls - 1, folder, seconds, try_repro)
    elif not result.calls:
        raise ValueError(nothing_ran(program, watch.devices, watch.op_list))
    return result


def bisect_script(
    script: str | Path,
    arguments: list[str] | None = None,
    *,
    device: str | None = "maca",
    op_list: Sequence[str] = (),
    output_dir: str | Path = ".",
    seconds: float = 20.0,
    try_repro: bool = True,
) -> Bisection:
    """:func:`bisect` of a program, which runs as ``__main__`` with ``arguments``.

    Raises:
        ValueError: the script cannot be read or is no Python; and as :func:`bisect`.
        RuntimeError: the script itself failed before an operator did; its exception is the cause.
    """
    path = Path(script)
    try:
        compile(path.read_bytes(), str(path), "exec")
    except OSError as error:
        raise ValueError(f"accuracy: cannot read the script {path}: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"accuracy: {path} is no Python program: {error}") from error
    folder = output_folder(output_dir)
    watch = _Bisect(chosen_devices(device), known_operators(op_list))
    try:
        with contextlib.suppress(_Stop), traced(), watch.watching():
            run_as_main(path, arguments or [])
    except SystemExit as ended:
        if ended.code not in (None, 0) and watch.found is None:
            raise RuntimeError(f"accuracy: {path} ended with exit status {ended.code}") from ended
    except Exception as error:
        if watch.found is None:
            raise RuntimeError(
                f"accuracy: {path} failed before an operator broke its bound: {type(error).__name__}: {error}"
            ) from error
    if watch.found is not None:
        seen, verdict, came, kind = watch.found
        own = [i for i, frame in enumerate(came.frames) if frame.startswith(f"{path}:")]
        frames = came.frames[own[0] :] if own else came.frames  # without what started the program
        watch.found = seen, verdict, replace(came, frames=frames), kind
    return _finish(watch, folder, seconds, try_repro, str(path))
