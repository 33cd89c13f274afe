"""Python stacks: walked on every call, put into words once for each distinct one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import torch

from macatensor.runtime.ffi import native_recorder
from macatensor.runtime.uncompiled import uncompiled

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


@uncompiled
class Stacks(native_recorder.RecordedStacks):
    """Numbers of the stacks seen: ``here()``, of the base class, which is written in C. A walk takes 0.1 us a frame:
    codes and places in them are compared, no text."""

    def __init__(self, write: Callable[[int, list[str]], None]) -> None:
        """``write`` is given the number of each new stack and its frames: innermost last, ``file:line function``."""
        self._write = write

    def is_shown(self, code: CodeType) -> bool:
        """For the base class: is it the program's?"""
        file = code.co_filename
        return not (file.startswith(_OURS) or file in _BETWEEN)

    def is_new(self, number: int, frame: FrameType | None) -> None:
        """For the base class: this stack was not met before."""
        frames = []
        while frame is not None:
            code = frame.f_code
            if self.is_shown(code):
                frames.append(f"{code.co_filename}:{frame.f_lineno} {code.co_name}")
            frame = frame.f_back
        frames.reverse()
        self._write(number, frames)
