"""Whether a graph is being captured, for those who must refuse then what cannot be part of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._ops import OpOverload

current: object | None = None  # the MacaGraph that is being captured
operator: OpOverload | None = None  # the OpOverload that runs meanwhile, the outermost


def begin(graph: object) -> None:
    """A graph is being captured from now on."""
    global current
    current = graph


def end() -> None:
    """No graph is being captured any more."""
    global current
    current = None


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
    """Raises RuntimeError while a graph is being captured: ``what`` needs the host, which no replay asks."""
    if current is not None:
        by = f"{operator}: " if operator is not None else ""
        raise RuntimeError(
            f"{by}{what} is not permitted while a graph is being captured: a replay repeats launches on the device "
            "only. Do it before the capture, or leave the operator out of the graph"
        )
