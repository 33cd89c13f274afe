"""Memory formats by one name each, and weights that are packed for the kernels that read them."""

from __future__ import annotations

import difflib
from collections.abc import Callable

import torch

from macatensor.runtime.counters import counters

__all__ = ["format_cast", "get_maca_format", "pack_weights"]

FORMATS: dict[str, torch.memory_format] = {
    "ND": torch.contiguous_format,
    "NCHW": torch.contiguous_format,
    "NCDHW": torch.contiguous_format,
    "NHWC": torch.channels_last,
    "NDHWC": torch.channels_last_3d,
}
_RANKS = {"NCHW": 4, "NHWC": 4, "NCDHW": 5, "NDHWC": 5}


def format_cast(tensor: torch.Tensor, format: str) -> torch.Tensor:
    """The tensor in a memory format of ``FORMATS``, itself if it has it; as ``torch_npu.npu_format_cast``.

    Raises ValueError for an unknown format (the nearest is named), or one of another rank.
    """
    name = str(format).upper()
    if name not in FORMATS:
        near = difflib.get_close_matches(name, FORMATS, 1, 0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"accepted: {', '.join(FORMATS)}"
        raise ValueError(f"format_cast got the format {format!r}; {hint}")
    if _RANKS.get(name, tensor.dim()) != tensor.dim():
        raise ValueError(
            f"format_cast got {name} for a tensor of {tensor.dim()} dimensions; it has {_RANKS[name]}"
        )
    return tensor.contiguous(memory_format=FORMATS[name])


def get_maca_format(tensor: torch.Tensor) -> str:
    """``"NHWC"``, ``"NDHWC"``, ``"NCHW"``, ``"NCDHW"``, ``"ND"``, or ``"strided"`` of what has gaps or another order."""
    rank = tensor.dim()
    if rank in (4, 5):
        last = torch.channels_last if rank == 4 else torch.channels_last_3d
        if tensor.is_contiguous():
            return "NCHW" if rank == 4 else "NCDHW"
        return ("NHWC" if rank == 4 else "NDHWC") if tensor.is_contiguous(memory_format=last) else "strided"
    return "ND" if tensor.is_contiguous() else "strided"


def pack_weights(call: Callable[..., object], *args: object, **kwargs: object) -> int:
    """Packs the weights that a call reads, now and not at its second run, and returns how many were packed.

    ``call`` is run twice without gradients: the library packs an operand that it meets a second time unchanged, for the
    plan that reads it. They stay packed until they are written. A library that packs nothing gives 0.
    """
    if not callable(call):
        raise TypeError(
            f"pack_weights got {type(call).__name__}; expected a module or a function, and its arguments"
        )
    before = counters()["weight_packs"]
    with torch.no_grad():
        for _ in range(2):
            call(*args, **kwargs)
    return counters()["weight_packs"] - before
