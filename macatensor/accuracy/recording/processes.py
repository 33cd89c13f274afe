"""Child processes are recorded too."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol, TypeAlias

from macatensor.accuracy.recording.settings import Settings

_ATTRIBUTE = "_macatensor_recording"

Sessions: TypeAlias = list[tuple[Settings, "Path | None"]]  # settings and run of each
Carry: TypeAlias = Callable[[Sessions], object]


class Recorded(Protocol):
    """A session's recorder, as far as a child is told of it."""

    settings: Settings
    run: Path | None


class Recorders(Protocol):
    """Who knows the recorders that are at work."""

    @property
    def recorders(self) -> Sequence[Recorded]: ...


_carried: Carry = list
_after_fork: Callable[[], object] = list


def continue_by(carried: Carry, after_fork: Callable[[], None]) -> None:
    """Takes what goes on in a child.

    ``carried``, called with each session's settings and run, makes what a child with a fresh interpreter is given:
    unpickling it resumes the recording there. ``after_fork`` is called in a forked child.
    """
    global _carried, _after_fork
    _carried, _after_fork = carried, after_fork


def follow(hub: Recorders) -> Callable[[], None]:
    """Makes processes that start from now on record too; returns what undoes it."""
    start = BaseProcess.start

    def start_recorded(process: BaseProcess) -> None:
        sessions = [(r.settings.for_child(), r.run) for r in hub.recorders]
        setattr(process, _ATTRIBUTE, _carried(sessions))
        try:
            start(process)
        finally:
            process.__dict__.pop(_ATTRIBUTE, None)

    BaseProcess.start = start_recorded  # type: ignore[method-assign,assignment]
    _follow_forks()

    def undo() -> None:
        if BaseProcess.start is start_recorded:
            BaseProcess.start = start  # type: ignore[method-assign]

    return undo


_forks_followed = False


def _follow_forks() -> None:
    global _forks_followed
    if (
        not _forks_followed
    ):  # Python cannot take such a function away; it does nothing while nothing is recorded
        _forks_followed = True
        os.register_at_fork(after_in_child=lambda: _after_fork())
