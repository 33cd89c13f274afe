"""Dumps of Ascend's msprobe (MindStudio Probe) of PyTorch programs.

``dump.json`` has the calls with summaries, ``stack.json`` their Python stacks, ``construct.json`` which module each ran
in, ``dump_tensor_data/NAME.pt`` the tensors of task "tensor". They lie in a folder, in ``rank0`` or ``proc123`` of it, or in
such folders of ``step0``, ``step1``, …, whose calls follow each other.
"""

from __future__ import annotations

import re
import reprlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch

from macatensor.accuracy.elements import TensorEntry
from macatensor.accuracy.foreign.restricted_pickle import HeldTensor, elements_of, load
from macatensor.accuracy.records import Argument, Call, Process, Run
from macatensor.files.untrusted import DEPTH, Json, leaves, member, parsed, sizes, text_of

DUMP, STACK, CONSTRUCT, DATA = "dump.json", "stack.json", "construct.json", "dump_tensor_data"
SOURCE = "msprobe"
_PREFIXES = {
    "Functional": "torch.nn.functional", "Tensor": "torch.Tensor", "Torch": "torch", "VF": "torch._VF",
    "Aten": "torch.ops.aten", "Distributed": "torch.distributed", "NPU": "torch_npu", "MindSpeed": "mindspeed.ops",
    "Triton": "triton",
}  # fmt: skip
_API = re.compile(r"(?P<prefix>\w+)\.(?P<op>.+)\.(?P<count>\d+)\.(?P<way>forward|backward)")
_MODULE = re.compile(
    r"Module\.(?:(?P<path>.+)\.)?(?P<cls>[^.]+)\.(?P<way>forward|backward|parameters_grad)(?:\.(?P<count>\d+))?"
)
_FRAME = re.compile(r"File (?P<file>.+?), line (?P<line>\d+), in (?P<function>[^,]+)")
_PLACE = re.compile(r"(step\d+/)?(rank\d*|proc\d+)?")


def _dumps(folder: Path) -> list[Path]:
    found = [folder / DUMP, *folder.glob(f"*/{DUMP}"), *folder.glob(f"step*/*/{DUMP}")]
    return [p.parent for p in found if p.is_file() and _PLACE.fullmatch(_relative(folder, p.parent))]


def _relative(folder: Path, below: Path) -> str:
    text = below.relative_to(folder).as_posix()
    return "" if text == "." else f"{text}/" if re.fullmatch(r"step\d+", text) else text


def folders(folder: Path) -> list[Path]:
    """The folders with a ``dump.json``; none if this is no dump of msprobe."""
    return sorted(
        _dumps(folder),
        key=lambda p: [int(n) for n in re.findall(r"(?:step|rank)(\d+)", str(p.relative_to(folder)))],
    )


class MsprobeProcess(Process):
    """A process whose tensors lie in files of their own."""

    def tensor(self, entry: TensorEntry) -> torch.Tensor:
        """The elements, of task "tensor". Raises ValueError where there are none or the file is damaged."""
        if entry.file is None:
            raise ValueError(
                f"accuracy: {self.folder} has a summary only of this tensor; dump with task 'tensor'"
            )
        path = member(self.folder, entry.file)
        held = load(path)
        if not isinstance(held, HeldTensor):
            raise ValueError(f"accuracy: {path} holds a {type(held).__name__}, expected a tensor")
        return elements_of(path, held)


def _json(path: Path, needed: bool = False) -> dict[str, Json]:
    if not path.exists() and not needed:
        return {}
    try:
        held = parsed(text_of(path) or "{}", str(path))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"accuracy: {path} cannot be read ({error}); msprobe completes it when the debugger stops, so a run that "
            "was cut off may lack it"
        ) from error
    if not isinstance(held, dict):
        raise ValueError(f"accuracy: {path} is no JSON object")
    return held


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return float(value) if isinstance(value, bool) else None
    try:
        return float(value)  # "nan" and "inf" are written as text by some versions
    except (ValueError, OverflowError):
        return None


def _text(held: dict[str, Json], key: str) -> str:
    if not isinstance(held[key], str):
        raise ValueError(f"{key}: expected a text, got {reprlib.repr(held[key])}")
    return str(held[key])


def _entry(held: dict[str, Json], data: str) -> TensorEntry:
    name = held.get("data_name")
    if name is not None and (not isinstance(name, str) or Path(name).name != name):
        raise ValueError(f"{reprlib.repr(name)} is no name of a file in {DATA}")
    digest = held.get("md5")
    return TensorEntry(
        _text(held, "dtype").removeprefix("torch."),
        sizes(held["shape"]),
        device="unknown",
        requires_grad=bool(held.get("requires_grad")),
        min=_number(held.get("Min")),
        max=_number(held.get("Max")),
        mean=_number(held.get("Mean")),
        norm=_number(held.get("Norm")),
        hash=None if digest is None else _text(held, "md5"),
        file=None if name is None else f"{data}/{name}",
        key=name,
    )


def _is_array(kind: object) -> bool:
    return isinstance(kind, str) and "ndarray" in kind


def _arguments(place: str, held: object, data: str, depth: int = 0) -> Iterator[Argument]:
    if depth > DEPTH:
        raise ValueError(f"arguments nested more than {DEPTH} deep")
    if isinstance(held, dict) and "dtype" in held and "shape" in held and not _is_array(held.get("type")):
        yield Argument(place, _entry(held, data))
    elif isinstance(held, dict) and "type" in held:
        value = held.get("value", held["type"])
        for _ in leaves(value):  # not nested too deeply for who compares it
            pass
        yield Argument(place, value=value)
    elif isinstance(held, (list, dict)):
        for key, item in enumerate(held) if isinstance(held, list) else held.items():
            yield from _arguments(f"{place}.{key}" if place else str(key), item, data, depth + 1)
    else:
        yield Argument(place, value=held)


