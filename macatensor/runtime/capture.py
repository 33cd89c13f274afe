"""Whether a graph is being captured, for those who must refuse then what cannot be part of one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._ops import OpOverload

current: object | None = None  # the MacaGraph or the tape that is being captured
thread: int | None = None  # the only one whose launches are; None: those of all threads
operator: OpOverload | None = None  # the OpOverload that runs meanwhile, the outermost


class Refused(RuntimeError):
    """Something that a captured graph cannot repeat."""


def begin(graph: object, only: int | None = None) -> None:
    """A graph is being captured from now on, of what thread ``only`` launches."""
    global current, thread
    current, thread = graph, only


def end() -> None:
    """No graph is being captured any more."""
    global current, thread
    current = thread = None


def enter(func: OpOverload) -> bool:
    """An operator begins while a graph is captured. Is it the outermost one, which is to :func:`leave`?"""
    global operator
    if operator is not None:
        return False
    operator = func
    return True


def leave() -> None:
    """The outermost operator has ended."""
    global operator
    operator = None


def refuse(what: str) -> None:
    """Raises :class:`Refused` while a graph is being captured: ``what`` needs the host, which no replay asks."""
    if current is not None and (thread is None or thread == threading.get_ident()):
        by = f"{operator}: " if operator is not None else ""
        raise Refused(
            f"{by}{what} is not permitted while a graph is being captured: a replay repeats launches on the device "
            "only. Do it before the capture, or leave the operator out of the graph"
        )
