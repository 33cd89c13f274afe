"""Runs recorded operators again from their recorded inputs, on any device, and judges both sides.

This is how a record of another machine's device is checked here: what was recorded is judged against float64 as if it
were a result of ours, and so is what the device gives now.
"""

from __future__ import annotations

import contextlib
import math
import reprlib
import types
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch._ops import OpOverload

from macatensor.accuracy.elements import TensorEntry, dtype_named, stored
from macatensor.accuracy.local.op_call import OpCall, same_bits
from macatensor.accuracy.records import Argument, Call, Process, read
from macatensor.dispatch.signature import find_row
from macatensor.files.untrusted import DEPTH, readable
from macatensor.parity.transport import tensors
from macatensor.parity.watch import is_drawn, verdict_of, why_not_judged
from macatensor.runtime.boxed import Keywords, Value
from macatensor.runtime.launches import implementations, launches
from op_table import Row


@dataclass
class Replayed:
    """One recorded call. ``verdict``: of what the device gives now; ``recorded``: of what was recorded: ``"the same
    bits"``, else as ``verdict``. ``share``: of the row's bound, above 1 fails."""

    rank: int
    number: int
    name: str  # "aten.convolution.6.fwd"
    op: str
    verdict: str  # "pass", "FAIL: ...", "n/a: reason"
    share: float | None = None
    ulp: float | None = None
    bound: str = ""
    recorded: str = ""
    recorded_share: float | None = None
    implementation: str = ""  # the algorithm that the device library chose here
    stack: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return self.verdict.startswith("FAIL") or self.recorded.startswith("FAIL")


@dataclass
class Replay:
    """What :func:`replay` found."""

    device: str
    calls: list[Replayed] = field(default_factory=list)

    @property
    def failures(self) -> list[Replayed]:
        """Calls where a side breaks its bound."""
        return [c for c in self.calls if c.failed]

    @property
    def not_replayed(self) -> dict[str, str]:
        """Operators that could not be replayed or judged, and why."""
        return {c.op: c.verdict.removeprefix("n/a: ") for c in self.calls if c.verdict.startswith("n/a")}

    def shown(self, most: int = 40) -> list[Replayed]:
        """Failures first, then what came nearest to its bound."""
        judged = [c for c in self.calls if c.share is not None and not c.failed]
        return (self.failures + sorted(judged, key=lambda c: -(c.share or 0.0)))[:most]

    def as_dict(self) -> dict[str, object]:
        return {
            "device": self.device,
            "not_replayed": self.not_replayed,
            "calls": [asdict(c) for c in self.calls],
        }

    def __str__(self) -> str:
        done = sum(not c.verdict.startswith("n/a") for c in self.calls)
        lines = [
            f"{done} of {len(self.calls)} recorded operators replayed on {self.device}, {len(self.failures)} wrong"
        ]
        for c in self.failures[:20]:
            by = c.implementation and f", by {c.implementation}"
            lines.append(f"{c.name}: here {c.verdict}{by}; recorded {c.recorded}")
            lines += [f"    {frame}" for frame in c.stack]
        lines += [f"not replayed: {op} ({why})" for op, why in sorted(self.not_replayed.items())]
        return "\n".join(lines)


class CannotReplay(Exception):
    """Why a recorded call cannot be run again."""


_NAMED = {
    "torch.dtype": torch.dtype,
    "torch.layout": torch.layout,
    "torch.memory_format": torch.memory_format,
}
# elements that a call may make of few: 2 GB in float64
_MADE = 1 << 28
_GROWTH = 64  # and beyond, for each element that was recorded


