"""A call while it runs, and what a thread of the program is doing."""

from __future__ import annotations

import json
import threading
from typing import Any

from macatensor.runtime.ffi import native_recorder

Open: Any = native_recorder.RecordedCall  # (level, name, op, direction): a call that has begun, and its line


class Thread:
    """What a thread of the program is doing."""

    __slots__ = ("name", "text", "open", "nodes", "number")

    def __init__(self, number: int) -> None:
        self.number = number  # identifiers are used again
        named = [t.name for t in threading.enumerate() if t.ident == threading.get_ident()]
        self.name = named[0] if named else "autograd"  # the autograd engine's threads are unknown to Python
        self.text = f',"thread":{json.dumps(self.name)}'
        self.open: list[Any] = []
        self.nodes: Any = native_recorder.RecordedNodes()  # of the autograd graph that it has made
