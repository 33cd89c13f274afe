"""What a user gets uninitialized."""

from __future__ import annotations

import torch

from macatensor.runtime.tensor import MacaTensor


def known(target: MacaTensor) -> MacaTensor:
    """Under ``torch.use_deterministic_algorithms`` what a user gets uninitialized is filled, as PyTorch does: NaN, or
    the largest integer."""
    if not torch._C._get_deterministic_algorithms():
        return target
    if torch._C._get_deterministic_fill_uninitialized_memory():
        dtype = target.dtype
        if dtype.is_floating_point or dtype.is_complex:
            target.fill_(float("nan"))
        else:
            target.fill_(True if dtype == torch.bool else torch.iinfo(dtype).max)
    return target
