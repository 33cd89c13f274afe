"""Derivatives of activations that PyTorch takes apart on devices other than its own, where a kernel serves them.

Apart, ``silu_backward`` is six launches, whose factors are denormal before products are: 51 ULP off in the tail. A
call that autograd is to differentiate stays PyTorch's.
"""

from __future__ import annotations

import torch
from torch._ops import OpOverload

from macatensor.operators.whole import ON_AUTOGRAD_KEY, overload, taken_apart
from macatensor.runtime.uncompiled import uncompiled


@uncompiled
class _Whole:
    """What the dispatcher calls for an overload on tensors of the device."""

    def __init__(self, func: OpOverload):
        self.func = func

    def __call__(self, grad_output: torch.Tensor, self_: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor
        if torch.is_grad_enabled() and (grad_output.requires_grad or self_.requires_grad):
            result = taken_apart(self.func, grad_output, self_)
            return result
        with torch._C._AutoDispatchBelowAutograd():
            result = self.func(grad_output, self_)
            return result


# without autograd they are rows of the op table
for _name in ("silu_backward.default", "mish_backward.default"):
    ON_AUTOGRAD_KEY[_name] = _Whole(overload(_name))
