"""Modules that FSDP takes. Those of the host it moves to the device by ``parameter.data = ...``, and PyTorch refuses data of
another type. Weights of convolutions are channels_last here (``macatensor.maca``), and ``fully_shard`` refuses what is not
row-major."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Sequence

import torch

from macatensor.integration.modules import become
from macatensor.runtime.after_import import after_import
from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import MacaTensor

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
        for parameter in params:
            if isinstance(parameter, MacaTensor) and not parameter.is_contiguous():
                parameter.data = parameter.detach().contiguous()

    module._move_states_to_device = _move_states_to_device


def register() -> None:
    for name in _PLACES:
        after_import(name, functools.partial(_teach, name))
