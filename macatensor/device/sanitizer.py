"""``MACA_SANITIZE=1``: reports where two streams use one buffer, one of them writing, without an order between them.

On CUDA such a program races. On maca it does not: the runtime makes a stream wait for the one that used an operand
last. The sanitizer reports the places where that automatic wait was needed, so that a program that is clean here keeps
its results on CUDA. Uses on one stream are in order, and so are those that ``wait_stream``, events, ``synchronize()``
and blocking copies put in order; a backward pass counts as work of the stream that called it, since CUDA's autograd engine
waits for the streams of the forward pass by itself. A collective is work of a stream of its group, as NCCL's: it comes
after what its caller's stream was given before, and what that stream is given comes after it from ``wait()``,
``get_future()`` or ``wait_tensor`` on. A buffer is watched as a whole: two views of it count as one memory.

Each pair of places is reported once, as a :class:`StreamHazardWarning` with both operators and Python stacks, and kept
in :data:`hazards`. Every operator costs a walk over the Python stack and a few dictionary look-ups, 20 us or so.
"""

from __future__ import annotations

import re
import threading
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch._ops import OpOverload

from macatensor.dispatch import sites
from macatensor.dispatch.plan import flatten
from macatensor.dispatch.sites import Site
from macatensor.runtime import streams
from macatensor.runtime.awaited import is_at_once
from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.ffi import lib
from macatensor.runtime.streams import Event
from macatensor.runtime.tensor import MacaTensor

if TYPE_CHECKING:
    from macatensor.runtime.ffi import Buffer

_Clock = dict[int, int]  # of each stream the last use that is known to be over


class StreamHazardWarning(UserWarning):
    """Two streams use one buffer without an order between them."""


@dataclass(frozen=True)
class Use:
    """One use of a buffer."""

    stream_id: int
    number: int  # of the stream's uses
    writes: bool
    site: Site

    def __str__(self) -> str:
        what = "write" if self.writes else "read"
        where = f"on stream {self.stream_id}" if self.stream_id >= 0 else "in flight between ranks"
        lines = [f"  {what} by {self.site.operator} {where}:"]
        lines += [f'    File "{f.filename}", line {f.line}, in {f.name}' for f in reversed(self.site.frames)]
        if not self.site.frames:
            lines.append("    (a thread of the autograd engine has no Python stack)")
        return "\n".join(lines)


@dataclass(frozen=True)
class Hazard:
    """A use that had to wait for an earlier one on another stream."""

    earlier: Use
    later: Use
    nbytes: int  # of the buffer

    @property
    def remedy(self) -> str:
        is_collective = self.earlier.stream_id < 0
        return "Call the collective's wait()" if is_collective else "Call wait_stream() or wait for an event"

    def __str__(self) -> str:
        return (
            f"a buffer of {self.nbytes} bytes is used by two streams without an order between them; CUDA would race "
            f"here. {self.remedy} first.\n{self.earlier}\n{self.later}"
        )


@dataclass
class _History:
    """The last write of a buffer and what has read it since."""

    write: Use | None = None
    reads: dict[int, Use] = field(default_factory=dict)  # by stream


_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")  # they show themselves
_FACTORY = re.compile("new_.*|.*_like")  # they make a tensor in the image of another
hazards: list[Hazard] = []
_MOST = 1000  # hazards kept


