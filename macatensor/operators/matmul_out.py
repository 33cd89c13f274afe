"""``torch.matmul(..., out=)``: PyTorch's own computes folded operands into a view of ``out``, and copies that to ``out``, in
the wrong shape, unless the two share a storage. Those of a wrapper have none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from macatensor.operators.whole import give, whole
from macatensor.runtime.boxed import Value

_OUT = torch.ops.aten.matmul.out
# PyTorch's own in C++; decompose() calls one in Python that checks less
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


@whole("matmul.out")
def matmul_out(self: Tensor, other: Tensor, *, out: Tensor) -> Value:
    may_fold = max(self.dim(), other.dim()) > 2 and min(self.dim(), other.dim()) <= 2
    has_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (self, other, out))
    if not may_fold or has_gradient or out.dtype != self.dtype:  # of the last two it says what is wrong
        result: Tensor = _OUT._op_dk(_COMPOSITE, self, other, out=out)
        return result
    if other.dim() == 2 and out.shape == (*self.shape[:-1], other.shape[1]) and out.is_contiguous():
        torch.mm(self.flatten(0, -2), other, out=out.flatten(0, -2))
        return out
    return give(out, torch.matmul(self, other))
