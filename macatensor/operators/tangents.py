"""What forward-mode differentiation asks of the memory of a tangent and its primal."""

from __future__ import annotations

import torch
from torch._ops import OpOverload

from macatensor.dispatch.launcher import special
from macatensor.dispatch.rowless import without_row
from macatensor.dispatch.signature import read
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.tensor import MacaTensor


@special("aten._has_same_storage_numel.default")
def _has_same_storage_numel(func: OpOverload) -> Launcher:
    """Asks of a tangent whether its memory is as large as its primal's: PyTorch's sees what a tensor reaches of it."""

    def held(t: torch.Tensor) -> int:
        nbytes = t._payload[0].nbytes if isinstance(t, MacaTensor) else t.untyped_storage().nbytes()
        return nbytes // t.element_size()

    return lambda args, kwargs: held(args[0]) == held(args[1])


@special("aten._new_zeros_with_same_feature_meta.default")
def _new_zeros_with_same_feature_meta(func: OpOverload) -> Launcher:
    """A tangent's zeros: PyTorch's takes as many sizes of the batch as it is told, past their end, too."""
    signature = read(func)

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        self, _, batch = signature.fill(args, kwargs)
        if not 0 <= batch <= self.dim():
            raise RuntimeError(
                f"_new_zeros_with_same_feature_meta got self_num_batch_dims={batch} for a tensor of {self.dim()} dimensions; "
                f"accepted: 0 to {self.dim()}"
            )
        return without_row(func, args, kwargs, "PyTorch makes it of zeros")

    return run
