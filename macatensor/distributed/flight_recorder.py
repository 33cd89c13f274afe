"""The last collectives of this process: what a time-out or a failure is explained from.

Every collective on the device becomes an entry of a ring of ``TORCH_MCCL_TRACE_BUFFER_SIZE`` entries for all groups. An
entry takes 7 us and holds no tensor. Where a collective fails, ``TORCH_MCCL_DEBUG_INFO_TEMP_FILE`` names the file, less
the rank's number, that gets the entries as JSON. Their members are those of NCCL's flight recorder, format 2.4, so that
``torch.distributed.flight_recorder`` reads what :func:`dump` writes with ``pickled=True``.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import torch
import torch.distributed as dist

from macatensor.runtime import switches
from macatensor.runtime.boxed import Value

VERSION = "2.4"
_FOLDERS = tuple(str(Path(m.__file__ or "").parent) + os.sep for m in (torch, sys.modules["macatensor"]))
_FRAMES = 4  # of a program, innermost first
_NAMES = {  # as PyTorch's own analyzer of such records knows them
    "all_gather_into_tensor": "_all_gather_base",
    "all_reduce_coalesced": "allreduce_coalesced",
    "reduce_scatter_tensor": "_reduce_scatter_base",
}
_lock = threading.Lock()
_numbers = itertools.count()


class Frame(TypedDict):
    """A line of the program."""

    name: str
    filename: str
    line: int


class Entry(TypedDict):
    """A collective, by the names of NCCL's flight recorder. Times are in ns since 1970, durations in ms."""

    record_id: int
    pg_id: int
    process_group: tuple[str, str]  # name and description
    collective_seq_id: int  # of the group, messages not counted
    p2p_seq_id: int
    op_id: int  # of the group, messages counted
    profiling_name: str  # mccl:all_reduce
    input_sizes: list[list[int]]
    input_dtypes: list[str]
    output_sizes: list[list[int]]
    output_dtypes: list[str]
    state: str  # "scheduled", "started", "completed"; of a failed one "started"
    time_created_ns: int
    time_discovered_started_ns: int | None
    time_discovered_completed_ns: int | None
    duration_ms: float | None
    timeout_ms: int
    retired: bool  # has it ended?
    is_p2p: bool
    error: str | None
    frames: list[Frame]


class Recorder:
    """The ring, and the groups it has seen. ``capacity``: entries; 0: nothing is kept."""

    def __init__(self, capacity: int):
        self.entries: deque[Entry] = deque(maxlen=capacity)
        self.capacity = capacity
        self.groups: dict[str, dict[str, Value]] = {}
        self.numbers: dict[tuple[int, bool], int] = {}  # by group and kind

    def begin(
        self,
        group: Value,
        name: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        peer: int | None,
    ) -> Entry | None:
        """A collective was issued: its entry, None where none are kept. ``peer``: of a message, -1 for any."""
        if not self.capacity:
            return None
        is_message = peer is not None
        number, seen = id(group), str(group.group_name)
        with _lock:
            if seen not in self.groups:
                self.groups[seen] = _described(group)
            counted = self.numbers[number, is_message] = self.numbers.get((number, is_message), 0) + 1
            other = self.numbers.get((number, not is_message), 0)
            entry = Entry(
                record_id=next(_numbers), pg_id=list(self.groups).index(seen),
                process_group=(seen, self.groups[seen]["desc"]), collective_seq_id=other if is_message else counted,
                p2p_seq_id=counted if is_message else other, op_id=counted + other, profiling_name=f"mccl:{_named(group, name, peer)}",
                input_sizes=[list(t.shape) for t in inputs], input_dtypes=_dtypes(inputs),
                output_sizes=[list(t.shape) for t in outputs], output_dtypes=_dtypes(outputs), state="scheduled",
                time_created_ns=time.time_ns(), time_discovered_started_ns=None, time_discovered_completed_ns=None,
                duration_ms=None, timeout_ms=int(group.timeout.total_seconds() * 1000), retired=False, is_p2p=is_message, error=None, frames=_frames(),
            )  # fmt: skip
            self.entries.append(entry)
        return entry

    def dump(self, only_active: bool = False, stacks: bool = True) -> dict[str, Value]:
        """What is kept, as JSON has it."""
        with _lock:
            entries = [dict(e) for e in self.entries if not (only_active and e["retired"])]
        for entry in entries:
            if not stacks:
                del entry["frames"]
        return {
            "version": VERSION,
            "rank": _rank(),
            "pg_config": {name: dict(group) for name, group in self.groups.items()},
            "entries": entries,
        }


