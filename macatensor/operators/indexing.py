"""What indexing needs before its kernel: masks become positions, host indices move to the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from macatensor.dispatch.kernel_calls import kernel_launcher
from macatensor.dispatch.launcher import special
from macatensor.dispatch.rowless import without_row
from macatensor.dispatch.signature import find_row, read
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.callers import warn
from macatensor.runtime.tensor import MacaTensor


def positions(self: Tensor, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """``indices`` with boolean and byte masks expanded to int64 positions and host tensors moved.

    Raises IndexError as PyTorch does for a mask of another shape and for an index of another dtype.
    """
    expanded: list[Tensor | None] = []
    for index in indices:
        if index is None:
            expanded.append(None)
            continue
        if not isinstance(index, MacaTensor):
            index = index.to(self.device, memory_format=torch.preserve_format)
        if index.dtype is torch.uint8:
            warn("indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.")
        if index.dtype in (torch.bool, torch.uint8):
            start = len(expanded)
            for d in range(index.dim()):
                if start + d >= self.dim() or index.shape[d] != self.shape[start + d]:
                    raise IndexError(
                        f"The shape of the mask {list(index.shape)} at index {d} does not match the shape of the "
                        f"indexed tensor {list(self.shape)} at index {start + d}"
                    )
            expanded.extend(torch.nonzero(index).unbind(1))
        elif index.dtype in (torch.int64, torch.int32):
            expanded.append(index)
        else:
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    return expanded


def _check_fill(indices: Value, values: Value) -> None:
    """Raises PyTorch's error where it writes one number through a mask of bytes: it makes masked_fill_ of that, which
    takes bool alone."""
    masks = [i for i in indices if i is not None]
    if len(masks) == 1 and masks[0].dtype is torch.uint8 and values.numel() == 1:
        raise RuntimeError("masked_fill_ only supports boolean masks, but got mask with dtype unsigned char")


def _preparing(func: Value, position: int) -> Launcher:
    """A launcher that prepares the index list at ``position`` first."""
    found = find_row(func)
    signature = read(func)
    kernel = kernel_launcher(func, *found) if found else None

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        full = signature.fill(args, kwargs)
        self = full[0]
        if not isinstance(self, MacaTensor):  # a host tensor indexed by ours: PyTorch's rule is an error
            raise RuntimeError(
                f"indices should be either on cpu or on the same device as the indexed tensor ({self.device})"
            )
        if len(full[position]) > self.dim():
            raise IndexError(
                f"too many indices for tensor of dimension {self.dim()} (got {len(full[position])})"
            )
        if len(full) > 3 and not full[3]:
            _check_fill(full[1], full[2])
        full[position] = positions(self, full[position])
        values = full[2] if len(full) > 2 else None
        if isinstance(values, torch.Tensor) and not isinstance(values, MacaTensor) and values.dim() == 0:
            full[2] = values.to(self.device)
        if kernel is None:
            return without_row(func, tuple(full), {}, "the op table has no row for it")
        return kernel(tuple(full), None)

    return run


@special(
    "aten.index.Tensor",
    "aten.index_put.default",
    "aten.index_put_.default",
    "aten._index_put_impl.default",
    "aten._index_put_impl_.default",
    "aten._unsafe_index.Tensor",
    "aten._unsafe_index_put.default",
)
def _index(func: OpOverload) -> Launcher:
    return _preparing(func, 1)
