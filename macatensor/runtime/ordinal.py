"""Device arguments: ``None``, an index, ``"maca"``, ``"maca:0"``, a ``torch.device``."""

from __future__ import annotations

import torch
from torch.types import Device


def ordinal(device: Device = None, optional: bool = True) -> int:
    """The index a device argument means; 0 for None and ``"maca"``, negative as given.

    ``optional`` False wants an index. Raises ValueError for a device of another type, for what is no device and for
    a missing index; RuntimeError for an index that no device has.
    """
    index: int | None
    if isinstance(device, int):
        index = int(device)
    elif device is None:
        index = None
    elif isinstance(device, (str, torch.device)):
        place = torch.device(device)
        if place.type != "maca":
            raise ValueError(f"Expected a maca device, but got: {place}")
        index = place.index
    else:
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")
    if index is None:
        if not optional:
            raise ValueError(
                f"Expected a torch.device with a specified index or an integer, but got:{device}"
            )
        return 0
    if index > 0:
        raise RuntimeError(
            f"MACA error: invalid device ordinal {index}: one device is visible in a process, maca:0. "
            "Choose which with MACA_VISIBLE_DEVICES."
        )
    return index
