"""``torch.matmul(..., out=)``: PyTorch's own computes folded and batched operands into a view of ``out``, and copies that to
``out``, unless the two share a storage. Those of a wrapper have none: it would be a copy onto itself, or in the wrong shape.
"""

from __future__ import annotations

import torch
from torch import Tensor

from macatensor.operators.whole import give, taken_apart, whole
from macatensor.runtime.boxed import Value


@whole("matmul.out")
def matmul_out(self: Tensor, other: Tensor, *, out: Tensor) -> Value:
    has_views = max(self.dim(), other.dim()) > 2
    has_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (self, other, out))
    if not has_views or has_gradient or out.dtype != self.dtype:  # of the last two it says what is wrong
        return taken_apart(torch.ops.aten.matmul.out, self, other, out=out)
    if other.dim() == 2 and out.shape == (*self.shape[:-1], other.shape[1]) and out.is_contiguous():
        torch.mm(self.flatten(0, -2), other, out=out.flatten(0, -2))
        return out
    if self.dim() == other.dim() == 3 and self.shape[0] == other.shape[0]:
        return torch.bmm(self, other, out=out)
    return give(out, torch.matmul(self, other))
