"""``torch.maca.comm`` and ``torch.nn.parallel``'s copies between the devices of one process, of which there is one.

PyTorch's functions in Python (``replicate``, ``scatter``, ``gather``, ``DataParallel``) end in seven of ``torch._C`` that
only a build for CUDA has. These are they for maca: what CUDA copies to another device is copied here as well, so that
a program may write what it was given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from macatensor.runtime.boxed import Value
from macatensor.runtime.ordinal import ordinal
from macatensor.runtime.tensor import MacaTensor

Tensors = Sequence[torch.Tensor]


def _copies(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    """The tensor itself where it is on the device already, as CUDA's has it."""
    for device in devices:
        ordinal(device)
    return [
        tensor if isinstance(tensor, MacaTensor) and not i else tensor.to("maca", copy=True)
        for i in range(len(devices))
    ]


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    return _copies(tensor, devices)


def _broadcast_out(tensor: torch.Tensor, out: Tensors) -> Tensors:
    for i, target in enumerate(out):
        if target.shape != tensor.shape:
            raise RuntimeError(
                f"Expected all output tensors to have same shape as the source tensor {list(tensor.shape)}, but output "
                f"tensor at index {i} has shape {list(target.shape)}"
            )
        _check_device("broadcast", i, target)
        target.copy_(tensor, non_blocking=True)
    return out


def _broadcast_coalesced(
    tensors: Tensors, devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    """The copies share no version with what they were made from, as CUDA's."""
    each = [_copies(tensor, devices) for tensor in tensors]
    return [[row[i].detach() for row in each] for i in range(len(devices))]


def _scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Value = None,
) -> list[torch.Tensor]:
    for device in devices:
        ordinal(device)
    if chunk_sizes is not None and len(chunk_sizes) != len(devices):
        raise RuntimeError(
            f"Expected devices and chunk_sizes to be of same length, but got len(devices) = {len(devices)} and "
            f"len(chunk_sizes) = {len(chunk_sizes)}"
        )
    parts = (
        tensor.split(list(chunk_sizes), dim) if chunk_sizes is not None else tensor.chunk(len(devices), dim)
    )
    # on the current stream, whichever was offered: the runtime's copies of pageable memory do not run beside it
    return [part.to("maca", non_blocking=True) for part in parts]


def _scatter_out(tensor: torch.Tensor, out: Tensors, dim: int = 0, streams: Value = None) -> Tensors:
    parts = tensor.split([t.shape[dim] for t in out], dim)
    for i, (target, part) in enumerate(zip(out, parts)):
        _check_device("scatter", i, target)
        target.copy_(part, non_blocking=True)
    return out


def _gather(tensors: Tensors, dim: int, destination: int | None) -> torch.Tensor:
    _check_sources(tensors)
    whole = torch.cat(list(tensors), dim)
    if destination == -1:
        return whole.cpu()
    ordinal(destination)
    return whole


def _gather_out(tensors: Tensors, out: torch.Tensor, dim: int) -> torch.Tensor:
    _check_sources(tensors)
    return out.copy_(torch.cat(list(tensors), dim))


def _check_sources(tensors: Tensors) -> None:
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    for i, tensor in enumerate(tensors):
        _check_device("gather", i, tensor, "input")


def _check_device(name: str, index: int, tensor: torch.Tensor, which: str = "output") -> None:
    if not isinstance(tensor, MacaTensor):
        raise RuntimeError(
            f"Expected all {which} tensors of {name} to be on maca, but the one at index {index} is on {tensor.device}"
        )


_SERVED: dict[str, Callable[..., Value]] = {
    f.__name__: f
    for f in (_broadcast, _broadcast_out, _broadcast_coalesced, _scatter, _scatter_out, _gather, _gather_out)
}


def register() -> None:
    """Gives ``torch._C`` what it lacks. What a build for CUDA has serves all tensors but those of maca."""
    for name, function in _SERVED.items():
        setattr(torch._C, name, _choosing(function, getattr(torch._C, name, None)))


def _choosing(function: Callable[..., Value], of_cuda: Callable[..., Value] | None) -> Callable[..., Value]:
    @functools.wraps(function)
    def chosen(tensors: Value, *args: Value) -> Value:
        if of_cuda is not None and not _is_of_maca(tensors, args):
            return of_cuda(tensors, *args)
        return function(tensors, *args)

    return chosen


def _is_of_maca(*values: Value) -> bool:
    from torch.utils._pytree import tree_leaves

    accelerator = torch.accelerator.current_accelerator()
    held = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return any(isinstance(t, MacaTensor) for t in held) or (
        accelerator is not None and accelerator.type == "maca"
    )
