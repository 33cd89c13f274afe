"""Python stacks: walked on every call, put into words once for each distinct one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import CodeType, FrameType

import torch

_OURS = str(Path(__file__).parents[1]) + os.sep
_TORCH = str(Path(torch.__file__).parent) + os.sep
# what runs between a call and the line that made it
_BETWEEN = tuple(
    _TORCH + name
    for name in (
        "nn/modules/module.py",
        "overrides.py",
        "utils/_python_dispatch.py",
        "utils/_contextlib.py",
        "_ops.py",
        "_compile.py",
        "_dynamo/eval_frame.py",
    )
)


class Stacks:
    """Numbers of the stacks seen. A walk takes 0.1 us a frame: codes and places in them are compared, no text."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}
        # by id: the hash of a code object is one of all its constants, 0.5 us
        self._shown: dict[int, bool] = {}
        self._kept: list[CodeType] = []  # the ids stay their own

    def here(self, depth: int = 1) -> tuple[int, list[str] | None]:
        """The calling stack's number, and its frames when it is new: innermost last, ``file:line function``."""
        frame: FrameType | None = sys._getframe(depth)
        shown = self._shown
        key: list[int] = []
        while frame is not None:
            code = frame.f_code
            number = id(code)
            show = shown.get(number)
            if show is None:
                file = code.co_filename
                show = shown[number] = not (file.startswith(_OURS) or file in _BETWEEN)
                self._kept.append(code)
            if show:
                key.append(number)
                key.append(frame.f_lasti)
            frame = frame.f_back
        found = tuple(key)
        known = self._numbers.get(found)
        if known is not None:
            return known, None
        known = self._numbers[found] = len(self._numbers)
        return known, self._words(depth + 1)

    def _words(self, depth: int) -> list[str]:
        frames = []
        frame: FrameType | None = sys._getframe(depth)
        while frame is not None:
            code = frame.f_code
            if self._shown[id(code)]:
                frames.append(f"{code.co_filename}:{frame.f_lineno} {code.co_name}")
            frame = frame.f_back
        frames.reverse()
        return frames
