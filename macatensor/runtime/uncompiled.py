"""Keeps torch.compile from compiling ours: what C calls in the middle of a compiled program would be a new frame to it.

Launchers that make plans and the accuracy recorder change tables and call PyTorch's meta kernels; traced, they are slow
at best, and fail where a table changes meanwhile.
"""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

_Thing = TypeVar("_Thing")

_marked: set[type] = set()


def uncompiled(thing: _Thing) -> _Thing:
    """Marks a function, or all functions of a class and its bases, and what they call.

    It costs nothing when they are called; PyTorch's decorator for it costs 60 us a call.
    """
    if isinstance(thing, type):
        if thing in _marked:
            return thing
        _marked.add(thing)
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    held: list[object] = (
        [f for t in thing.__mro__ for f in vars(t).values()] if isinstance(thing, type) else [thing]
    )
    for function in held:
        if isinstance(function, FunctionType) and not function.__module__.startswith("torch."):
            set_code_exec_strategy(
                function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
            )
    return thing
