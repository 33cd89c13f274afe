"""``torch.distributed`` with NCCL's name: the backend ``mccl`` of maca."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable

import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from macatensor.as_cuda.arguments import device_of
from macatensor.as_cuda.patches import Patches
from macatensor.runtime.boxed import Value

_NAMED = re.compile(r"(?:\bcuda:)?\bnccl\b", re.IGNORECASE)


def _backend_of(value: Value) -> Value:
    """``value`` with NCCL read as mccl, where it names backends; devices as everywhere."""
    if isinstance(value, str) and _NAMED.search(value):
        return _NAMED.sub(lambda found: "maca:mccl" if ":" in found[0] else "mccl", value)
    return device_of(value)


def _renaming(function: Callable[..., Value]) -> Callable[..., Value]:
    @functools.wraps(function)
    def renamed(*args: Value, **kwargs: Value) -> Value:
        return function(*map(_backend_of, args), **{name: _backend_of(v) for name, v in kwargs.items()})

    return renamed


def install(patches: Patches) -> None:
    for name in ("init_process_group", "new_group"):
        function = _renaming(getattr(distributed_c10d, name))
        patches.replace(distributed_c10d, name, function)
        patches.replace(dist, name, function, f'torch.distributed.{name}("nccl") -> the same with "mccl"')
    mesh = _renaming(device_mesh.init_device_mesh)
    patches.replace(device_mesh, "init_device_mesh", mesh)
    patches.replace(dist, "init_device_mesh", mesh, "torch.distributed.init_device_mesh -> a mesh of maca")
    for owner in (distributed_c10d, dist):
        patches.replace(owner, "is_nccl_available", lambda: True)
    # what checkpoints copy to the host: a module that was imported before holds the function by name
    for name in ("torch._utils", "torch.distributed.checkpoint.filesystem"):
        if name in sys.modules:
            patches.replace(sys.modules[name], "_get_available_device_type", lambda: "maca")
