"""peft: starting values of LoRA that are computed from weights on maca."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

UPSTREAM = ("0.15", "1.0")  # written for 0.21

# of LoraLayer; each sets ``.data`` of factors that are still on the host
_STARTS = (
    "pissa_init",
    "olora_init",
    "corda_init",
    "loftq_init",
    "mica_init",
    "orthogonal_init",
    "lora_ga_init",
)


def lora(module: ModuleType) -> None:
    """The factors of a weight on maca go there before they get data of maca, not after: PyTorch refuses a host tensor
    data of another type."""
    layer: Any = module.LoraLayer
    for name in _STARTS:
        if hasattr(layer, name):
            setattr(layer, name, _on_device_of_weight(getattr(layer, name)))


def _on_device_of_weight(start: Any) -> Any:
    @functools.wraps(start)
    def init(self: Any, adapter_name: str, *arguments: Any) -> None:
        if self.get_base_layer().weight.device.type == "maca":
            self._move_adapter_to_device_of_base_layer(adapter_name)
        start(self, adapter_name, *arguments)

    return init
