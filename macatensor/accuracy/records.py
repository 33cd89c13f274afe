"""What a record holds: calls, their tensors and stacks, as lines of JSON, and safetensors files for whole tensors.

A run's folder has one folder for each process, ``process-RANK-PID``, with::

    environment.json        versions, flags, seeds, random states, the recorder's own arguments
    calls.jsonl             a line for each stack when it is first seen, and for each call when it has ended
    tensors/000123.safetensors   what the call of that number was the first to see (level 2); what it was given
                                 later, such as its results, in 000123.1.safetensors and so on

Every line is written when it is complete, and a tensor's file before the line that names it: what a crash cuts off can
be read up to the last whole line. No pickle is read or written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

import torch

from macatensor.accuracy.elements import TensorEntry, load
from macatensor.files.untrusted import json_of, made, member, parsed, sizes, text_of

FORMAT = 1  # of the files; a reader refuses a newer one

CALLS = "calls.jsonl"
ENVIRONMENT = "environment.json"
TENSORS = "tensors"
_FILE = re.compile(rf"{TENSORS}/\d+(\.\d+)?\.safetensors")


def is_tensor_file(name: str) -> bool:
    """Is this how a file of tensors is called in a process's folder?"""
    return _FILE.fullmatch(name) is not None


_PARTS = 3  # levels of parts in parts: a nested tensor of sparse ones of quantized values


@dataclass
class Argument:
    """An argument or a result by its place: ``"0"``, ``"weight"``, ``"0.1"`` or ``"out.loss"`` inside of nesting."""

    place: str
    tensor: TensorEntry | None = None
    value: object = None  # of what is no tensor, as JSON has it; other objects as {"type": …, "repr": …}


@dataclass
class Call:
    """One call of a Python function or module (``level`` "api"), or of the aten operator below it ("aten").

    ``name`` is ``torch.nn.Conv1d.6.fwd`` or ``aten.convolution.6.fwd``: what was called, how often before, and which
    way. A module's name is that of its class, a function's the public one.
    """

    number: int  # in the order in which calls begin, from 0, in this process
    level: Literal["api", "aten"]
    name: str
    op: str  # what was called: "torch.nn.Conv1d", "torch.nn.functional.conv1d", "aten.convolution.default"
    direction: Literal["fwd", "bwd"] = "fwd"
    # its path in the outermost module that runs: "layers.0.conv1"; of a gradient's call the parameter's
    module: str | None = None
    parent: int | None = None  # the call during which it ran
    forward: int | None = None  # of a backward call: the forward call whose gradient it is
    node: str | None = None  # of a backward call: the autograd node, as in "ConvolutionBackward0"
    thread: str = "MainThread"
    inputs: list[Argument] = field(default_factory=list)
    outputs: list[Argument] = field(default_factory=list)
    stack: int | None = None  # the number of its Python stack; of a backward call, of its forward call's
    random: str | None = (
        None  # of a random operator: the key of the generator's state in ``file`` of the call
    )
    error: str | None = None  # what it raised instead of a result


@dataclass
class Process:
    """One process of a run, as it was read."""

    folder: Path
    environment: dict[str, object]
    calls: list[Call]
    stacks: dict[int, list[str]]  # frames, innermost last, each "file:line function"
    cut_off: bool  # the last line was not whole, or the run did not end properly

    @property
    def rank(self) -> int:
        rank = self.environment.get("rank", 0)
        return rank if isinstance(rank, int) else 0

    def tensor(self, entry: TensorEntry) -> torch.Tensor:
        """An entry's elements on the host with its strides; of several parts, the tensor put together.

        Raises:
            ValueError: its elements were not recorded (below level 2), or their file is missing or damaged.
        """

        return load(self.folder, entry)


@dataclass
class Run:
    """A run: the processes of one recording, by rank."""

    folder: Path
    processes: list[Process]


def tensors_of(arguments: list[Argument]) -> Iterator[tuple[str, TensorEntry]]:
    """The tensors among arguments or results, with their places."""
    for argument in arguments:
        if argument.tensor is not None:
            yield argument.place, argument.tensor


def _plain(value: object) -> object:
    """Dataclasses as dictionaries without what is at its default: most of a line would be nulls."""
    if isinstance(value, (TensorEntry, Argument, Call)):
        shown = {}
        for f in fields(value):
            held = getattr(value, f.name)
            if held is None or held == [] and f.name in ("inputs", "outputs"):
                continue
            shown[f.name] = _plain(held)
        return shown
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value


def line_of_call(call: Call) -> str:
    """A call as a line of ``calls.jsonl``. Infinities and NaN are written as Python's json does."""
    return json.dumps({"call": _plain(call)}, separators=(",", ":")) + "\n"


def line_of_stack(number: int, frames: list[str]) -> str:
    """A stack as a line of ``calls.jsonl``."""
    return json.dumps({"stack": number, "frames": frames}, separators=(",", ":")) + "\n"


@dataclass
class _Stack:
    """A line of ``calls.jsonl`` that has a stack."""

    stack: int
    frames: list[str]


