"""``torch.linalg.matrix_rank(..., out=)``: PyTorch's own writes nothing to what is given, below any Python dispatch."""

from __future__ import annotations

import torch
from torch._ops import OpOverload

from macatensor.dispatch.errors import scalar_type
from macatensor.operators.whole import give, whole
from macatensor.runtime.boxed import Value

# with out=, and the overload that gives its result
_OVERLOADS = {
    "out": "default",
    "out_tol_tensor": "tol_tensor",
    "atol_rtol_float_out": "atol_rtol_float",
    "atol_rtol_tensor_out": "atol_rtol_tensor",
}


class _Written:
    """What the dispatcher calls for an overload with ``out=`` on tensors of the device."""

    def __init__(self, overload: str):
        self.result: OpOverload = getattr(torch.ops.aten.linalg_matrix_rank, _OVERLOADS[overload])

    def __call__(self, *args: Value, out: Value, **kwargs: Value) -> Value:
        if not torch.can_cast(torch.int64, out.dtype):
            raise RuntimeError(
                "torch.linalg.matrix_rank: Expected result to be safely castable from Long dtype, but got result with "
                f"dtype {scalar_type(out.dtype)}"
            )
        return give(out, self.result(*args, **kwargs))


for _name in _OVERLOADS:
    whole(f"linalg_matrix_rank.{_name}")(_Written(_name))
