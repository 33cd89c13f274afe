"""Pickle, ``torch.save``/``load`` and ``copy.deepcopy``.

A saved tensor is a host tensor plus the name of its device, so a PyTorch without macatensor opens it with
``map_location="cpu"``, ``weights_only=True`` included.
"""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from typing import Any

import torch

from macatensor.integration.storage import copied_buffer
from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import MacaTensor, method, wrap


@method("__reduce_ex__")
def reduce(t: MacaTensor, protocol: int) -> tuple[object, ...]:
    """For ``__reduce_ex__``: PyTorch's own rebuilders only."""
    if getattr(t, "_is_param", False):
        whole: tuple[object, ...] = (
            wrap_like(t),
            t.requires_grad,
            OrderedDict(),
        )  # as in PyTorch, hooks stay behind
        state = dict(vars(t))
        if not state:
            return torch._utils._rebuild_parameter, whole
        return torch._utils._rebuild_parameter_with_state, (*whole, state)
    parts = t.detach().cpu(), t.dtype, str(t.device), t.requires_grad
    return torch._utils._rebuild_device_tensor_from_cpu_tensor, parts


def wrap_like(t: MacaTensor) -> MacaTensor:
    """Another tensor over the same memory, outside autograd and no Parameter."""
    return wrap(*t._payload)


@method("__copy__")
def shallow_copy(t: MacaTensor) -> torch.Tensor:
    """Another tensor over the same memory, a leaf as in PyTorch, with the same attributes."""
    result: torch.Tensor = wrap_like(t)
    if getattr(t, "_is_param", False):
        result = torch.nn.Parameter(result, t.requires_grad)
    else:
        result.requires_grad_(t.requires_grad)
    result.__dict__.update(vars(t))
    return result


@method("__deepcopy__")
def deepcopy(t: MacaTensor, memo: dict[int, Value]) -> Value:
    """A copy with memory of its own; tensors that shared memory share the copy's, as in PyTorch."""
    if not t.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment.  "
            "If you were attempting to deepcopy a module, this may be because of a torch.nn.utils.weight_norm usage, "
            "see https://github.com/pytorch/pytorch/pull/103001"
        )
    if id(t) in memo:
        return memo[id(t)]
    buffer, offset, meta = t._payload
    result = wrap(copied_buffer(buffer, memo), offset, meta)
    result.requires_grad_(t.requires_grad) if t.requires_grad else None
    memo[id(t)] = result
    if t.grad is not None:
        result.grad = copy.deepcopy(t.grad, memo)
    if getattr(t, "_is_param", False):
        result._is_param = True
    others = vars(t)
    if others:
        result.__dict__.update(copy.deepcopy(others, memo))
    return result


def _deserialize(storage: Value, location: str) -> Value:
    if not location.startswith("maca"):
        return None
    index = torch.device(location).index
    if index not in (None, 0):
        raise RuntimeError(
            f"Attempting to deserialize object on maca device {index} but torch.maca.device_count() is 1. Please use "
            "torch.load with map_location to map your storages to an existing device."
        )
    return storage.maca()


def _tag(storage: Value) -> str | None:
    return "maca" if storage.device.type == "maca" else None


def _forget_the_location() -> None:
    """``torch.load`` leaves its ``map_location`` behind when it fails, and the thread's next unpickled tensor, a batch
    of a DataLoader's worker for one, would silently land there."""
    serialization: Any = torch.serialization
    load = serialization._load

    @functools.wraps(load)
    def _load(*args: object, **kwargs: object) -> object:
        try:
            return load(*args, **kwargs)
        finally:
            serialization._serialization_tls.map_location = None

    serialization._load = _load


def _restore_where_a_function_says() -> None:
    """``map_location=lambda storage, location: storage``: PyTorch asks it of a storage, and of our tensors, which are a
    tensor of the host and a device's name, it refuses to. It is asked of an empty storage of the host."""
    named: Any = torch._utils._get_restore_location

    @functools.wraps(named)
    def location(device: Any) -> Any:
        function = torch.serialization._serialization_tls.map_location
        if not callable(function):
            return named(device)
        moved = function(torch.UntypedStorage(0), str(device))  # type: ignore[arg-type]
        return device if moved is None else moved.device

    torch._utils._get_restore_location = location


def register() -> None:
    """Teaches ``torch.load`` the locations ``"maca"`` and ``"maca:0"``."""
    torch.serialization.register_package(9, _tag, _deserialize)
    _forget_the_location()
    _restore_where_a_function_says()
