"""What each thread of the program is doing; threads that start while something is recorded are recorded too."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from macatensor.runtime.ffi import native_recorder

Open = native_recorder.RecordedCall  # (level, name, op, direction): a call that has begun, and its line


class Thread:
    """What a thread of the program is doing."""

    __slots__ = ("name", "text", "open", "nodes", "number")

    def __init__(self, number: int) -> None:
        self.number = number  # identifiers are used again
        named = [t.name for t in threading.enumerate() if t.ident == threading.get_ident()]
        self.name = named[0] if named else "autograd"  # the autograd engine's threads are unknown to Python
        self.text = f',"thread":{json.dumps(self.name)}'
        self.open: list[Open] = []
        self.nodes = native_recorder.RecordedNodes()  # of the autograd graph that it has made


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
