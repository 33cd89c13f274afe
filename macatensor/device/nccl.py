"""``torch.maca.nccl``: what programs ask ``torch.cuda.nccl``, of the communicator of the device library."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from macatensor.device.properties import get_device_capability
from macatensor.runtime.own_names import own_names
from macatensor.runtime.tensor import is_maca


def version() -> tuple[int, ...]:
    """That of the interface whose slots ``comm_*`` the collectives are: (major, minor)."""
    return get_device_capability()


def is_available(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether collectives of the device take these tensors: all on maca, dense, contiguous, one for each device."""
    devices = {t.device for t in tensors}
    return len(devices) == len(tensors) and all(
        is_maca(t) and t.layout is torch.strided and t.is_contiguous() for t in tensors
    )


__all__ = own_names(globals())
