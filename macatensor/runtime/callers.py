"""Which line of the user's program called: warnings name it, and not one of this package or PyTorch."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from macatensor.runtime.boxed import Value

OURS = str(Path(__file__).parents[1]) + os.sep
TORCH = str(Path(torch.__file__).parent) + os.sep


def _depth() -> int:
    """How many frames above the caller of :func:`warn` is the first line outside of this package and PyTorch."""
    depth, frame = 1, sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((OURS, TORCH, "<frozen")):
        depth, frame = depth + 1, frame.f_back
    return depth


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns of the user's line."""
    warnings.warn(message, category, stacklevel=_depth() + 1)


def repeat_warnings(function: Callable[[], Value]) -> Value:
    """What ``function``, of PyTorch, returns; warns of the user's line where it warns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function()
    for warning in caught:
        warn(str(warning.message), warning.category)
    return result
