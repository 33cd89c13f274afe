"""Python stacks: walked on every call, put into words once for each distinct one."""

from __future__ import annotations

import os
import sys
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
class Stacks(dict[bytes, int]):
    """Numbers of the stacks seen, by ``native_recorder.stack_key()``: that is made at every call by C, 0.1 us a frame, of
    the codes and the places in them of all frames."""

    def __init__(self, write: Callable[[int, list[str]], None]) -> None:
        """``write`` is given the number of each new stack and its frames: innermost last, ``file:line function``."""
        super().__init__()
        self._write = write
        self._numbers: dict[tuple[tuple[int, int], ...], int] = {}  # by the frames that are the program's
        self._kept: dict[int, CodeType] = {}  # so that no other code gets an address that is in a key

    def here(self) -> int:
        """The calling stack's number."""
        return self[native_recorder.stack_key()]

    def __missing__(self, key: bytes) -> int:
        """Of a stack that was not met before, or only with other frames that are not the program's."""
        shown, frames = [], []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            self._kept[id(code)] = code
            file = code.co_filename
            if not (file.startswith(_OURS) or file in _BETWEEN):
                shown.append((id(code), frame.f_lasti))
                frames.append(f"{file}:{frame.f_lineno} {code.co_name}")
            frame = frame.f_back
        known = len(self._numbers)
        number = self[key] = self._numbers.setdefault(tuple(shown), known)
        if number == known:
            frames.reverse()
            self._write(number, frames)
        return number
