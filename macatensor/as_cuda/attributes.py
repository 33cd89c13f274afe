"""Attributes outside torch.cuda: autocast, loss scaling, backends, loading, generators, DataParallel."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch

from macatensor.as_cuda.arguments import device_of, element_of
from macatensor.as_cuda.patches import Patches
from macatensor.profiling import hooks

_AUTOCAST_STATE = ("get_autocast_dtype", "is_autocast_enabled", "set_autocast_dtype", "set_autocast_enabled")
_FLAGS = ("allow_tf32", "benchmark", "benchmark_limit", "deterministic", "enabled")
_PRIORITY = 15  # before CUDA's own deserializer, which has 20
# of torch._C: what PyTorch's graphs of CUDA import where CUDA is said to be built, as torch._dynamo.reset() has it
_UNFROZEN = "__allow_nonbracketed_mutation"
_IMPORTED = "_cuda_CUDAAllocator_AllocatorState"


_T = TypeVar("_T")


def _reading(function: Callable[..., _T]) -> Callable[..., _T]:
    """``function`` with CUDA read as maca in all its arguments."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*[device_of(a) for a in args], **{k: device_of(v) for k, v in kwargs.items()})

    return call


def install(patches: Patches) -> None:
    """Replaces the attributes."""
    _mixed_precision(patches)
    _backends(patches)
    _loading(patches)
    _generators(patches)
    _data_parallel(patches)
    patches.replace(hooks, "devices", frozenset({*hooks.devices, "cuda"}),
                    "torch.profiler.ProfilerActivity.CUDA -> ProfilerActivity.PrivateUse1")  # fmt: skip


def _mixed_precision(patches: Patches) -> None:
    mode = torch.amp.autocast_mode
    patches.replace(mode.autocast, "__init__", _reading(mode.autocast.__init__),
                    'torch.autocast("cuda") -> torch.autocast("maca")')  # fmt: skip
    scaler: Any = torch.amp.GradScaler

    # the default device of a scaler is "cuda", so leaving the argument out must be read as well
    @functools.wraps(scaler.__init__)
    def make(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        scale_from_birth(self, device_of(device), *args, **kwargs)

    scale_from_birth = scaler.__init__
    patches.replace(scaler, "__init__", make, 'torch.amp.GradScaler("cuda") -> torch.amp.GradScaler("maca")')
    for owner, name in (*((torch, n) for n in _AUTOCAST_STATE), (mode, "is_autocast_available"),
                        (mode, "_cast"), (torch.amp, "is_autocast_available")):  # fmt: skip
        note = (
            None if owner is mode else f'{owner.__name__}.{name}("cuda") -> {owner.__name__}.{name}("maca")'
        )
        patches.replace(owner, name, _reading(getattr(owner, name)), note)


def _backends(patches: Patches) -> None:
    cudnn: Any = torch.backends.cudnn
    cuda: Any = torch.backends.cuda
    maca: Any = getattr(torch.backends, "maca", None)
    patches.replace(
        cudnn.m, "is_available", lambda: True, "torch.backends.cudnn.is_available -> maca is available"
    )
    patches.replace(cuda, "is_built", lambda: True, "torch.backends.cuda.is_built -> maca is built")
    if not hasattr(torch._C, _IMPORTED):
        patches.replace(torch._C, _IMPORTED, type("AllocatorState", (), {}))
    patches.replace(cudnn.m, "set_flags", _set_flags(cudnn.m.set_flags, maca),
                    "torch.backends.cudnn.flags -> flags of torch.backends.maca")  # fmt: skip
    for name in _FLAGS:
        if hasattr(maca, name):
            note = f"torch.backends.cudnn.{name} -> torch.backends.maca.{name}"
            patches.replace(type(cudnn), name, _flag(maca, name), note)
    if hasattr(maca, "matmul"):
        served = _First(maca.matmul, cuda.matmul)
        patches.replace(cuda, "matmul", served, "torch.backends.cuda.matmul -> torch.backends.maca.matmul")
    limit = "_cuda_get_cudnn_benchmark_limit"  # which cuDNN's own flags ask, and only a build for CUDA has
    if not hasattr(torch._C, limit):
        patches.replace(torch._C, limit, lambda: getattr(maca, "benchmark_limit", 10))


class _First:
    """The switches of one object, and of another those that it has not."""

    def __init__(self, ours: Any, theirs: Any) -> None:
        vars(self).update(_ours=ours, _theirs=theirs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ours if hasattr(self._ours, name) else self._theirs, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._ours if hasattr(self._ours, name) else self._theirs, name, value)


def _flag(owner: Any, name: str) -> property:
    return property(lambda self: getattr(owner, name), lambda self, value: setattr(owner, name, value))


def _set_flags(set_flags: Callable[..., Any], maca: Any) -> Callable[..., Any]:
    """What ``torch.backends.cudnn.flags`` sets and puts back; those that maca has not change nothing."""
    signature = inspect.signature(set_flags)
    names = [name.removeprefix("_") for name in signature.parameters]
    have = {name for name in names if name in _FLAGS and hasattr(maca, name)}
    allowed: Callable[[], AbstractContextManager[None]] = set_flags.__globals__[_UNFROZEN]

    @functools.wraps(set_flags)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        before = tuple(getattr(maca, name) if name in have else None for name in names)
        with allowed():  # as PyTorch's: torch.export sets them where a test suite has frozen them
            for name in have:
                value = given.get(f"_{name}")
                if value is not None:
                    setattr(maca, name, value)
        return before

    return call


def _loading(patches: Patches) -> None:
    serialization: Any = torch.serialization
    registry = serialization._package_registry

    def load(storage: Any, location: str) -> Any:
        if not location.startswith("cuda"):
            return None
        return serialization.default_restore_location(storage, "maca" + location[4:])

    entry = (_PRIORITY, lambda storage: None, load)
    registry.append(entry)
    registry.sort(key=lambda item: item[0])
    patches.on_undo(lambda: registry.remove(entry), 'torch.load(map_location="cuda") -> map_location="maca"')

    # a Python backend has no memory that PyTorch's own storages could point to
    def to_device(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
        index = device if isinstance(device, int) else 0
        return serialization.default_restore_location(self, f"maca:{index}")

    patches.replace(torch.storage._StorageBase, "cuda", to_device,
                    "UntypedStorage.cuda, in a map_location -> storage on maca")  # fmt: skip

    default: Any = torch.set_default_tensor_type

    @functools.wraps(default)
    def set_default_tensor_type(kind: Any) -> None:
        element = element_of(kind)
        if element is None:
            default(kind)
            return
        torch.set_default_dtype(element)
        torch.set_default_device("maca")

    patches.replace(torch, "set_default_tensor_type", set_default_tensor_type,
                    "torch.set_default_tensor_type(torch.cuda.FloatTensor) -> set_default_dtype, set_default_device")  # fmt: skip


def _generators(patches: Patches) -> None:
    original = torch.Generator

    class Generator(original):  # type: ignore[misc, valid-type]
        """A generator for CUDA is one for maca."""

        def __new__(cls, device: Any = None) -> Any:
            target = device_of(device)
            return original() if target is None else original(target)

    Generator.__module__ = "torch"
    patches.replace(torch, "Generator", Generator, 'torch.Generator("cuda") -> torch.Generator("maca")')


def _data_parallel(patches: Patches) -> None:
    module = importlib.import_module("torch.nn.parallel.data_parallel")
    patches.replace(
        module,
        "_get_available_device_type",
        torch._utils._get_available_device_type,
        "torch.nn.DataParallel -> moves its module to maca:0",
    )
