"""Operators of the recorder's own, unseen by the program's modes, autograd, tracers and transforms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def quiet() -> Iterator[None]:
    """What runs inside is not recorded, differentiated, traced, transformed or autocast."""
    with ExitStack() as stack:
        if torch._C._get_tracing_state() is not None:
            stack.enter_context(untraced())
        if torch._C._functorch.peek_interpreter_stack() is not None:
            from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

            stack.enter_context(temporarily_clear_interpreter_stack())
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.no_grad())
        for kind in ("cpu", "maca", "cuda"):
            if torch._C._is_autocast_available(kind) and torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def untraced() -> Iterator[None]:
    """Inside, ``torch.jit.trace`` does not see that sizes are read."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]
