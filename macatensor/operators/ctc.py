"""``ctc_loss`` of lengths in the host's memory, which torch.cuda takes, too: PyTorch's composite divides by them on the device,
and does not check those of Python tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from macatensor.operators.whole import taken_apart, whole
from macatensor.runtime.boxed import Value


@whole("ctc_loss.Tensor")
def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, *rest: Value
) -> Value:
    """``rest``: blank, reduction, zero_infinity."""
    lengths = {"input_lengths": input_lengths, "target_lengths": target_lengths}
    for name, given in lengths.items():
        if given.is_floating_point() or given.is_complex() or given.dtype is torch.bool:
            raise RuntimeError(f"{name} must be integral")
    if all(type(n) is Tensor for n in lengths.values()):
        on_host = (n.reshape(-1).tolist() for n in lengths.values())
        return torch.ops.aten.ctc_loss.IntList(log_probs, targets, *on_host, *rest)
    placed = (n.to(log_probs.device) for n in lengths.values())
    return taken_apart(torch.ops.aten.ctc_loss.Tensor, log_probs, targets, *placed, *rest)
