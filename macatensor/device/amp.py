"""``torch.maca.amp``: mixed precision with the names of ``torch.cuda.amp``, for this device."""

from __future__ import annotations

import functools
from typing import Any

import torch

from macatensor.runtime.own_names import own_names


class autocast(torch.amp.autocast_mode.autocast):
    """``torch.autocast("maca")``; as ``torch.cuda.amp.autocast`` in float16 unless ``dtype`` says otherwise."""

    def __init__(
        self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True
    ) -> None:
        super().__init__("maca", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler("maca")``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("maca", *args, **kwargs)


custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="maca")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="maca")

__all__ = sorted([*own_names(globals()), "custom_bwd", "custom_fwd"])