def _named(group: Value, name: str, peer: int | None) -> str:
    if peer is None:
        return _NAMES.get(name, name)
    return f"{name} {group.rank()}{'->' if name == 'send' else '<-'}{peer}"


def _dtypes(tensors: Sequence[torch.Tensor]) -> list[str]:
    return [str(t.dtype).removeprefix("torch.") for t in tensors]


def _described(group: Value) -> dict[str, Value]:
    world = dist.distributed_c10d._world
    ranks = list(world.pg_group_ranks.get(group, range(group.size())))
    return {"name": str(group.group_name), "desc": str(getattr(group, "group_desc", "") or "undefined"), "ranks": json.dumps(ranks)}  # fmt: skip


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))


def _frames() -> list[Frame]:
    """The program's own lines: those of PyTorch and of this package say nothing."""
    found: list[Frame] = []
    frame = sys._getframe(2)
    while frame is not None and len(found) < _FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(_FOLDERS) and not code.co_filename.startswith("<"):
            found.append(Frame(name=code.co_name, filename=code.co_filename, line=frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return found


def started(entry: Entry | None) -> None:
    if entry is not None:
        entry["state"], entry["time_discovered_started_ns"] = "started", time.time_ns()


def ended(entry: Entry | None, error: Exception | None = None) -> None:
    """The collective is over. Of a failed one the state stays, and the error is kept."""
    if entry is None:
        return
    now = entry["time_discovered_completed_ns"] = time.time_ns()
    entry["duration_ms"] = (now - (entry["time_discovered_started_ns"] or now)) / 1e6
    entry["retired"] = True
    if error is None:
        entry["state"] = "completed"
    else:
        entry["error"] = str(error)


_recorder: Recorder | None = None


def recorder() -> Recorder:
    """This process's; its capacity is read when it is first asked for."""
    global _recorder
    if _recorder is None:
        _recorder = Recorder(switches.TRACE_BUFFER_SIZE.value())
    return _recorder


def collectives(only_active: bool = False) -> list[Entry]:
    """The last collectives that this process issued, oldest first; ``only_active``: those that have not ended."""
    entries: list[Entry] = recorder().dump(only_active)["entries"]
    return entries


def dump(path: str | os.PathLike[str] | None = None, pickled: bool = False) -> Path:
    """Writes the last collectives to a file and returns its path.

    Args:
        path: by default ``TORCH_MCCL_DEBUG_INFO_TEMP_FILE`` with the rank's number behind it.
        pickled: as NCCL writes it, for ``torch.distributed.flight_recorder``, and not as JSON.

    Raises:
        ValueError: no path is given here or by the switch.
        OSError: the file cannot be written.
    """
    if path is None:
        named = switches.DEBUG_INFO_TEMP_FILE.value()
        if named is None:
            raise ValueError("flight_recorder.dump: give a path, or set TORCH_MCCL_DEBUG_INFO_TEMP_FILE")
        path = f"{named}{_rank()}"
    held = recorder().dump()
    found = Path(path)
    found.parent.mkdir(parents=True, exist_ok=True)
    partial = found.with_name(f".{found.name}.{os.getpid()}")  # nobody reads a part
    partial.write_bytes(pickle.dumps(held) if pickled else (json.dumps(held, indent=1) + "\n").encode())
    partial.replace(found)
    return found


def told() -> str:
    """What an error says of its record: the file that got it, or why none did; "" where no file was asked for."""
    if switches.DEBUG_INFO_TEMP_FILE.value() is None:
        return ""
    try:
        return f" The last collectives of this rank are in {dump()}."
    except OSError as problem:
        return f" The last collectives could not be written: {problem}."


__all__ = ["collectives", "dump"]