@dataclass
class _Environment:
    """What is read of ``environment.json``; the rest is for people."""

    format: int = FORMAT
    rank: int = 0
    flags: dict[str, object] = field(default_factory=dict)


def _check_entry(entry: TensorEntry, depth: int = 0) -> None:
    """Refuses what no tensor has, and files that are none of a record's."""
    sizes(entry.shape, 0 if entry.layout == "strided" else -1)
    if entry.stride is not None:
        if len(entry.stride) != len(entry.shape) or any(not 0 <= s < 1 << 63 for s in entry.stride):
            raise ValueError(f"stride {entry.stride} of a tensor of sizes {entry.shape}")
    if entry.file is not None and _FILE.fullmatch(entry.file) is None:
        raise ValueError(f"file {entry.file!r} is none of a record's, which lie in {TENSORS}/")
    for part in (entry.parts or {}).values():
        if depth == _PARTS:
            raise ValueError(f"parts in parts, more than {_PARTS} levels")
        _check_entry(part, depth + 1)


def _call(held: object, where: str, known: set[int]) -> Call:
    call = made(Call, held, where)
    try:
        for _, entry in (*tensors_of(call.inputs), *tensors_of(call.outputs)):
            _check_entry(entry)
        for name in ("parent", "forward"):  # a call runs in one, or after one, that began before it
            number = getattr(call, name)
            if number is not None and not 0 <= number < call.number:
                raise ValueError(f"{name} {number} of call {call.number}")
        if call.number < 0 or call.number in known:
            raise ValueError(f"number {call.number} is negative or there twice")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    known.add(call.number)
    return call


def _read_environment(path: Path) -> dict[str, object]:
    held = json_of(path)
    if not isinstance(held, dict):
        raise ValueError(f"{path} is no JSON object")
    known = {f.name for f in fields(_Environment)}
    checked = made(_Environment, {k: v for k, v in held.items() if k in known}, str(path))
    return {**held, **vars(checked)}


def read_process(folder: Path) -> Process:
    """Reads one process's folder.

    Raises:
        ValueError: it is no record, or of a newer format, or a line in its middle is damaged.
    """
    try:
        environment = _read_environment(member(folder, ENVIRONMENT))
        text = text_of(member(folder, CALLS)).rstrip("\0")  # after a crash zeros follow the last line
    except (OSError, ValueError) as error:
        raise ValueError(
            f"accuracy: {folder} is not a record of one process ({error}); expected {ENVIRONMENT} and {CALLS}"
        ) from error
    version = environment["format"]
    if isinstance(version, int) and version > FORMAT:
        raise ValueError(
            f"accuracy: {folder} has format {version}, this version reads up to {FORMAT}; update macatensor"
        )
    calls: list[Call] = []
    stacks: dict[int, list[str]] = {}
    known: set[int] = set()
    ended = False
    lines = text.splitlines()
    cut_off = bool(text) and not text.endswith("\n")
    for i, line in enumerate(lines):
        where = f"accuracy: {folder / CALLS}, line {i + 1} is no line of a record"
        try:
            held = parsed(line, f"accuracy: {folder / CALLS}, line {i + 1} is damaged")
        except ValueError as error:
            if i == len(lines) - 1 and isinstance(error.__cause__, json.JSONDecodeError):
                cut_off = True  # the run ended here
                break
            raise
        if not isinstance(held, dict):
            raise ValueError(f"{where}: expected an object")
        if "call" in held:
            calls.append(_call(held["call"], where, known))
            ended = False  # a session that went on after a pause
        elif "stack" in held:
            stack = made(_Stack, held, where)
            stacks[stack.stack] = stack.frames
        elif "end" in held:
            ended = True
    calls.sort(key=lambda c: c.number)
    return Process(folder, environment, calls, stacks, cut_off or not ended)


def runs_in(folder: Path) -> list[Path]:
    """The runs in an output folder, oldest first; the folder itself if it is a run."""
    if any(folder.glob(f"process-*/{ENVIRONMENT}")):
        return [folder]
    found = {p.parent.parent for p in folder.glob(f"*/process-*/{ENVIRONMENT}")}
    return sorted(found, key=lambda p: (p.stat().st_mtime_ns, p.name))


def read(folder: str | Path) -> Run:
    """Reads a run: its folder, or an output folder, whose newest run is taken.

    Raises:
        ValueError: there is no record, or it cannot be read.
    """
    path = Path(folder)
    runs = runs_in(path) if path.is_dir() else []
    if not runs:
        raise ValueError(
            f"accuracy: {path} holds no record; expected a folder that start_record or record wrote"
            + ("" if path.exists() else " (it does not exist)")
        )
    folders = [p.parent for p in sorted(runs[-1].glob(f"process-*/{ENVIRONMENT}"))]
    for found in folders:
        member(path, str(found.relative_to(path) / ENVIRONMENT))  # no link out of what was named
    processes = [read_process(p) for p in folders]
    return Run(runs[-1], sorted(processes, key=lambda p: (p.rank, p.folder.name)))