class Sanitizer:
    """Vector clocks of the streams, and the last uses of every buffer."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.clocks: dict[int, _Clock] = {}
        self.host: _Clock = {}  # what the host has waited for; a stream that is met first knows as much
        self.events: weakref.WeakKeyDictionary[Event, _Clock] = weakref.WeakKeyDictionary()
        self.buffers: dict[int, _History] = {}  # by id of the buffer's handle
        self.counts: _Clock = {}
        self.callers: list[int] = []  # streams that called the backward passes under way, innermost last
        self.reported: set[tuple[Site, Site]] = set()

    def clock(self, stream_id: int) -> _Clock:
        return self.clocks.setdefault(stream_id, dict(self.host))

    def snapshot(self, stream_id: int) -> _Clock:
        """What is over once everything given to the stream so far is."""
        return {**self.clock(stream_id), stream_id: self.counts.get(stream_id, 0)}

    @staticmethod
    def merge(into: _Clock, other: _Clock) -> None:
        for stream_id, number in other.items():
            into[stream_id] = max(into.get(stream_id, 0), number)

    # what orders streams
    def event_recorded(self, event: Event, stream_id: int) -> None:
        with self.lock:
            self.events[event] = self.snapshot(stream_id)

    def event_awaited(self, event: Event, stream_id: int) -> None:
        with self.lock:
            self.merge(self.clock(stream_id), self.events.get(event, {}))

    def event_synchronized(self, event: Event) -> None:
        with self.lock:
            self.waited(self.events.get(event, {}))

    def stream_synchronized(self, stream_id: int) -> None:
        if is_at_once():  # a collective's own copies
            return
        with self.lock:
            self.waited(self.snapshot(stream_id))

    def device_synchronized(self) -> None:
        with self.lock:
            self.waited(dict(self.counts))

    def backward_began(self, stream_id: int) -> None:
        with self.lock:
            self.callers.append(stream_id)

    def backward_ended(self) -> None:
        with self.lock:
            self.callers.pop()

    def collective_issued(
        self, lane: int, name: str, operands: Sequence[torch.Tensor], written: Sequence[torch.Tensor]
    ) -> int:
        """A collective of the ``lane`` was; returns its number there."""
        with self.lock:
            stream_id = -lane
            self.merge(self.clock(stream_id), self.snapshot(int(lib.maca_streams_current())))
            number = self.counts[stream_id] = self.counts.get(stream_id, 0) + 1
            site = sites.here(name)
            buffers = {id(t._payload[0]): t._payload[0] for t in operands if isinstance(t, MacaTensor)}
            written_to = {id(t._payload[0]): t._payload[0] for t in written if isinstance(t, MacaTensor)}
            for key, buffer in {**buffers, **written_to}.items():
                writes = key in written_to
                self.use(buffer, writes, Use(stream_id, number, writes, site))
            return number

    def collective_awaited(self, lane: int, number: int) -> None:
        """The current stream is given nothing more before it is over."""
        with self.lock:
            self.merge(self.clock(int(lib.maca_streams_current())), {-lane: number})

    def waited(self, over: _Clock) -> None:
        """The host waited, so whatever is launched from now on comes after."""
        for clock in (self.host, *self.clocks.values()):
            self.merge(clock, over)

    # what uses memory
    def use(self, buffer: Buffer, writes: bool, use: Use) -> None:
        key = id(buffer)
        history = self.buffers.get(key)
        if history is None:
            history = self.buffers[key] = _History()
            weakref.finalize(buffer, self.buffers.pop, key, None).atexit = False
        known = self.clock(use.stream_id)
        earlier = [history.write] if history.write else []
        if writes:
            earlier += history.reads.values()
        for other in earlier:
            if other.stream_id == use.stream_id or other.number <= known.get(other.stream_id, 0):
                continue
            if self.in_backward() and other.stream_id >= 0:  # CUDA's engine makes the wait
                known[other.stream_id] = other.number
            else:
                self.report(Hazard(other, use, int(buffer.nbytes)))
        if writes:
            history.write = use
            history.reads.clear()
        else:
            history.reads[use.stream_id] = use

    def report(self, hazard: Hazard) -> None:
        pair = hazard.earlier.site, hazard.later.site
        if pair in self.reported:
            return
        self.reported.add(pair)
        if len(hazards) < _MOST:
            hazards.append(hazard)
        warnings.warn(str(hazard), StreamHazardWarning, stacklevel=2)

    def opens(self, operator: str) -> None:
        """Nothing: it reads nothing on the device."""

    def before(self, operator: OpOverload, args: Arguments, kwargs: Keywords | None) -> set[int]:
        """An operator is about to be given its operands; returns the ids of their buffers."""
        operands: dict[int, tuple[Buffer, bool]] = {}
        held: set[int] = set()
        if is_at_once():
            return held
        is_collective = operator.namespace in _COLLECTIVES
        reads_sizes_only = _FACTORY.fullmatch(operator._opname) is not None
        for i, argument in enumerate(operator._schema.arguments):
            value = args[i] if i < len(args) else (kwargs or {}).get(argument.name)
            alias = argument.alias_info
            writes = alias is not None and alias.is_write
            for t in flatten(value if isinstance(value, (list, tuple)) else [value]):
                if not isinstance(t, MacaTensor):
                    continue
                buffer = t._payload[0]
                held.add(id(buffer))
                if is_collective:
                    if operator._opname == "wait_tensor":
                        self.tensor_awaited(buffer)
                elif writes or (alias is None and not reads_sizes_only):  # a view touches no memory
                    operands[id(buffer)] = (buffer, writes or operands.get(id(buffer), (None, False))[1])
        if operands:
            with self.lock:
                site = sites.here(str(operator))
                stream_id, number = self.next()
                for buffer, writes in operands.values():
                    self.use(buffer, writes, Use(stream_id, number, writes, site))
        return held

    def after(self, operator: str, result: Value, held: set[int]) -> None:
        """The operator's results that lie in memory of their own are written."""
        if is_at_once() or operator.split(".")[0] in _COLLECTIVES:
            return
        made = {
            id(t._payload[0]): t._payload[0]
            for t in flatten(result)
            if isinstance(t, MacaTensor) and id(t._payload[0]) not in held
        }
        if made:
            with self.lock:
                site = sites.here(operator)
                stream_id, number = self.next()
                for buffer in made.values():
                    self.use(buffer, True, Use(stream_id, number, True, site))

    def tensor_awaited(self, buffer: Buffer) -> None:
        """By ``wait_tensor``, for the collective that wrote it."""
        with self.lock:
            history = self.buffers.get(id(buffer))
            if history is not None and history.write is not None and history.write.stream_id < 0:
                self.collective_awaited(-history.write.stream_id, history.write.number)

    def in_backward(self) -> bool:
        """Does the calling thread run a node of a backward pass, on the stream it started with?"""
        # the engine's threads start on stream 0; a hook that enters another stream is on its own
        started = lib.maca_streams_current() in (0, *self.callers[-1:])
        return bool(self.callers) and started and torch._C._current_graph_task_id() != -1

    def next(self) -> tuple[int, int]:
        stream_id = self.callers[-1] if self.in_backward() else int(lib.maca_streams_current())
        self.clock(stream_id)
        number = self.counts[stream_id] = self.counts.get(stream_id, 0) + 1
        return stream_id, number


def enable() -> None:
    """Watches from now on. ``MACA_SANITIZE=1`` does so from the import on."""
    watching = Sanitizer()
    streams.observe(watching)
    sites.watch(watching)
    sites.record("sanitizer", True)


def disable() -> None:
    """Watches no more; :data:`hazards` stay."""
    streams.observe(None)
    sites.watch(None)
    sites.record("sanitizer", False)
