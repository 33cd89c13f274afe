"""Where a step of the program ends: at ``optimizer.step()``, at ``prof.step()``, else after a call of the model."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from macatensor.bottlenecks.lines import Line, here

_SOURCES = (
    "call of the model",
    "optimizer.step()",
    "prof.step()",
)  # each is believed rather than those before it


def uncompiled_hook(hook: Callable[..., None]) -> Callable[..., None]:
    """``hook`` outside compiled programs: Dynamo traces hooks with what they are on."""

    def call(*given: object) -> None:
        if not torch.compiler.is_compiling():
            hook(*given)

    return call


class Clock:
    """Calls ``tick()`` where a step ends. One source ticks: the first optimizer, model or profile of its kind."""

    def __init__(self, tick: Callable[[], None]):
        self._tick = tick
        self._rank = -1
        self._key: object = None
        self._main = threading.get_ident()
        self._depth = 0
        self.optimizer: torch.optim.Optimizer | None = None
        self.made_at: dict[int, Line] = {}  # optimizers by id: where they were made
        self.stepped_at: Line | None = None
        self.in_optimizer: Callable[[bool], None] = lambda entered: (
            None
        )  # told when the optimizer begins, ends

    @property
    def source(self) -> str:
        """What ends a step; empty while nothing did."""
        return _SOURCES[self._rank] if self._rank >= 0 else ""

    def _ended(self, rank: int, key: object) -> None:
        if threading.get_ident() != self._main or rank < self._rank:
            return
        if rank > self._rank:
            self._rank, self._key = rank, key
        if key == self._key:
            self._tick()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Looks for steps in the block."""
        module: Any = torch.nn.modules.module
        optimizer_class: Any = torch.optim.Optimizer
        profile_class: Any = torch.profiler.profile
        make, step = optimizer_class.__init__, profile_class.step

        def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self.made_at[id(optimizer)] = here()
            make(optimizer, *args, **kwargs)

        def stepped(profile: Any) -> None:
            self._ended(2, id(profile))

        def begins(optimizer: Any, args: object, kwargs: object) -> None:
            self.in_optimizer(True)

        def ends(optimizer: Any, args: object, kwargs: object) -> None:
            self.in_optimizer(False)
            if self.optimizer is None:
                self.optimizer, self.stepped_at = optimizer, here()
            self._ended(1, id(optimizer))

        def enters(called: Any, args: object) -> None:
            if threading.get_ident() == self._main:
                self._depth += 1

        def leaves(called: Any, args: object, result: object) -> None:
            if threading.get_ident() != self._main:
                return
            self._depth = max(0, self._depth - 1)
            if self._depth == 0 and not self.made_at:
                self._ended(0, 0)

        optimizer_class.__init__ = made
        profile_class.step = stepped
        handles: list[Any] = [
            optimizers.register_optimizer_step_pre_hook(uncompiled_hook(begins)),
            optimizers.register_optimizer_step_post_hook(uncompiled_hook(ends)),
            module.register_module_forward_pre_hook(uncompiled_hook(enters)),
            module.register_module_forward_hook(uncompiled_hook(leaves), always_call=True),
        ]
        try:
            yield
        finally:
            optimizer_class.__init__ = make
            profile_class.step = step
            for handle in handles:
                handle.remove()
