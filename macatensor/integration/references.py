"""PyTorch's references in Python are meta kernels of most operators. Their first call loads Dynamo, 0.5 to 1 s of a first
model's, to say that it shall not look into them: while nobody has loaded it, nobody looks."""

from __future__ import annotations

import sys
from types import FunctionType

from torch._compile import _disable_dynamo

from macatensor.runtime.after_import import after_import

_KNOWN = "__dynamo_disable"  # under which torch._compile keeps what it calls in a function's place
_DISABLED = _disable_dynamo(lambda: None).__code__  # of every function that it has decorated


def register() -> None:
    """Calls the references as they are, until Dynamo is loaded. Other versions of PyTorch load it as ever."""
    if "torch._dynamo" in sys.modules or not {_KNOWN, "fn"} <= {*_DISABLED.co_consts, *_DISABLED.co_freevars}:
        return
    functions = _disabled_functions()
    for function in functions:
        setattr(function, _KNOWN, function)
    after_import("torch._dynamo", lambda: _leave(functions))


def _leave(functions: list[FunctionType]) -> None:
    for function in functions:
        if vars(function).get(_KNOWN) is function:
            delattr(function, _KNOWN)


def _disabled_functions() -> list[FunctionType]:
    """What stands behind the decorators of the references; each keeps the function that it wraps in a cell."""
    found: dict[int, FunctionType] = {}
    seen: set[int] = set()
    waiting: list[object] = []
    for name, module in list(sys.modules.items()):
        if name.startswith(("torch._refs", "torch._decomp", "torch._meta_registrations")):
            waiting += vars(module).values()
    while waiting:
        function = waiting.pop()
        if not isinstance(function, FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        wrapped = cells["fn"].cell_contents if "fn" in cells else None
        if function.__code__ is _DISABLED and isinstance(wrapped, FunctionType):
            found[id(wrapped)] = wrapped
        waiting.append(wrapped)
    return list(found.values())