def _value(value: Value) -> Value:
    """A recorded argument that is no tensor."""
    if not (isinstance(value, dict) and set(value) == {"type", "repr"}):
        return [_value(v) for v in value] if isinstance(value, list) else value
    kind, text = value["type"], value["repr"]
    if not (isinstance(kind, str) and isinstance(text, str)):
        raise CannotReplay(f"an argument is damaged: {reprlib.repr(value)}")
    if kind in _NAMED and text.startswith("torch."):
        found = getattr(torch, text.removeprefix("torch."), None)
        if isinstance(found, _NAMED[kind]):
            return found
    if kind == "torch.device":
        return torch.device("cpu")
    if kind == "complex":
        return complex(text)
    if kind.endswith("Generator"):
        return None  # the recorded state stands for it
    raise CannotReplay(f"its argument {text} ({kind}) was recorded as text only")


def _nested(
    process: Process, arguments: list[Argument], filled: bool = False
) -> tuple[list[Value], Keywords]:
    """Arguments put together from their places: ``"0"``, ``"0.1"``, ``"weight"``. ``filled``: a tensor without
    recorded elements is only written."""
    tree: Keywords = {}
    for argument in arguments:
        held = (
            _tensor(process, argument.tensor, filled)
            if argument.tensor is not None
            else _value(argument.value)
        )
        *path, last = argument.place.split(".")
        node = tree
        for step in path:
            node = node.setdefault(step, {}) if isinstance(node, dict) else node
        if not isinstance(node, dict) or last in node or len(path) > DEPTH or not _numbered(path[1:], last):
            raise CannotReplay(f"its argument {reprlib.repr(argument.place)} has no place among the others")
        node[last] = held
    args = [_listed(tree[str(i)]) for i in range(len(tree)) if str(i) in tree]
    return args, {k: _listed(v) for k, v in tree.items() if not k.isdigit()}


def _numbered(path: list[str], last: str) -> bool:
    return all(step.isdecimal() for step in path) and (not path or last.isdecimal())


def _listed(value: Value) -> Value:
    if isinstance(value, dict):
        return [_listed(value[k]) for k in sorted(value, key=int)]
    return value


def _tensor(process: Process, entry: TensorEntry, filled: bool) -> torch.Tensor:
    if entry.layout != "strided":
        raise CannotReplay(f"a {entry.layout} tensor has no kernel of the op table")
    if entry.file is None and filled and entry.stride is not None:
        readable(entry.shape, entry.stride)
        return torch.empty_strided(entry.shape, entry.stride, dtype=dtype_named(entry.dtype), device="cpu")
    if entry.file is None:
        raise CannotReplay("its inputs were not recorded whole; record with record_level=2")
    return process.tensor(entry)


def _operator(name: str) -> OpOverload:
    parts = name.split(".")
    found: object = torch.ops
    try:
        for part in parts if len(parts) > 2 else [*parts, "default"]:
            found = getattr(found, part)
    except (AttributeError, RuntimeError):
        raise CannotReplay(f"PyTorch {torch.__version__} has no operator {name}") from None
    if not isinstance(found, torch._ops.OpOverload):
        raise CannotReplay(f"{name} is no operator")
    return found


def _check_growth(
    func: OpOverload, args: list[Value], kwargs: Keywords, operands: list[torch.Tensor | None]
) -> None:
    """Refuses a call that makes much of little, which PyTorch's meta kernel tells before anything is made."""

    def imagined(value: Value) -> Value:
        if isinstance(value, torch.Tensor):
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        if isinstance(value, torch.device):
            return torch.device("meta")
        if isinstance(value, list):
            return [imagined(v) for v in value]
        return value

    metas = {k: imagined(v) for k, v in kwargs.items()}
    if not operands and any(a.name == "device" for a in func._schema.arguments):
        metas["device"] = torch.device("meta")
    try:
        with torch.no_grad():
            results = tensors(func(*map(imagined, args), **metas))
    except Exception:  # it has no meta kernel, or the call itself will say what is wrong
        return
    made = sum(t.numel() for t in results if t is not None)
    given = sum(t.numel() for t in operands if t is not None)
    if made > max(_MADE, _GROWTH * given):
        raise CannotReplay(f"it makes {made} elements of {given}; {_MADE} are made of few")


