"""Who made the live tensors: snapshots of the allocator, and what an out-of-memory error says of them."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypedDict

from torch.types import Device

from macatensor.dispatch import sites
from macatensor.runtime import ffi as binding
from macatensor.runtime.ffi import ffi, lib, size_text
from macatensor.runtime.own_names import own_names

if TYPE_CHECKING:
    from macatensor.runtime.ffi import CData

_NAMED = 3  # live tensors that an out-of-memory error names


class Frame(TypedDict):
    filename: str
    line: int
    name: str


class Block(TypedDict):
    address: int
    size: int
    requested_size: int
    state: str
    frames: list[Frame]


class Segment(TypedDict):
    device: int
    address: int
    total_size: int
    allocated_size: int
    active_size: int
    requested_size: int
    stream: int
    segment_type: str
    segment_pool_id: tuple[int, int]
    is_expandable: bool
    frames: list[Frame]
    blocks: list[Block]


def _blocks() -> Iterator[CData]:
    """The allocator's blocks, by address; each as long as the next is not asked for."""
    capacity = int(lib.maca_memory_blocks(ffi.NULL, 0)) + 64
    while True:
        blocks = ffi.new("maca_memory_block[]", capacity)
        count = int(lib.maca_memory_blocks(blocks, capacity))
        if count <= capacity:
            break
        capacity = count + 64
    yield from blocks[0:count]  # which do not own their memory: `blocks` does, for as long as this runs


def _frames(number: int, include_traces: bool) -> list[Frame]:
    found = sites.site(number) if include_traces else None
    if found is None:
        return []
    operator: Frame = {"filename": "maca", "line": 0, "name": found.operator}
    return [operator, *(Frame(filename=f.filename, line=f.line, name=f.name) for f in found.frames)]


def memory_snapshot(mempool_id: tuple[int, int] | None = None, include_traces: bool = True) -> list[Segment]:
    """The allocator's segments and their blocks, in the form of ``torch.cuda.memory_snapshot``; sizes in bytes.

    ``frames`` of a live block are filled where ``_record_memory_history`` was on when it was allocated: the
    operator first, then the Python stack, innermost first. ``mempool_id``: only segments of this pool, ``(0, 0)`` of
    none of a user's own.
    """
    segments: list[Segment] = []
    for block in _blocks():
        pool = (0, int(block.pool))
        if mempool_id is not None and pool != tuple(mempool_id):
            continue
        address = int(block.segment_address)
        if not segments or segments[-1]["address"] != address:
            segments.append(
                {
                    "device": 0,
                    "address": address,
                    "total_size": int(block.segment_bytes),
                    "allocated_size": 0,
                    "active_size": 0,
                    "requested_size": 0,
                    "stream": int(block.stream),
                    "segment_type": "small" if block.is_small else "large",
                    "segment_pool_id": pool,
                    "is_expandable": False,
                    "frames": [],
                    "blocks": [],
                }
            )
        segment = segments[-1]
        if block.is_live:
            segment["allocated_size"] += int(block.bytes)
            segment["active_size"] += int(block.bytes)
            segment["requested_size"] += int(block.requested_bytes)
        segment["blocks"].append(
            {
                "address": int(block.address),
                "size": int(block.bytes),
                "requested_size": int(block.requested_bytes),
                "state": "active_allocated" if block.is_live else "inactive",
                "frames": _frames(block.site, include_traces),
            }
        )
    return segments


def _record_memory_history(
    enabled: str | bool | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: Device = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
) -> None:
    """Records the operator and Python stack of every allocation from now on; None stops.

    Named and called as ``torch.cuda.memory._record_memory_history``. ``"state"`` and ``"all"`` do the same here: what
    is live is kept, there is no log of past allocations and frees, and stacks are Python's. Costs some 10 us for each
    operator. Raises RuntimeError for another ``enabled`` or ``context``.
    """
    if enabled not in (None, "state", "all", True, False):
        raise RuntimeError("expected state to be 'state', 'all', or None")
    if context not in (None, "state", "alloc", "all"):
        raise RuntimeError("expected context to be 'state', 'alloc', 'all', or None")
    if stacks not in ("python", "all"):
        raise RuntimeError("expected stacks to be 'python', or 'all'")
    sites.record("memory", bool(enabled) and context is not None)
    if clear_history:
        sites.forget()


def _snapshot(device: Device = None) -> dict[str, object]:
    """:func:`memory_snapshot` in the frame that ``torch.cuda.memory._snapshot`` puts round it."""
    return {
        "segments": memory_snapshot(),
        "device_traces": [[]],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    """Pickles :func:`_snapshot` to a file."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


def live_by_site() -> dict[int, tuple[int, int]]:
    """(blocks, bytes) that are live, by the number of the site that made them (:func:`sites.site`); 0: not recorded."""
    found: dict[int, tuple[int, int]] = {}
    for block in _blocks():
        if block.is_live:
            count, size = found.get(block.site, (0, 0))
            found[block.site] = count + 1, size + int(block.bytes)
    return found


def _largest() -> str:
    live = sorted((b for b in _blocks() if b.is_live), key=lambda b: -int(b.requested_bytes))[:_NAMED]
    if not live:
        return ""
    named = []
    for block in live:
        found = sites.site(block.site)
        named.append(size_text(block.requested_bytes) + (f" made by {found}" if found else ""))
    hint = (
        "" if sites.is_recorded() else " (torch.maca.memory._record_memory_history() records what makes them)"
    )
    return f" Largest live tensors: {'; '.join(named)}{hint}."


binding.name_live_tensors(_largest)


__all__ = own_names(globals(), internal=("Frame", "Block", "Segment", "live_by_site"))
