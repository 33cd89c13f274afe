"""``torch.cuda.<name>`` becomes ``torch.maca.<name>``, or an error that says there is none."""

from __future__ import annotations

import types
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

import torch

from macatensor.as_cuda.arguments import DTYPES, TensorType
from macatensor.as_cuda.patches import Patches

_cuda: Any = torch.cuda
_SUBMODULES = ("memory", "random", "streams")  # `from torch.cuda.random import manual_seed`
_KEPT = frozenset({"amp", "AcceleratorError", "CudaError", "DeferredCudaCallError", "OutOfMemoryError", "cudaStatus",
                   "default_generators", "has_half", "has_magma"})  # fmt: skip
_NVTX = ("mark", "range", "range_end", "range_pop", "range_push", "range_start")


def _nothing(*_: object, **__: object) -> None:
    """Annotates nothing, or tidies nothing up."""


def _no_list() -> list[str]:
    """maca is built for no architecture of CUDA."""
    return []


def _host_range(message: str, *_: object, **__: object) -> Any:
    """A range of PyTorch's own profiler."""
    return torch.autograd.profiler.record_function(message)


# for what torch.maca lacks and PyTorch itself calls, or what has no effect on results
_STAND_INS: dict[str, Callable[..., Any]] = {
    "get_arch_list": _no_list,
    "get_gencode_flags": lambda: "",
    "ipc_collect": _nothing,
    "_lazy_init": _nothing,
}


def _public() -> list[str]:
    return [
        n for n in _cuda.__all__ if n not in _KEPT and not isinstance(getattr(_cuda, n), types.ModuleType)
    ]


def install(patches: Patches) -> None:
    """Redirects the module torch.cuda and the submodules whose functions scripts import."""
    maca: Any = torch.get_device_module("maca")
    generators = ["default_generators"] if hasattr(maca, "default_generators") else []
    for name in (*_public(), *generators, "_lazy_init"):
        value, note = _counterpart(maca, name)
        original = getattr(_cuda, name)
        # before the replacement: submodules hold the same objects under the same names
        holders = [getattr(_cuda, module) for module in _SUBMODULES]
        patches.replace(_cuda, name, value, note)
        for holder in holders:
            if vars(holder).get(name) is original:
                patches.replace(holder, name, value)
        if note is None and not name.startswith("_"):
            patches.missing.append(f"torch.cuda.{name}")
    for name in maca.nccl.__all__:
        value = getattr(maca.nccl, name)
        patches.replace(_cuda.nccl, name, value, f"torch.cuda.nccl.{name} -> torch.maca.nccl.{name}")
    nvtx = getattr(maca, "nvtx", None)
    for name in _NVTX:
        value = getattr(nvtx, name, None)
        target = f"torch.maca.nvtx.{name}" if value is not None else "nothing to annotate on maca"
        if value is None:
            value = _host_range if name == "range" else _nothing
            target = "torch.autograd.profiler.record_function" if name == "range" else target
        patches.replace(_cuda.nvtx, name, value, f"torch.cuda.nvtx.{name} -> {target}")


def _counterpart(maca: ModuleType, name: str) -> tuple[object, str | None]:
    """What takes the place of ``torch.cuda.<name>``, and the line that says so, or None where nothing serves it."""
    value = getattr(maca, name, None)
    if value is not None:
        return value, f"torch.cuda.{name} -> torch.maca.{name}"
    if name in _STAND_INS:
        return _STAND_INS[name], f"torch.cuda.{name} -> nothing to do on maca"
    kind = name.removesuffix("Tensor")
    if kind != name and kind in DTYPES:
        return TensorType(kind, DTYPES[kind]), f"torch.cuda.{name} -> tensors of {DTYPES[kind]} on maca"
    return _refusing(name), None


def _refusing(name: str) -> type | Callable[..., NoReturn]:
    text = (
        f"torch.cuda.{name} has no counterpart: torch.maca has no {name}. "
        "See macatensor.as_cuda.missing() for the list."
    )
    if isinstance(getattr(_cuda, name), type):  # a class may be subclassed or named in an annotation

        def refuse_instance(self: object, *_: object, **__: object) -> None:
            raise NotImplementedError(text)

        return type(name, (), {"__init__": refuse_instance, "__doc__": text})

    def refuse(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(text)

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = text
    return refuse