def _state(process: Process, call: Call) -> torch.Tensor | None:
    """The generator's state that was recorded."""
    if call.random is None:
        return None
    files = [a.tensor.file for a in call.inputs + call.outputs if a.tensor is not None and a.tensor.file]
    own = f"tensors/{call.number:06d}.safetensors"
    for file in dict.fromkeys([own, *files]):
        with contextlib.suppress(OSError, ValueError):  # it has none, as most have
            state = stored(process.folder, file, call.random)
            if state is not None:
                return state
    return None


@contextlib.contextmanager
def _drawing(device: str, state: torch.Tensor) -> Iterator[None]:
    """The device's default generator in a state; put back afterwards."""
    module: types.ModuleType = torch if device == "cpu" else torch.get_device_module(device)
    before = module.get_rng_state()
    try:
        module.set_rng_state(state)
        yield
    finally:
        module.set_rng_state(before)


class _Replayer:
    def __init__(self, process: Process, device: str):
        self.process = process
        self.device = device

    def replay(self, call: Call) -> Replayed:
        done = Replayed(
            self.process.rank,
            call.number,
            call.name,
            call.op,
            "",
            stack=self.process.stacks.get(call.stack or -1, []),
        )
        try:
            self._replay(call, done)
        except CannotReplay as reason:
            done.verdict = f"n/a: {reason}"
        except ValueError as error:  # a damaged file
            done.verdict = f"n/a: {error}"
        except Exception as error:  # a call that was recorded wrongly fails in any way
            text = str(error).partition("\n")[0][:160]
            done.verdict = f"n/a: {self.device} raises {type(error).__name__}: {text}"
        return done

    def _replay(self, call: Call, done: Replayed) -> None:
        if call.error is not None:
            raise CannotReplay(f"it raised {call.error.splitlines()[0][:100]}")
        func = _operator(call.op)
        row = (find_row(func) or (None,))[0]
        args, kwargs = _nested(self.process, call.inputs, filled=row is not None and row.random)
        operands = tensors((args, kwargs))
        if any(t is not None and t.is_meta for t in operands):
            raise CannotReplay("a meta tensor has no elements")
        _check_growth(func, args, kwargs, operands)
        random = is_drawn(row)
        why = "" if random else why_not_judged(row, operands).removeprefix("n/a: ")
        if why or row is None:
            raise CannotReplay(why)
        on_host = {
            i for i, a in enumerate(_entries(call)) if a is not None and a.device == "cpu" and not a.shape
        } if any(a is not None and a.device != "cpu" for a in _entries(call)) else set()  # fmt: skip
        one = OpCall(func, row, tuple(args), kwargs, frozenset(on_host))
        self._judge(call, one, row, done, random)

    def _judge(self, call: Call, one: OpCall, row: Row, done: Replayed, random: bool) -> None:
        recorded = self._recorded(call)
        if row.random:
            self._random(call, one, done, recorded)
            return
        # PyTorch's kernels, the reference's too, would read past the ends of operands that contradict each other; where
        # they do, ours check them first
        if not row.cpu_checks and self.device != "maca":
            one.run("maca", on_host="error")
        with launches() as made:
            results, changed = one.run(self.device, "silent" if row.cpu_checks else "error")
        done.implementation = implementations(made)
        with torch.no_grad():
            elsewhere = self.device != "maca"
            verdict = verdict_of(one.func, row, (one.args, one.kwargs), results, changed, elsewhere)
        done.verdict, done.bound = verdict.text, verdict.bound
        if verdict.text.startswith("n/a"):
            return
        done.share, done.ulp = verdict.worst.share, verdict.worst.ulp
        theirs_changed: list[torch.Tensor | None] = [None] * len(one.operands)
        places = [i for i, t in enumerate(changed) if t is not None]
        returns = any(t is not None for t in results)
        if recorded is not None and not returns and len(recorded) == len(places):
            for i, t in zip(places, recorded):  # an operator without results: what it wrote was recorded
                theirs_changed[i] = t
            recorded = list(results)
        if recorded is None or len(recorded) != len(results):
            done.recorded = "n/a: its outputs were not recorded whole"
            return
        if same_bits(recorded, results) and (returns or same_bits(theirs_changed, changed)):
            done.recorded, done.recorded_share = "the same bits", done.share
            return
        made_on_maca = any(a.tensor is not None and a.tensor.device.startswith("maca") for a in call.outputs)
        with torch.no_grad():  # what an in-place operator wrote is its result
            theirs = verdict_of(
                one.func, row, (one.args, one.kwargs), recorded, theirs_changed, not made_on_maca
            )
        done.recorded, done.recorded_share = theirs.text, theirs.worst.share

    def _recorded(self, call: Call) -> list[torch.Tensor | None] | None:
        found: list[torch.Tensor | None] = []
        for a in call.outputs:
            if a.tensor is None:
                if a.value is None:
                    found.append(None)
                continue
            if a.tensor.file is None or a.tensor.layout != "strided":
                return None
            found.append(self.process.tensor(a.tensor))
        return found or None

    def _random(
        self, call: Call, one: OpCall, done: Replayed, recorded: list[torch.Tensor | None] | None
    ) -> None:
        state = _state(self.process, call)
        if state is None:
            raise CannotReplay("random, and its generator's state was not recorded")
        outputs = [a.tensor.device for a in call.outputs if a.tensor is not None]
        made_on = outputs[0].partition(":")[0] if outputs else "cpu"
        if made_on != self.device:
            raise CannotReplay(f"random: {made_on} and {self.device} draw other numbers from a state")
        with _drawing(self.device, state):
            results, _ = one.run(self.device)
        if recorded is None:
            raise CannotReplay("random, and its outputs were not recorded whole")
        same = same_bits(recorded, results)
        done.verdict = "pass" if same else "FAIL: other numbers from the recorded generator state"
        done.share = 0.0 if same else math.inf
        done.recorded = "the same bits" if same else ""


