"""Records that mcPyTorch's ``maca_tools.accuracy`` wrote (mcPyTorch 2.4, maca_tools/accuracy/record.py).

A folder, or one for each rank (``rank0``, …), holds ``files_seqs.pt``, the list of the other files in the order in which
they were written, and for each call up to two: ``torch.relu.12.fwd.input.pt`` and ``torch.relu.12.fwd.output.pt``.
Each is a dictionary: ``args``, ``kwargs`` and for modules ``module``; ``res``; of a backward call ``grad_out`` and
``grad_in``; and ``stack``, lines of ``traceback.format_stack``. Level 2 has whole tensors, level 1 dtype, size, stride,
minimum and maximum; level 0 leaves a log only, no record.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch

from macatensor.accuracy.elements import TensorEntry
from macatensor.accuracy.foreign.restricted_pickle import HeldSummary, HeldTensor, Inert, elements_of, load
from macatensor.accuracy.records import Argument, Call, Process, Run
from macatensor.files.untrusted import leaves, member

SEQUENCE = "files_seqs.pt"
SOURCE = "mcPyTorch maca_tools"
_NAME = re.compile(r"(?P<op>.+)\.(?P<count>\d+)\.(?P<direction>fwd|bwd)\.(?P<role>input|output)\.pt")
_FRAMES, _FRAME_TEXT = 2000, 10_000
_FRAME = re.compile(r'\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)')


def folders(folder: Path) -> list[Path]:
    """The folders of processes in a record; none if it is no such record."""
    if (folder / SEQUENCE).is_file():
        return [folder]
    return sorted(p.parent for p in folder.glob(f"rank*/{SEQUENCE}"))


class McPytorchProcess(Process):
    """A process whose tensors stay in the files of ``torch.save``."""

    def tensor(self, entry: TensorEntry) -> torch.Tensor:
        """The elements, from level 2. Raises ValueError where there are none or the file is damaged."""
        if entry.file is None or entry.key is None:
            raise ValueError(
                f"accuracy: {self.folder} has minima and maxima only of this tensor; record with record_level=2"
            )
        path = member(self.folder, entry.file)
        found = dict(_tensors(path, load(path))).get(entry.key)
        if not isinstance(found, HeldTensor):
            raise ValueError(f"accuracy: {path} has no tensor {entry.key}")
        return elements_of(path, found)


def _held(content: object) -> Iterator[object]:
    """The lists, tuples and dictionaries of arguments and results in a file of a call."""
    if not isinstance(content, dict):
        return
    module = content.get("module")
    yield content.get("args", ())
    yield content.get("kwargs", {})
    if isinstance(module, Inert) and isinstance(module.state, dict):
        for held in ("_parameters", "_buffers"):
            yield module.state.get(held) or {}
    for key in ("res", "grad_out", "grad_in"):
        value = content.get(key)
        yield value if isinstance(value, (list, tuple, dict)) else (value,) if value is not None else ()


def _leaves(path: Path, content: object) -> Iterator[tuple[str, object]]:
    try:
        for held in _held(content):
            yield from leaves(held)
    except ValueError as error:
        raise ValueError(f"accuracy: {path}: {error}") from error


def _tensors(path: Path, content: object) -> Iterator[tuple[str, HeldTensor | HeldSummary]]:
    for place, value in _leaves(path, content):
        if isinstance(value, (HeldTensor, HeldSummary)):
            yield place, value


def _argument(file: str, place: str, value: object) -> Argument:
    if isinstance(value, HeldTensor):
        device = value.storage.device.partition(":")[0]
        entry = TensorEntry(
            value.dtype, list(value.size), list(value.stride), device, requires_grad=value.requires_grad, file=file,
            key=place,
        )  # fmt: skip
        return Argument(place, entry)
    if isinstance(value, HeldSummary):
        entry = TensorEntry(
            value.dtype, list(value.size), list(value.stride), "unknown", min=value.min, max=value.max
        )
        return Argument(place, entry)
    if value is None or isinstance(value, (bool, int, float, str)):
        return Argument(place, value=value)
    return Argument(place, value={"type": type(value).__name__, "repr": reprlib.repr(value)})


def _frames(stack: object) -> list[str]:
    """``file:line function`` of the lines that traceback formats."""
    lines = [stack] if isinstance(stack, str) else stack if isinstance(stack, (list, tuple)) else []
    # Python itself has 1000 frames at most; one text may stand in a pickled list any number of times
    texts = [text[:_FRAME_TEXT] for text in lines[:_FRAMES] if isinstance(text, str)]
    found = (_FRAME.match(line) for text in texts for line in text.splitlines())
    return [f"{m['file']}:{m['line']} {m['function']}" for m in found if m]


def _read_process(folder: Path) -> Process:
    names = load(member(folder, SEQUENCE))
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise ValueError(f"accuracy: {folder / SEQUENCE} is no list of file names")
    calls: dict[tuple[str, str, str], Call] = {}
    stacks: dict[int, list[str]] = {}
    known: dict[tuple[str, ...], int] = {}
    cut_off = False
    for i, name in enumerate(dict.fromkeys(names)):
        parsed = _NAME.fullmatch(name)
        if parsed is None or Path(name).name != name:
            raise ValueError(
                f"accuracy: {folder / SEQUENCE} names {reprlib.repr(name)}, which is no file of a call"
            )
        path = member(folder, name)
        try:
            content = load(path)
        except ValueError:
            if i < len(names) - 1 or "is refused" in _reason(path):
                raise
            cut_off = True  # the list is written before the file
            break
        op, count, direction, role = parsed["op"], parsed["count"], parsed["direction"], parsed["role"]
        call = calls.get((op, count, direction))
        if call is None:
            way: Literal["fwd", "bwd"] = "fwd" if direction == "fwd" else "bwd"
            call = calls[op, count, direction] = Call(len(calls), "api", f"{op}.{count}.{way}", op, way)
            forward = calls.get((op, count, "fwd")) if way == "bwd" else None
            call.forward = forward.number if forward is not None else None
        arguments = [_argument(name, place, value) for place, value in _leaves(path, content)]
        if role == "input":
            call.inputs = arguments
        else:
            call.outputs = arguments
        frames = _frames(content.get("stack") if isinstance(content, dict) else None)
        if frames:
            call.stack = known.setdefault(tuple(frames), len(known))
            stacks[call.stack] = frames
    rank = re.fullmatch(r"rank(\d+)", folder.name)
    environment = {"rank": int(rank[1]) if rank else 0, "source": SOURCE}
    return McPytorchProcess(folder, environment, list(calls.values()), stacks, cut_off)


def _reason(path: Path) -> str:
    try:
        load(path)
    except ValueError as error:
        return str(error)
    return ""


def read(folder: Path) -> Run:
    """Reads a record of maca_tools.

    Raises:
        ValueError: a file in its middle is damaged, or a pickle in it names what no record holds.
    """
    found = folders(folder)
    for process in found:
        member(folder, str(process.relative_to(folder) / SEQUENCE))  # no link out of what was named
    return Run(folder, sorted((_read_process(p) for p in found), key=lambda p: p.rank))
