"""What compiled programs became, launch by launch: for people, who ask with ``macatensor compile``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from macatensor.compiling.listeners import Listeners


@dataclass(frozen=True)
class Step:
    """A launch of the recording. ``fused``: the number of the program that it is part of, None where it is none;
    ``bytes``: that its operands span, ``written`` those of results."""

    operator: str
    kernel: str
    implementation: str
    fused: int | None
    bytes: int
    written: int


@dataclass(frozen=True)
class Explanation:
    """A tape. ``launches``: after fusion; ``scratch_bytes``: for all that lies between inputs and results."""

    inputs: list[str]
    steps: list[Step]
    launches: int
    scratch_bytes: int


_listeners = Listeners[Explanation]()


def is_asked() -> bool:
    return bool(_listeners)


def tell(explanation: Explanation) -> None:
    """Gives it to everyone who asked."""
    _listeners.tell(explanation)


def explaining() -> AbstractContextManager[list[Explanation]]:
    """The tapes that are recorded inside."""
    return _listeners.listening()
