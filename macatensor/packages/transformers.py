"""transformers: ``Trainer`` and ``pipeline`` take maca where they find no device of their own list."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from macatensor.packages import replace_function

UPSTREAM = ("4.45", "6.0")  # written for 5.24


def training_arguments(module: ModuleType) -> None:
    """The device of ``TrainingArguments``, which is where ``Trainer`` moves its model, and ``bf16=True``."""
    arguments: Any = module.TrainingArguments
    held = vars(arguments)["_setup_devices"]
    theirs = held.func if hasattr(held, "func") else held.fget

    @functools.wraps(theirs)
    def setup_devices(self: Any) -> torch.device:
        device: torch.device = theirs(self)
        state = self.distributed_state
        if device.type != "cpu" or state is None or state.device.type != "maca":
            return device
        self._n_gpu = 1
        return state.device  # type: ignore[no-any-return]

    ours = type(held)(setup_devices)
    if hasattr(ours, "__set_name__"):
        ours.__set_name__(arguments, "_setup_devices")
    arguments._setup_devices = ours
    asked = module.is_torch_bf16_gpu_available

    @functools.wraps(asked)
    def is_torch_bf16_gpu_available() -> bool:
        return bool(asked() or torch.maca.is_bf16_supported())  # type: ignore[attr-defined]

    replace_function(module, "is_torch_bf16_gpu_available", is_torch_bf16_gpu_available, ["transformers"])


def pipelines(module: ModuleType) -> None:
    """``device=0``, or none: the first accelerator, which for these would be the host."""
    pipeline: Any = module.Pipeline
    make = pipeline.__init__

    @functools.wraps(make)
    def init(self: Any, model: Any, *args: Any, device: Any = None, **options: Any) -> None:
        first = device is None or isinstance(device, int) and device >= 0
        if first and getattr(model, "hf_device_map", None) is None and _has_no_other():
            device = torch.device("maca", device or 0)
        make(self, model, *args, device=device, **options)

    pipeline.__init__ = init


def _has_no_other() -> bool:
    return not (torch.cuda.is_available() or torch.xpu.is_available() or torch.backends.mps.is_available())
