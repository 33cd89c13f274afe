"""torchtune: ``device: maca`` of its recipes, with ``dtype: bf16`` and statistics of memory."""

from __future__ import annotations

import functools
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

UPSTREAM = ("0.6", "0.7")  # written for 0.6.1


def device(module: ModuleType) -> None:
    """The device that is taken without a name, and what torchtune knows of each kind of device."""
    chosen, get, validate = (
        module._get_device_type_from_env,
        module.get_device,
        module._validate_device_from_env,
    )
    find = module.DeviceSupport.from_type
    ours = SimpleNamespace(device_type="maca", device_name="MACA", communication_backend="mccl")

    @functools.wraps(chosen)
    def device_type_from_env() -> str:
        theirs: str = chosen()
        return "maca" if theirs == "cpu" else theirs

    @functools.wraps(find)
    def from_type(device_type: str) -> Any:
        return ours if device_type == "maca" else find(device_type)

    @functools.wraps(validate)
    def validate_device_from_env(device: torch.device) -> None:
        # the number of a rank is not that of its device: each has one, maca:0
        if device.type != "maca":
            validate(device)

    @functools.wraps(get)
    def get_device(device: Any = None) -> torch.device:
        found: torch.device = get(device)
        if found.type == "maca" and found.index is None:
            return torch.device("maca", torch.maca.current_device())
        return found

    module._get_device_type_from_env = device_type_from_env  # type: ignore[attr-defined]
    module._validate_device_from_env = validate_device_from_env  # type: ignore[attr-defined]
    module.DeviceSupport.from_type = staticmethod(from_type)
    module.get_device = get_device  # type: ignore[attr-defined]


def precision(module: ModuleType) -> None:
    """``dtype: bf16``."""
    asked = module.verify_bf16_support

    @functools.wraps(asked)
    def verify_bf16_support() -> bool:
        return bool(asked() or torch.maca.is_bf16_supported())  # type: ignore[attr-defined]

    module.verify_bf16_support = verify_bf16_support  # type: ignore[attr-defined]
