"""The device guard, the thread that a backward pass runs on, and errors of our operators in the autograd engine.

The engine has a thread for each device that is no CPU. Handing every pass to it and waiting takes 100 us and more where
the pass of a small result takes 50; and the device's launches are asynchronous where they are long. So a pass whose
roots all are the device's runs on the thread that calls it, as the CPU's do. So do those of the host where the engine has
no thread for the device: its threads are started by the first pass of a program, which may come before the device is known.

PyTorch's guard asks Python for its device type, several times for each node of a backward pass, also from a destructor
that runs while an operator's exception unwinds the engine. Python's error indicator is still set then, so any Python call
fails, and the process ends with "terminate called without an active exception". Our guard takes the pending exception,
answers, and gives the exception back where the engine returns; the engine itself has only lost it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from macatensor.runtime import streams, switches
from macatensor.runtime.ffi import lib, native
from macatensor.runtime.tensor import MacaTensor

_T = TypeVar("_T")
_pending: list[BaseException] = []


class MacaDeviceGuard(torch._C._acc.DeviceGuard):
    """One device: there is nothing to switch."""

    type_ = native.KeptError(torch._C._autograd.DeviceType.PrivateUse1, _pending)  # type: ignore[assignment]


def _are_of(kinds: tuple[str, ...], roots: Iterable[object]) -> bool:
    """Are all tensors of the device, or of such kinds? Functional transforms wrap them; a GradientEdge says nothing of its
    device."""
    for root in roots:
        if type(root) is not MacaTensor and not (
            isinstance(root, torch.Tensor) and root.device.type in kinds
        ):
            return False
    return True


def _on_calling_thread(run: Callable[..., _T], kinds: tuple[str, ...]) -> Callable[..., _T]:
    """``run``, the engine's entry, for roots on such devices without its threads."""
    is_enabled, enable = torch._C._is_multithreading_enabled, torch._C._set_multithreading_enabled

    def run_here(t_outputs: Iterable[object], *args: object, **kwargs: object) -> _T:
        if not (_are_of(kinds, t_outputs) and is_enabled()):
            return run(t_outputs, *args, **kwargs)
        enable(False)  # of this thread, and of what the engine runs for it
        try:
            return run(t_outputs, *args, **kwargs)
        finally:
            enable(True)

    return run_here


def register(late: bool = False) -> None:
    """Lets ``backward()`` run on the calling thread and raise what the guard has taken. Costs CPU-only code one Python
    call a backward pass. ``late``: the engine has started without a thread for the device."""
    engine: Callable[..., tuple[torch.Tensor, ...]] = torch.autograd.graph._engine_run_backward
    kinds = ("maca", "cpu") if late else ("maca",)
    run = engine if switches.BACKWARD_THREAD.value() and not late else _on_calling_thread(engine, kinds)

    @functools.wraps(engine)
    def run_backward(*args: object, **kwargs: object) -> tuple[torch.Tensor, ...]:
        watching = streams.observer
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
