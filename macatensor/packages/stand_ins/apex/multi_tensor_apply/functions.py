"""The functions of apex's compiled module on lists of tensors, by PyTorch's ``_foreach_`` and fused operators.

``chunk_size`` means nothing here. ``noop_flag`` [1] becomes 1 where something is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Lists = Sequence[Sequence[Tensor]]


def _note_overflow(noop_flag: Tensor, *lists: Sequence[Tensor]) -> None:
    for tensors in lists:
        norms = torch._foreach_norm(list(tensors), math.inf)
        bad = ~torch.isfinite(torch.stack([n.float() for n in norms])).all()
        noop_flag.copy_(torch.where(bad, torch.ones_like(noop_flag), noop_flag))


def multi_tensor_scale(chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, scale: float) -> None:
    """The second list becomes ``scale`` times the first."""
    sources, results = (list(tensors) for tensors in tensor_lists)
    if not sources:
        return
    torch._foreach_copy_(
        results, torch._foreach_mul([t.to(r.dtype) for t, r in zip(sources, results)], scale)
    )
    _note_overflow(noop_flag, sources)


def multi_tensor_axpby(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, a: float, b: float, arg_to_check: int = -1
) -> None:
    """The third list becomes ``a`` times the first and ``b`` times the second. ``arg_to_check``: 0 or 1 for the list that is
    looked at, -1 for both."""
    first, second, results = (list(tensors) for tensors in tensor_lists)
    if not first:
        return
    scaled = torch._foreach_mul([t.float() for t in first], a)
    torch._foreach_copy_(results, torch._foreach_add(scaled, [t.float() for t in second], alpha=b))
    _note_overflow(noop_flag, *(lists for i, lists in enumerate((first, second)) if arg_to_check in (-1, i)))


def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, per_tensor: bool = False
) -> tuple[Tensor, Tensor]:
    """The norm [1] of all elements in float32, and that of each tensor [n] where ``per_tensor``, else [0]."""
    norms = torch.stack([n.float() for n in torch._foreach_norm(list(tensor_lists[0]), 2)])
    total = torch.linalg.vector_norm(norms).view(1)
    return total, norms if per_tensor else norms.new_empty(0)


def multi_tensor_adam(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, lr: float, beta1: float, beta2: float, epsilon: float,
    step: int, mode: int, bias_correction: int, weight_decay: float,
) -> None:  # fmt: skip
    """A step of Adam for lists of gradients, parameters, and both moments. ``mode`` 1: decoupled weight decay."""
    gradients, parameters, first, second = (list(tensors) for tensors in tensor_lists)
    if not parameters:
        return
    if bias_correction:
        steps = [torch.tensor(float(step), device=parameters[0].device)] * len(parameters)
        update: Callable[..., None] = torch._fused_adamw_ if mode else torch._fused_adam_
        update(
            parameters, gradients, first, second, [], steps, lr=lr, beta1=beta1, beta2=beta2,
            weight_decay=weight_decay, eps=epsilon, amsgrad=False, maximize=False,
        )  # fmt: skip
        return
    if mode:
        torch._foreach_mul_(parameters, 1 - lr * weight_decay)
    elif weight_decay:
        gradients = list(torch._foreach_add(gradients, parameters, alpha=weight_decay))
    torch._foreach_lerp_(first, gradients, 1 - beta1)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
    torch._foreach_addcdiv_(parameters, first, torch._foreach_add(torch._foreach_sqrt(second), epsilon), -lr)


def multi_tensor_lamb(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, lr: float, beta1: float, beta2: float, epsilon: float,
    step: int, bias_correction: int, weight_decay: float, grad_averaging: int, mode: int, global_grad_norm: Tensor,
    max_grad_norm: float, use_nvlamb: bool = False,
) -> None:  # fmt: skip
    """A step of LAMB for lists of gradients, parameters, and both moments. ``mode`` 1: decoupled weight decay. Gradients
    whose ``global_grad_norm`` [1] exceeds ``max_grad_norm`` are scaled to it. The gradients stay as they are."""
    gradients, parameters, first, second = (list(tensors) for tensors in tensor_lists)
    if not parameters:
        return
    clipped = torch.clamp(global_grad_norm.view(()) / max_grad_norm, min=1.0)
    correction1 = 1 - beta1**step if bias_correction else 1.0
    correction2 = 1 - beta2**step if bias_correction else 1.0
    scaled = list(torch._foreach_div(gradients, clipped.to(gradients[0].dtype)))
    if not mode and weight_decay:
        torch._foreach_add_(scaled, parameters, alpha=weight_decay)
    torch._foreach_mul_(first, beta1)
    torch._foreach_add_(first, scaled, alpha=1 - beta1 if grad_averaging else 1.0)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, scaled, scaled, 1 - beta2)
    roots = torch._foreach_sqrt(torch._foreach_div(second, correction2))
    torch._foreach_add_(roots, epsilon)
    updates = list(torch._foreach_div(torch._foreach_div(first, correction1), roots))
    if mode and weight_decay:
        torch._foreach_add_(updates, parameters, alpha=weight_decay)
    if use_nvlamb or weight_decay:
        sizes, lengths = torch._foreach_norm(parameters, 2), torch._foreach_norm(updates, 2)
        size, length = torch.stack(sizes), torch.stack(lengths)
        ratio = torch.where((size != 0) & (length != 0), size / length, torch.ones_like(size))
        torch._foreach_mul_(updates, list(ratio.unbind()))
    torch._foreach_add_(parameters, updates, alpha=-lr)
