"""A tensor's numbers: in one pass where the host library can reach the elements, by PyTorch's operators elsewhere."""

from __future__ import annotations

import torch

from macatensor.accuracy.recording.numbers import Numbers, by_operators
from macatensor.accuracy.recording.quiet import quiet
from macatensor.accuracy.recording.summary import summarize


def measure(tensor: torch.Tensor) -> Numbers | None:
    """The numbers of a strided tensor; None where there are no elements to read (meta and fake tensors)."""
    found = summarize(tensor)
    if found is None and tensor.device.type != "meta":
        with quiet():
            held = tensor.detach()
            if held._is_zerotensor():
                held = torch.zeros(held.shape, dtype=held.dtype, device=held.device)
            elif held.numel() and (not held.untyped_storage().nbytes() or not held.data_ptr()):
                return None  # its memory was given back
            found = by_operators(held)
    return found
