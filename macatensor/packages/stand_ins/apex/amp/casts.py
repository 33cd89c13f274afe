"""What is converted at O1: PyTorch's autocast, and functions of the user's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_Function = TypeVar("_Function", bound=Callable[..., object])
_Tree = TypeVar("_Tree")
_devices: list[str] = []  # of the models that O1 has been asked for


def switch_on(device: str) -> None:
    """Autocast in float16 from now on, as apex patches PyTorch's functions. Weights are converted at each use: the cache
    of autocast lives as long as its context, which here has no end."""
    if device not in _devices:
        _devices.append(device)
    torch.set_autocast_dtype(device, torch.float16)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_cache_enabled(False)


def switch_off() -> None:
    """What :func:`switch_on` did is over."""
    while _devices:
        torch.set_autocast_enabled(_devices.pop(), False)
        torch.set_autocast_cache_enabled(True)


@contextmanager
def disable_casts() -> Iterator[None]:
    """No conversions inside."""
    on = [device for device in _devices if torch.is_autocast_enabled(device)]
    for device in on:
        torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        for device in on:
            torch.set_autocast_enabled(device, True)


def converted(values: _Tree, dtype: torch.dtype) -> _Tree:
    """Floating point tensors anywhere in ``values`` in ``dtype``."""
    result: _Tree = pytree.tree_map(
        lambda v: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v, values
    )
    return result


def _casting(function: _Function, choose: Callable[[list[Tensor]], torch.dtype]) -> _Function:
    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        if not any(torch.is_autocast_enabled(device) for device in _devices):
            return function(*args, **kwargs)
        leaves = [
            v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, Tensor) and v.is_floating_point()
        ]
        given = converted((args, kwargs), choose(leaves))
        with disable_casts():
            return function(*given[0], **given[1])

    return call  # type: ignore[return-value]


def half_function(function: _Function) -> _Function:
    """``function`` with its floating point tensors in float16 at O1."""
    return _casting(function, lambda leaves: torch.float16)


def float_function(function: _Function) -> _Function:
    """``function`` with its floating point tensors in float32 at O1."""
    return _casting(function, lambda leaves: torch.float32)


def promote_function(function: _Function) -> _Function:
    """``function`` with its floating point tensors in the widest of their dtypes at O1."""
    return _casting(
        function,
        lambda leaves: functools.reduce(torch.promote_types, [v.dtype for v in leaves], torch.float16),
    )


def register_half_function(module: ModuleType, name: str) -> None:
    """Makes ``module.name`` a :func:`half_function`."""
    setattr(module, name, half_function(getattr(module, name)))


def register_float_function(module: ModuleType, name: str) -> None:
    """Makes ``module.name`` a :func:`float_function`."""
    setattr(module, name, float_function(getattr(module, name)))


def register_promote_function(module: ModuleType, name: str) -> None:
    """Makes ``module.name`` a :func:`promote_function`."""
    setattr(module, name, promote_function(getattr(module, name)))
