"""Keeps torch.compile from compiling the recorder, which is called in the middle of what it compiles."""

from __future__ import annotations

from types import FunctionType
from typing import Any, TypeVar

_Thing = TypeVar("_Thing")


def uncompiled(thing: _Thing) -> _Thing:
    """Marks a function, or all functions of a class, and what they call.

    It costs nothing when they are called; PyTorch's decorator for it costs 60 us a call.
    """
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    functions: Any = vars(thing).values() if isinstance(thing, type) else [thing]
    for function in functions:
        if isinstance(function, FunctionType):
            set_code_exec_strategy(
                function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
            )
    return thing
