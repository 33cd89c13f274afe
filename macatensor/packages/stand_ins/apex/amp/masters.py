"""What apex keeps beside an optimizer: float32 copies of parameters in a half, and gradients of earlier passes."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .scaler import LossScaler

_HALVES = (torch.float16, torch.bfloat16)


class Stash:
    """Of one optimizer, whose ``step``, ``zero_grad`` and ``add_param_group`` it replaces."""

    def __init__(self, optimizer: torch.optim.Optimizer, with_masters: bool) -> None:
        self.optimizer = optimizer
        self.halves: list[Tensor] = []
        self.masters: list[Tensor] = []
        self._half_of: dict[int, Tensor] = {}  # by the identity of its master
        self._earlier: dict[int, Tensor] = {}  # unscaled gradients, by the identity of their parameter
        self.skip = False
        self.is_scaled = False
        if with_masters:
            for group in optimizer.param_groups:
                self._take(group)
        self._replace("step", self._step)
        self._replace("zero_grad", self._zero_grad)
        if with_masters:
            self._replace("add_param_group", self._add)

    def _replace(self, name: str, ours: Callable[..., Any]) -> None:
        theirs = getattr(self.optimizer, name)

        @functools.wraps(theirs)
        def call(_: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            return ours(theirs, *args, **kwargs)

        # a method, as learning rate schedulers expect
        setattr(self.optimizer, name, types.MethodType(call, self.optimizer))

    def _take(self, group: dict[str, Any]) -> None:
        """Puts float32 copies in the place of the group's parameters in a half."""
        for i, parameter in enumerate(group["params"]):
            if parameter.dtype not in _HALVES or not parameter.requires_grad:
                continue
            master = parameter.detach().clone().float().requires_grad_()
            group["params"][i] = master
            self.halves.append(parameter)
            self.masters.append(master)
            self._half_of[id(master)] = parameter
            if parameter in self.optimizer.state:
                state = self.optimizer.state.pop(parameter)
                self.optimizer.state[master] = {
                    k: v.float() if isinstance(v, Tensor) and v.dtype in _HALVES else v
                    for k, v in state.items()
                }

    def _step(self, theirs: Callable[..., Any], closure: Callable[[], Any] | None = None) -> Any:
        if closure is not None:
            raise RuntimeError("Currently, Amp does not support closure use with optimizers.")
        if self.skip:
            self.skip = False
            return None
        result = theirs()
        if self.masters:
            with torch.no_grad():
                torch._foreach_copy_(self.halves, self.masters)
        return result

    def _zero_grad(self, theirs: Callable[..., Any], set_to_none: bool = True) -> None:
        theirs(set_to_none)
        for parameter in self.halves:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.detach_().zero_()

    def _add(self, theirs: Callable[..., Any], group: dict[str, Any]) -> None:
        before = len(self.optimizer.param_groups)
        theirs(group)
        for added in self.optimizer.param_groups[before:]:
            self._take(added)

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def before_backward(self) -> None:
        """Puts gradients of earlier passes aside: they are unscaled, and those to come are not."""
        if self.is_scaled:
            return
        self._earlier = {id(p): p.grad for p in self._parameters() if p.grad is not None}
        for parameter in (*self._parameters(), *self.halves):
            parameter.grad = None

    @torch.no_grad()
    def after_backward(self, scaler: LossScaler) -> None:
        """Unscales the gradients, those of parameters in a half as their masters', and adds what was put aside. The halves
        keep theirs, scaled."""
        for parameter in self._parameters():
            half = self._half_of.get(id(parameter))
            if half is not None:
                parameter.grad = None if half.grad is None else half.grad.float()
        owners = [p for p in self._parameters() if p.grad is not None]
        scaler.unscale([p.grad for p in owners if p.grad is not None])
        for parameter in self._parameters():
            before = self._earlier.get(id(parameter))
            if before is not None:
                parameter.grad = before if parameter.grad is None else parameter.grad.add_(before)
        self._earlier.clear()