def _call(name: str, held: dict[str, Json], data: str) -> Call:
    api, module = _API.fullmatch(name), _MODULE.fullmatch(name)
    path = None
    if module is not None:
        cls, way, count = module["cls"], module["way"], module["count"] or "0"
        op = f"torch.nn.{cls}" if hasattr(torch.nn, cls) else cls
        path = module["path"] or ""
    elif api is not None:
        way, count = api["way"], api["count"]
        op = f"{_PREFIXES.get(api['prefix'], api['prefix'])}.{api['op']}"
    else:
        raise ValueError("it is no name of a call as msprobe writes them")
    direction: Literal["fwd", "bwd"] = "fwd" if way == "forward" else "bwd"
    if way == "parameters_grad":
        return Call(
            0, "api", f"{op}.parameters_grad.{count}.bwd", f"{op}.parameters_grad", "bwd", path,
            outputs=list(_arguments("", held, data)),
        )  # fmt: skip
    call = Call(0, "api", f"{op}.{count}.{direction}", op, direction, path)
    for key in ("input_args", "input_kwargs", "parameters", "input"):
        call.inputs += _arguments("", held.get(key) or [], data)
    output = held.get("output")
    call.outputs = list(
        _arguments("", output if isinstance(output, list) else [output] if output else [], data)
    )
    return call


def _stacks(held: dict[str, Json]) -> dict[str, list[str]]:
    """Frames by call, innermost last; newer dumps list the calls that share a stack."""
    found = {}
    for key, value in held.items():
        names: list[Json] = [key]
        frames = value if isinstance(value, list) else []
        if isinstance(value, list) and len(value) == 2:
            first, second = value
            if isinstance(first, list) and isinstance(second, list):
                names, frames = first, second
        matches = [m for m in (_FRAME.match(f) for f in frames if isinstance(f, str)) if m]
        for name in (n for n in names if isinstance(n, str)):
            found[name] = [f"{m['file']}:{m['line']} {m['function'].strip()}" for m in reversed(matches)]
    return found


def _in_order(names: list[str], parents: dict[str, Json]) -> list[str]:
    """Calls before those that ran in them: msprobe writes a call when it ends."""
    known = set(names)
    inside: dict[str | None, list[str]] = defaultdict(list)
    for name in names:
        parent = parents.get(name)
        parent = parent[0] if isinstance(parent, list) and parent else parent
        inside[parent if isinstance(parent, str) and parent in known and parent != name else None].append(
            name
        )
    out: list[str] = []
    seen: set[str] = set()
    work = inside[None][::-1]
    while work:
        name = work.pop()
        if name not in seen:
            seen.add(name)
            out.append(name)
            work += inside[name][::-1]
    return out + [n for n in names if n not in seen]  # of circles, which no good file has


def _read_step(root: Path, folder: Path, calls: list[Call], stacks: dict[int, list[str]]) -> None:
    dump = _json(folder / DUMP, needed=True)
    held = dump.get("data")
    if not isinstance(held, dict):
        raise ValueError(f'accuracy: {folder / DUMP} has no object "data"; it is no dump of msprobe')
    if dump.get("framework", "pytorch") != "pytorch":
        raise ValueError(
            f"accuracy: {folder / DUMP} is of {reprlib.repr(dump['framework'])}; only dumps of PyTorch are read"
        )
    parents, frames = _json(folder / CONSTRUCT), _stacks(_json(folder / STACK))
    data = (folder / DATA).relative_to(root).as_posix()
    numbers: dict[str, int] = {}
    for name in _in_order(list(held), parents):
        facts = held[name]
        if not isinstance(facts, dict):
            raise ValueError(f"accuracy: {reprlib.repr(name)} in {folder / DUMP} is no object")
        try:
            call = _call(name, facts, data)
        except (KeyError, TypeError, ValueError) as error:
            what = f"no key {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(
                f"accuracy: {reprlib.repr(name)} in {folder / DUMP} is damaged: {what}"
            ) from error
        call.number = numbers[name] = len(calls)
        parent = parents.get(name)
        parent = parent[0] if isinstance(parent, list) and parent else parent
        call.parent = numbers.get(parent) if isinstance(parent, str) else None
        if call.direction == "bwd":
            call.forward = numbers.get(
                name.replace(".backward", ".forward").replace(".parameters_grad", ".forward")
            )
        if name in frames:
            call.stack = call.number
            stacks[call.number] = frames[name]
        calls.append(call)


def read(folder: Path) -> Run:
    """Reads a dump of msprobe.

    Raises:
        ValueError: one of its files is damaged, or it is of another framework.
    """
    by_process: dict[str, list[Path]] = defaultdict(list)
    for path in folders(folder):
        by_process[path.name if re.fullmatch(r"(rank|proc)\d*", path.name) else ""].append(path)
    processes: list[Process] = []
    for name, paths in by_process.items():
        calls: list[Call] = []
        stacks: dict[int, list[str]] = {}
        for path in paths:
            for file in (DUMP, STACK, CONSTRUCT):
                member(folder, str(path.relative_to(folder) / file))  # no link out of what was named
            _read_step(folder, path, calls, stacks)
        rank = re.fullmatch(r"rank(\d+)", name)
        environment = {"rank": int(rank[1]) if rank else 0, "source": SOURCE}
        processes.append(MsprobeProcess(folder, environment, calls, stacks, False))
    return Run(folder, sorted(processes, key=lambda p: p.rank))
