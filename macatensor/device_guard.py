"""The device guard, and errors of our operators in the autograd engine.

PyTorch's guard asks Python for its device type, also from a destructor that runs while an operator's exception
unwinds the engine. Python's error indicator is still set then, so any Python call fails, and the process ends with
"terminate called without an active exception". Our guard takes the pending exception, answers, and gives the
exception back where the engine returns; the engine itself has only lost it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from macatensor import stream
from macatensor.ffi import lib

_TYPE = torch._C._autograd.DeviceType.PrivateUse1
_pending: list[BaseException] = []
# A C function that returns while an exception is pending fails with a SystemError that names it. The interpreter
# checks calls through a partial; a plain call of a builtin it may specialize, and then it does not.
_probe = functools.partial(id, None)


class MacaDeviceGuard(torch._C._acc.DeviceGuard):
    """One device: there is nothing to switch."""

    def type_(self) -> Any:
        """The device type. Called by C++, several times for each node of a backward pass."""
        try:
            _probe()
        except SystemError as error:
            if error.__cause__ is not None:
                _pending.append(error.__cause__)
        return _TYPE


def register() -> None:
    """Lets ``backward()`` raise what the guard has taken. Costs CPU-only code one Python call a backward pass."""
    run = torch.autograd.graph._engine_run_backward

    @functools.wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        watching = stream.observer
        if watching is not None:
            watching.backward_began(lib.maca_streams_current())
        try:
            return run(*args, **kwargs)
        except SystemError:
            if not _pending:
                raise
            taken = _pending.pop()
            _pending.clear()
        finally:
            if watching is not None:
                watching.backward_ended()
        raise taken

    torch.autograd.graph._engine_run_backward = run_backward
    torch.autograd._engine_run_backward = run_backward  # type: ignore[attr-defined]
