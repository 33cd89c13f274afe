"""Forward passes that record a graph which no backward pass ever uses."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from macatensor.bottlenecks.clock import uncompiled_hook
from macatensor.bottlenecks.lines import Line, line_of
from macatensor.runtime.boxed import Value


@dataclass
class Forward:
    """A call of an outermost module that recorded a graph. ``used``: a gradient came back to it."""

    line: Line
    module: str
    training: bool
    step: int
    used: bool = False


class Graphs:
    """Notes outermost calls of modules in the block of :meth:`running`."""

    def __init__(self) -> None:
        self.forwards: list[Forward] = []
        self.step = 0
        self._here = threading.local()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        module: Any = torch.nn.modules.module
        self._here = threading.local()
        handles = [
            module.register_module_forward_pre_hook(uncompiled_hook(self._enters)),
            module.register_module_forward_hook(uncompiled_hook(self._leaves), always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enters(self, module: torch.nn.Module, args: Value) -> None:
        self._here.depth = getattr(self._here, "depth", 0) + 1

    def _leaves(self, module: torch.nn.Module, args: Value, result: Value) -> None:
        depth = self._here.depth = max(0, getattr(self._here, "depth", 1) - 1)
        if depth or not torch.is_grad_enabled():
            return
        recorded = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.grad_fn is not None]
        if not recorded:
            return
        forward = Forward(line_of(sys._getframe(1)), type(module).__name__, module.training, self.step)
        self.forwards.append(forward)

        def use(gradient: torch.Tensor) -> None:
            forward.used = True

        for t in recorded:
            t.register_hook(use)

    def unused(self, before: int) -> list[Forward]:
        """Of steps before the step ``before``. A loss module's call counts where its input came from no other."""
        return [f for f in self.forwards if not f.used and f.step < before]
