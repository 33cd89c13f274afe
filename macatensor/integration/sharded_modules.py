"""Modules of the host that FSDP moves to the device, by ``parameter.data = ...``: PyTorch refuses data of another type."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Sequence

import torch

from macatensor.integration.modules import become
from macatensor.runtime.after_import import after_import
from macatensor.runtime.boxed import Value

_PLACES = ("torch.distributed.fsdp._fully_shard._fsdp_init", "torch.distributed.fsdp._init_utils")


def _teach(name: str) -> None:
    module: Value = importlib.import_module(name)
    move = module._move_states_to_device

    @functools.wraps(move)
    def _move_states_to_device(
        params: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor], device: Value
    ) -> None:
        if device is not None and torch.device(device).type == "maca":
            for tensor in itertools.chain(params, buffers):
                if type(tensor) in (torch.nn.Parameter, torch.Tensor) and tensor.device.type == "cpu":
                    become(tensor, device, "fully_shard")
        move(params, buffers, device)

    module._move_states_to_device = _move_states_to_device


def register() -> None:
    for name in _PLACES:
        after_import(name, functools.partial(_teach, name))
