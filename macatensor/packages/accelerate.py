"""accelerate: ``Accelerator()`` and ``PartialState()`` take maca where they find no device of their own list."""

from __future__ import annotations

import functools
import os
import sys
from types import FunctionType, ModuleType
from typing import Any

import torch

from macatensor.packages import replace_function

UPSTREAM = ("1.0", "2.0")  # written for 1.15
_HOLDERS = ("accelerate", "transformers")


def state(module: ModuleType) -> None:
    """The device, and the ranks of a launcher with ``mccl``."""
    partial: Any = module.PartialState
    default, prepare, choose = partial.default_device.fget, partial._prepare_backend, partial.set_device
    kinds = module.DistributedType

    def default_device(self: Any) -> torch.device:
        theirs: torch.device = default(self)
        return torch.device("maca") if theirs.type == "cpu" else theirs

    @functools.wraps(prepare)
    def prepare_backend(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: Any = None) -> Any:
        theirs = prepare(self, cpu, sagemaker_dp, backend)
        launched = int(os.environ.get("LOCAL_RANK", -1)) != -1
        if theirs[1] == kinds.NO and launched and not cpu:
            return backend or "mccl", kinds.MULTI_GPU
        return theirs

    @functools.wraps(choose)
    def set_device(self: Any) -> None:
        if (
            self.device is None
            and "mccl" in (self.backend or "")
            and self.distributed_type == kinds.MULTI_GPU
        ):
            self.device = torch.device("maca", torch.maca.current_device())  # type: ignore[attr-defined]
        choose(self)

    partial.default_device = property(default_device, doc=partial.default_device.__doc__)
    partial._prepare_backend = prepare_backend
    partial.set_device = set_device


def modeling(module: ModuleType) -> None:
    """What ``device_map="auto"`` divides among, and the scaler of losses, which for an unknown device does nothing."""
    memory, scaler = module.get_max_memory, module.get_grad_scaler

    @functools.wraps(memory)
    def get_max_memory(max_memory: Any = None) -> Any:
        found = memory()
        if any(isinstance(d, int) or d == "mps" for d in found):  # devices that accelerate knows
            return memory(max_memory)
        if max_memory is None:
            return {0: torch.maca.mem_get_info()[0], **found}  # type: ignore[attr-defined]
        # it counts devices by its own list: ours would get a warning that they are not there
        numbers = range(torch.maca.device_count())  # type: ignore[attr-defined]
        sizes = {d: max_memory[d] for d in numbers if d in max_memory}
        theirs = memory({d: size for d, size in max_memory.items() if d not in sizes})
        read = module.convert_file_size_to_int
        return {**{d: read(size) if isinstance(size, str) else size for d, size in sizes.items()}, **theirs}

    @functools.wraps(scaler)
    def get_grad_scaler(distributed_type: Any = None, **options: Any) -> Any:
        shared = sys.modules["accelerate.state"].PartialState._shared_state
        if getattr(shared.get("device"), "type", "") != "maca" or str(distributed_type).endswith("FSDP"):
            return scaler(distributed_type, **options)
        return torch.amp.GradScaler("maca", **options)

    replace_function(module, "get_max_memory", get_max_memory, _HOLDERS)
    replace_function(module, "get_grad_scaler", get_grad_scaler, _HOLDERS)


def accelerator(module: ModuleType) -> None:
    """The devices that ``mixed_precision="fp16"`` is accepted for: a constant in the middle of ``__init__``."""
    made: FunctionType = module.Accelerator.__init__
    while hasattr(made, "__wrapped__"):
        made = made.__wrapped__
    names = [
        c for c in made.__code__.co_consts if isinstance(c, tuple) and {"cuda", "npu"} <= set(map(str, c))
    ]
    if not names:
        raise AttributeError("Accelerator names no devices for fp16")
    made.__code__ = made.__code__.replace(
        co_consts=tuple((*c, "maca") if c in names else c for c in made.__code__.co_consts)
    )
