"""A call while it runs, and what a thread of the program is doing."""

from __future__ import annotations

import json
import threading
from array import array
from typing import Any

from macatensor.accuracy.recording.uncompiled import uncompiled
from macatensor.ffi import native

Open: Any = native.RecordedCall  # (level, name, op, direction): a call that has begun, and its line


@uncompiled
class Nodes:
    """Which forward call made an autograd node, by its sequence number: PyTorch counts nodes in each thread.

    Arrays, since a dictionary would take 200 bytes for each operator of the program.
    """

    __slots__ = ("last", "sequence", "call", "api", "stack", "flags")

    def __init__(self) -> None:
        self.last = 0
        self.sequence, self.call, self.api, self.stack = array("q"), array("q"), array("q"), array("q")
        self.flags = array("b")

    def add(self, made: int, call: Any, parent: Any) -> None:
        """A forward operator whose node autograd has just made, as the thread's ``made``-th."""
        self.last = made
        self.sequence.append(made - 1)
        self.call.append(call.number)
        self.api.append(-1 if parent is None else parent.serial)
        self.stack.append(-1 if call.stack is None else call.stack)
        self.flags.append(call.matched + 2 * (call.unit is True))


class Thread:
    """What a thread of the program is doing."""

    __slots__ = ("name", "text", "open", "nodes", "number")

    def __init__(self, number: int) -> None:
        self.number = number  # identifiers are used again
        named = [t.name for t in threading.enumerate() if t.ident == threading.get_ident()]
        self.name = named[0] if named else "autograd"  # the autograd engine's threads are unknown to Python
        self.text = f',"thread":{json.dumps(self.name)}'
        self.open: list[Any] = []
        self.nodes = Nodes()
