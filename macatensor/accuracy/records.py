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
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch

FORMAT = 1  # of the files; a reader refuses a newer one

CALLS = "calls.jsonl"
ENVIRONMENT = "environment.json"
TENSORS = "tensors"


@dataclass
class TensorEntry:
    """One tensor of a call. Level 0 has the structure, level 1 the numbers too, level 2 the elements too.

    Numbers are of the finite elements, complex ones taken as pairs of real ones; None where there is none, or where
    the level or the dtype has none (``hash`` is of the elements' bytes in row-major order, NaN as they are).
    """

    dtype: str  # as in "float32"
    shape: list[int]
    stride: list[int] | None = None
    device: str = "cpu"
    layout: str = "strided"
    requires_grad: bool = False
    made_by: int | None = None  # the number of the call whose result it was, if a recorded one's
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    norm: float | None = None  # L2
    nan: int | None = None
    inf: int | None = None
    hash: str | None = None
    file: str | None = None  # of its elements, in the process's folder: "tensors/000123.safetensors"
    key: str | None = None  # in that file
    parts: dict[str, TensorEntry] | None = None  # of a sparse, quantized or nested tensor: indices, values, …


@dataclass
class Argument:
    """An argument or a result by its place: ``"0"``, ``"weight"``, ``"0.1"`` or ``"out.loss"`` inside of nesting."""

    place: str
    tensor: TensorEntry | None = None
    value: Any = None  # of what is no tensor, as JSON has it; other objects as {"type": …, "repr": …}


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
    environment: dict[str, Any]
    calls: list[Call]
    stacks: dict[int, list[str]]  # frames, innermost last, each "file:line function"
    cut_off: bool  # the last line was not whole, or the run did not end properly

    @property
    def rank(self) -> int:
        return int(self.environment.get("rank", 0))

    def tensor(self, entry: TensorEntry) -> torch.Tensor:
        """An entry's elements on the host with its strides; of several parts, the tensor put together.

        Raises:
            ValueError: its elements were not recorded (below level 2), or their file is missing or damaged.
        """
        from macatensor.accuracy.elements import load

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


def _plain(value: Any) -> Any:
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


def _entry(held: dict[str, Any]) -> TensorEntry:
    parts = held.pop("parts", None)
    entry = TensorEntry(**held)
    if parts is not None:
        entry.parts = {name: _entry(part) for name, part in parts.items()}
    return entry


def _argument(held: dict[str, Any]) -> Argument:
    tensor = held.get("tensor")
    return Argument(held["place"], None if tensor is None else _entry(tensor), held.get("value"))


def _call(held: dict[str, Any]) -> Call:
    held["inputs"] = [_argument(a) for a in held.get("inputs", [])]
    held["outputs"] = [_argument(a) for a in held.get("outputs", [])]
    return Call(**held)


def read_process(folder: Path) -> Process:
    """Reads one process's folder.

    Raises:
        ValueError: it is no record, or of a newer format, or a line in its middle is damaged.
    """
    try:
        environment = json.loads((folder / ENVIRONMENT).read_text())
        text = (folder / CALLS).read_text().rstrip("\0")  # after a crash zeros follow the last line
    except (OSError, ValueError) as error:  # of JSON or of UTF-8
        raise ValueError(
            f"accuracy: {folder} is not a record of one process ({error}); expected {ENVIRONMENT} and {CALLS}"
        ) from error
    if environment.get("format", FORMAT) > FORMAT:
        raise ValueError(
            f"accuracy: {folder} has format {environment['format']}, this version reads up to {FORMAT}; "
            "update macatensor"
        )
    calls, stacks, ended = [], {}, False
    lines = text.splitlines()
    cut_off = bool(text) and not text.endswith("\n")
    for i, line in enumerate(lines):
        try:
            held = json.loads(line)
        except json.JSONDecodeError as error:
            if i == len(lines) - 1:  # the run was cut off here
                cut_off = True
                break
            raise ValueError(f"accuracy: {folder / CALLS}, line {i + 1} is damaged: {error}") from error
        try:
            if "call" in held:
                calls.append(_call(held["call"]))
                ended = False  # a session that went on after a pause
            elif "stack" in held:
                stacks[held["stack"]] = held["frames"]
            elif "end" in held:
                ended = True
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"accuracy: {folder / CALLS}, line {i + 1} is no line of a record: {error!r}"
            ) from error
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
    processes = [read_process(p) for p in sorted(runs[-1].glob("process-*")) if (p / ENVIRONMENT).exists()]
    return Run(runs[-1], sorted(processes, key=lambda p: (p.rank, p.folder.name)))
