"""The layout policy at transfers, and what channels last means."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from macatensor.runtime import switches
from macatensor.runtime.meta import contiguous_strides

_policies: list[str] = []  # process-wide: backward runs on a thread of its own and must see it too


def default_is_nchw() -> bool:
    """Do 4-D tensors stay as they are when transferred? ``PYTORCH_DEFAULT_NCHW`` is read live; ``0`` and empty
    mean no."""
    if _policies:
        return _policies[-1] == "nchw"
    return switches.DEFAULT_NCHW.value()


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    """``with layout.policy("nchw"):`` or ``"nhwc"`` for transfers inside, whatever the environment says.

    Raises ValueError for another name.
    """
    if name not in ("nchw", "nhwc"):
        raise ValueError(f"layout.policy got {name!r}; accepted: 'nchw', 'nhwc'")
    _policies.append(name)
    try:
        yield
    finally:
        _policies.remove(name)


def transfer_format(dim: int, memory_format: torch.memory_format | None) -> torch.memory_format:
    """The memory format of a host tensor of rank ``dim`` on the device. An explicit format wins."""
    if memory_format is not None:
        return memory_format
    if dim == 4 and not default_is_nchw():
        return torch.channels_last
    return torch.preserve_format


def channels_last_strides(size: Sequence[int]) -> tuple[int, ...]:
    """Strides of a rank 3, 4 or 5 tensor whose channel dimension (1) is innermost."""
    order = [0, *range(2, len(size)), 1]
    inner = contiguous_strides(tuple(size[d] for d in order))
    strides = [0] * len(size)
    for position, d in enumerate(order):
        strides[d] = inner[position]
    return tuple(strides)


def is_channels_last(tensor: torch.Tensor) -> bool:
    """PyTorch's answer for the format of rank 4 or 5."""
    if tensor.dim() == 4:
        return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
    if tensor.dim() == 5:
        return tensor.is_contiguous(memory_format=torch.channels_last_3d) and not tensor.is_contiguous()
    return False


def suggests_channels_last(tensor: torch.Tensor) -> bool:
    """PyTorch's ``suggest_memory_format``: by strides, so a sliced NHWC tensor counts."""
    try:
        return torch._prims_common.suggest_memory_format(tensor) in (
            torch.channels_last,
            torch.channels_last_3d,
        )
    except (AttributeError, RuntimeError):
        return is_channels_last(tensor)
