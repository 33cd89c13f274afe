"""Adam, LAMB and SGD, a launch or a few for all parameters of a dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from macatensor.runtime.boxed import Value

from ..multi_tensor_apply import functions, multi_tensor_applier

Params = Iterable[Tensor] | Iterable[dict[str, Value]]


class _Zeroing(torch.optim.Optimizer):
    set_grad_none: bool

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Lets gradients go where ``set_grad_none`` was given, else fills them with zeros."""
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)


def _loss(closure: Callable[[], Value] | None) -> Value:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class _OnLists(_Zeroing):
    """Groups count their own steps, as apex's do."""

    def _lists(self, group: dict[str, Value]) -> list[list[list[Tensor]]]:
        """Gradients, parameters and both moments of the group, by dtype. Raises RuntimeError for sparse gradients."""
        by_dtype: dict[torch.dtype, list[list[Tensor]]] = {}
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.is_sparse:
                raise RuntimeError(
                    f"{type(self).__name__} does not support sparse gradients, please consider SparseAdam instead"
                )
            state = self.state[p]
            if not state:
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
            lists = by_dtype.setdefault(p.dtype, [[], [], [], []])
            for one, tensor in zip(lists, (p.grad, p, state["exp_avg"], state["exp_avg_sq"])):
                one.append(tensor)
        return list(by_dtype.values())

    def _flag(self) -> Tensor:
        return torch.zeros(1, dtype=torch.int, device=self.param_groups[0]["params"][0].device)


class FusedAdam(_OnLists):
    """Adam with decoupled weight decay, or with ``adam_w_mode=False`` the plain one. Raises RuntimeError for ``amsgrad``."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        if master_weights:
            raise NotImplementedError(
                "FusedAdam's own master weights are not served on maca; use apex.amp at O2"
            )
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)
        self.adam_w_mode, self.set_grad_none = int(adam_w_mode), set_grad_none

    @torch.no_grad()
    def step(self, closure: Callable[[], Value] | None = None) -> Value:
        """One step; the loss of ``closure``, if there is one."""
        loss = _loss(closure)
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            beta1, beta2 = group["betas"]
            for lists in self._lists(group):
                multi_tensor_applier(
                    functions.multi_tensor_adam, self._flag(), lists, group["lr"], beta1, beta2, group["eps"],
                    group["step"], self.adam_w_mode, int(group["bias_correction"]), group["weight_decay"],
                )  # fmt: skip
        return loss


class FusedLAMB(_OnLists):
    """LAMB: Adam's update scaled by each parameter's norm over the update's, of gradients whose norm over all parameters is
    clipped to ``max_grad_norm``. Raises RuntimeError for ``amsgrad``."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedLAMB does not support the AMSGrad variant.")
        defaults = {
            "lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "grad_averaging": grad_averaging, "max_grad_norm": max_grad_norm,
        }  # fmt: skip
        super().__init__(params, defaults)
        self.adam_w_mode, self.set_grad_none, self.use_nvlamb = int(adam_w_mode), set_grad_none, use_nvlamb

    @torch.no_grad()
    def step(self, closure: Callable[[], Value] | None = None) -> Value:
        """One step; the loss of ``closure``, if there is one."""
        loss = _loss(closure)
        flag = self._flag()
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not gradients:
            return loss
        total = multi_tensor_applier(functions.multi_tensor_l2norm, flag, [gradients], False)[0]
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            beta1, beta2 = group["betas"]
            for lists in self._lists(group):
                multi_tensor_applier(
                    functions.multi_tensor_lamb, flag, lists, group["lr"], beta1, beta2, group["eps"], group["step"],
                    int(group["bias_correction"]), group["weight_decay"], int(group["grad_averaging"]),
                    self.adam_w_mode, total, self.defaults["max_grad_norm"], self.use_nvlamb,
                )  # fmt: skip
        return loss


class FusedSGD(_Zeroing, torch.optim.SGD):
    """``torch.optim.SGD`` on lists of tensors. ``materialize_master_grads`` changes nothing. Raises NotImplementedError for
    ``wd_after_momentum``."""

    def __init__(
        self,
        params: Params,
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool = False,
    ) -> None:
        if wd_after_momentum:
            raise NotImplementedError("FusedSGD with wd_after_momentum is not served on maca; leave it False")
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, foreach=True)
        self.set_grad_none = set_grad_none