def _entries(call: Call) -> list[TensorEntry | None]:
    return [a.tensor for a in call.inputs if a.tensor is not None or a.value is None]


def replay(folder: str | Path, device: str = "maca") -> Replay:
    """Runs every aten operator of a record again from its recorded inputs and judges it.

    Args:
        folder: what ``start_record(record_level=2)`` wrote; of several runs in it the newest.
        device: ``"maca"``, ``"cuda"`` or ``"cpu"``.

    Raises:
        ValueError: no record there, one without whole tensors or without aten operators, or of which no operator could
            be replayed, or an unknown device.
    """
    from macatensor.accuracy.local.local_error import chosen_devices

    kind = chosen_devices(device)[0]
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("accuracy: replay on 'cuda' needs a CUDA device, and PyTorch sees none")
    run = read(folder)
    calls = [(p, c) for p in run.processes for c in p.calls if c.level == "aten"]
    if not calls:
        raise ValueError(f"accuracy: {run.folder} holds no aten operators to replay")
    entries = [a.tensor for _, c in calls for a in c.inputs if a.tensor is not None]
    if entries and not any(e.file or e.parts for e in entries):
        raise ValueError(
            f"accuracy: {run.folder} holds no whole tensors (they are recorded with record_level=2), so nothing can be "
            "replayed"
        )
    report = Replay(kind)
    players = {id(p): _Replayer(p, kind) for p in run.processes}
    for process, call in calls:
        report.calls.append(players[id(process)].replay(call))
    if all(c.verdict.startswith("n/a") for c in report.calls):
        op, why = next(iter(report.not_replayed.items()))
        raise ValueError(
            f"accuracy: none of the {len(calls)} operators of {run.folder} could be replayed; {op}: {why}"
        )
    return report
