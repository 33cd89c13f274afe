"""What each thread of the program is doing; threads that start while something is recorded are recorded too."""

from __future__ import annotations

import bisect
import json
import threading
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from macatensor.runtime.ffi import native_recorder
from macatensor.runtime.uncompiled import uncompiled

API, ATEN = 0, 1  # the levels of calls: functions of Python's interface, and operators below
Open = native_recorder.RecordedCall  # (level, name, op, direction): a call that has begun, and its line


class Nodes:
    """Which forward call made an autograd node of a thread, by its sequence number, of which PyTorch counts one in each
    thread. Numbers lie in arrays: a dictionary would take five times the memory."""

    _FACTS = 5

    def __init__(self) -> None:
        self.sequences = array("q")
        self._facts = array("q")

    def add(self, sequence: int, facts: tuple[int, int, int, bool, bool]) -> None:
        """What is known of the forward operator: its number, the serial number of the function it ran in, its stack
        (-1: none), and as the recorder has chosen it ``matched`` and ``unit``."""
        self.sequences.append(sequence)
        self._facts.extend(facts)

    def of(self, sequence: int) -> array[int] | None:
        """The facts of the operator that made a node; of a node that was made for none the next one's."""
        at = bisect.bisect_left(self.sequences, sequence)
        return self._facts[at * self._FACTS : (at + 1) * self._FACTS] or None


@uncompiled
class Thread:
    """What a thread of the program is doing."""

    __slots__ = ("name", "text", "open", "nodes", "number")

    def __init__(self, number: int) -> None:
        self.number = number  # identifiers are used again
        named = [t.name for t in threading.enumerate() if t.ident == threading.get_ident()]
        self.name = named[0] if named else "autograd"  # the autograd engine's threads are unknown to Python
        self.text = f',"thread":{json.dumps(self.name)}'
        self.open: list[Open] = []
        self.nodes = Nodes()

    def node_made(self, count: int, call: Open, function: int) -> None:
        """For C: the thread has made so many autograd nodes when an operator begins, the last one for this."""
        self.nodes.add(count - 1, (call.number, function, call.stack, call.matched, call.unit is True))


class Entered(Protocol):
    """Where a thread's calls are seen inside of ``entered()``."""

    def entered(self) -> AbstractContextManager[None]: ...


def follow(hub: Entered) -> Callable[[], None]:
    """Makes threads that start from now on enter the modes; returns what undoes it.

    Threads that run already cannot be reached: modes are a thread's own.
    """
    start = threading.Thread.start

    def start_recorded(thread: threading.Thread) -> None:
        own = thread.__dict__.get("run")
        run = thread.run

        def run_recorded() -> None:
            _restore(thread, own)
            with hub.entered():
                run()

        thread.run = run_recorded  # type: ignore[method-assign]
        try:
            start(thread)
        except BaseException:
            _restore(thread, own)
            raise

    threading.Thread.start = start_recorded  # type: ignore[method-assign,assignment]

    def undo() -> None:
        if threading.Thread.start is start_recorded:
            threading.Thread.start = start  # type: ignore[method-assign]

    return undo


def _restore(thread: threading.Thread, own: Callable[[], None] | None) -> None:
    if own is None:
        thread.__dict__.pop("run", None)
    else:
        thread.run = own  # type: ignore[method-assign]
