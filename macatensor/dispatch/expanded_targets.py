"""In-place operators that PyTorch lets write an expanded tensor, with a warning: by the element that is shared.

Each is told as one write of a flat copy of the elements there are: which element every place of the expanded tensor is,
is what the operator's index or mask picks of their positions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from macatensor.dispatch.launcher import Run
from macatensor.dispatch.signature import Signature
from macatensor.runtime.boxed import Value
from macatensor.runtime.callers import warn

_Write = Callable[..., None]
_WRITES: dict[str, _Write] = {}


def _writes(operator: str) -> Callable[[_Write], _Write]:
    def register(function: _Write) -> _Write:
        _WRITES[operator] = function
        return function

    return register


@_writes("masked_fill")
def _fill_masked(flat: Tensor, places: Tensor, mask: Tensor, value: Value) -> None:
    flat.index_fill_(0, places.masked_select(mask), value)


@_writes("index_fill")
def _fill_indexed(flat: Tensor, places: Tensor, dim: int, index: Tensor, value: Value) -> None:
    index = torch.where(index < 0, index + places.shape[dim], index)  # which index_select does not take
    flat.index_fill_(0, places.index_select(dim, index).flatten(), value)


@_writes("index_put")
def _put(
    flat: Tensor,
    places: Tensor,
    indices: list[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    *_: Value,
) -> None:
    picked = torch.ops.aten.index.Tensor(places, indices)
    flat.index_put_((picked.flatten(),), values.expand(picked.shape).flatten(), accumulate)


def writing(signature: Signature, operator: str) -> Run:
    """What runs a call whose target is expanded; ``operator``: of its row, ``"index_put_"`` as ``"index_put"``."""
    write = _WRITES[operator.strip("_").removesuffix("_impl")]
    name = operator.strip("_").removesuffix("_impl") + "_"
    example = "tensor[indices] = tensor" if write is _put else "tensor[mask] = scalar"

    def run(args: Value, payloads: Value, scalars: Value) -> Value:
        target, *others = signature.fill(args, None)
        warn(
            f"Use of {name} on expanded tensors is deprecated. Please clone() the tensor before performing this "
            f"operation. This also applies to advanced indexing e.g. {example}"
        )
        held = target
        for d, step in enumerate(target.stride()):
            held = held.narrow(d, 0, 1) if step == 0 else held
        places = torch.arange(held.numel(), device=target.device).view(held.shape).expand(target.shape)
        flat = held.flatten().clone()
        write(flat, places, *others)
        held.copy_(flat.view(held.shape))
        return target

    return run
