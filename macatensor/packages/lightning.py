"""Lightning: ``Trainer(accelerator="maca")``, ``Fabric(accelerator="maca")``, and ``"auto"`` where nothing else is there."""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType
from typing import Any

import torch

UPSTREAM = ("2.2", "3.0")  # written for 2.6


def _accelerator(base: Any) -> Any:
    class MacaAccelerator(base):  # type: ignore[misc]
        """The device maca, of which a process has one."""

        def setup_device(self, device: torch.device) -> None:
            """Nothing to switch. Raises ValueError for a device that is not maca."""
            if device.type != "maca":
                raise ValueError(f"MacaAccelerator got {device}; expected maca")

        def teardown(self) -> None:
            """Gives idle memory back."""
            torch.maca.empty_cache()  # type: ignore[attr-defined]

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            """What ``torch.maca.memory_stats`` says."""
            return dict(torch.maca.memory_stats(device))  # type: ignore[attr-defined]

        @staticmethod
        def parse_devices(devices: Any) -> list[int]:
            """One device: ``1``, ``"1"``, ``-1``, ``"auto"`` or ``[0]``. Raises ValueError for more."""
            if devices in (1, "1", -1, "-1", "auto", [0], "0", "0,"):
                return [0]
            raise ValueError(
                f"accelerator='maca' got devices={devices!r}; a process has one device: expected 1 or [0]"
            )

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            return [torch.device("maca", i) for i in devices]

        @staticmethod
        def auto_device_count() -> int:
            return 1

        @staticmethod
        def is_available() -> bool:
            return bool(torch.maca.is_available())  # type: ignore[attr-defined]

        @staticmethod
        def name() -> str:
            return "maca"

    return MacaAccelerator


def trainer(module: ModuleType) -> None:
    """``lightning.pytorch``."""
    root = module.__name__.rpartition(".trainer.")[0]
    _teach(module, module._AcceleratorConnector, importlib.import_module(f"{root}.accelerators"))


def fabric(module: ModuleType) -> None:
    """``lightning.fabric``."""
    root = module.__name__.rpartition(".")[0]
    _teach(module, module._Connector, importlib.import_module(f"{root}.accelerators"))


def _teach(module: ModuleType, connector: Any, accelerators: Any) -> None:
    registry = getattr(accelerators, "AcceleratorRegistry", None) or accelerators.ACCELERATOR_REGISTRY
    if "maca" not in registry:
        registry.register("maca", _accelerator(accelerators.Accelerator), description="the device maca")
    strategy, precision, auto = (
        connector._choose_strategy,
        connector._check_and_init_precision,
        connector._choose_auto_accelerator,
    )

    @functools.wraps(strategy)
    def choose_strategy(self: Any) -> Any:
        if (
            self._accelerator_flag == "maca"
            and self._num_nodes_flag <= 1
            and len(self._parallel_devices) <= 1
        ):
            return module.SingleDeviceStrategy(device=self._parallel_devices[0])
        return strategy(self)

    @functools.wraps(precision)
    def check_and_init_precision(self: Any) -> Any:
        made = precision(self)
        # autocast and the scaler of losses of another device would do nothing
        if self._accelerator_flag == "maca" and getattr(made, "device", None) == "cuda":
            made.device = "maca"
            if getattr(made, "scaler", None) is not None:
                made.scaler = torch.amp.GradScaler("maca")
        return made

    @functools.wraps(auto)
    def choose_auto_accelerator(*args: Any) -> str:
        chosen: str = auto(*args)
        return "maca" if chosen == "cpu" else chosen

    connector._choose_strategy = choose_strategy
    connector._check_and_init_precision = check_and_init_precision
    connector._choose_auto_accelerator = staticmethod(choose_auto_accelerator)
    _name_group_backend(module.__name__.partition(".")[0])


def _name_group_backend(package: str) -> None:
    """The ranks of maca talk by ``mccl``."""
    for name, module in list(sys.modules.items()):
        if not name.startswith((package, "lightning_fabric")):
            continue
        asked: Any = vars(module).get("_get_default_process_group_backend_for_device")
        if asked is None or hasattr(asked, "__wrapped__"):
            continue

        @functools.wraps(asked)
        def backend_for(device: torch.device, asked: Any = asked) -> str:
            return "mccl" if device.type == "maca" else asked(device)

        module._get_default_process_group_backend_for_device = backend_for  # type: ignore[attr-defined]
