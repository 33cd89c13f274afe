"""Which line of the user's program did something."""

from __future__ import annotations

import functools
import linecache
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from macatensor.dispatch.sites import Frame
from macatensor.runtime.callers import OURS, TORCH

# beside PyTorch and this package: Python's own modules, and installed packages where nothing else called
_PYTHON = sysconfig.get_path("stdlib")
_PACKAGES = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))


class Line(NamedTuple):
    """A line of a file. ``file`` is empty where no line of the program is known."""

    file: str = ""
    number: int = 0

    @property
    def code(self) -> str:
        """Its text, stripped; empty where the file cannot be read."""
        return linecache.getline(self.file, self.number).strip() if self.file else ""

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.number}" if self.file else "no line of the program"


NOWHERE = Line()


@functools.cache
def _rank(file: str) -> int:
    """0 of the program's own files, 1 of installed packages, 2 of PyTorch, this package and Python itself."""
    if file.startswith((OURS, TORCH, "<")):
        return 2
    if file.startswith(_PACKAGES):
        return 1
    return 2 if file.startswith(_PYTHON) else 0


def users_line(frames: Iterable[Frame]) -> Line:
    """The innermost line of the program's own files among ``frames``, innermost first; else of an installed package."""
    found = NOWHERE
    for frame in frames:
        rank = _rank(frame.filename)
        if rank == 0:
            return Line(frame.filename, frame.line)
        if rank == 1 and found is NOWHERE:
            found = Line(frame.filename, frame.line)
    return found


def line_of(frame: FrameType | None) -> Line:
    """:func:`users_line` of a running frame and those that called it."""
    found = NOWHERE
    while frame is not None:
        rank = _rank(frame.f_code.co_filename)
        if rank < 2 and (rank == 0 or found is NOWHERE):
            found = Line(frame.f_code.co_filename, frame.f_lineno)
            if rank == 0:
                break
        frame = frame.f_back
    return found


def here() -> Line:
    """The line of the program that called."""
    return line_of(sys._getframe(1))
