"""``nn.Module.to`` across the device boundary keeps every Parameter's identity.

PyTorch makes new Parameters when a conversion changes the tensor's type, so ties break and an optimizer that was
built before keeps the old ones. ``torch.utils.swap_tensors`` mends that; PyTorch uses it for every module when a
global switch is on. Here the switch is on only while a module is converted to or from maca, so modules that stay on
the host are converted as ever. Script modules get new Parameters.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from macatensor.runtime.tensor import MacaTensor

_convert: Callable[..., torch.nn.Module] = torch.nn.Module._apply


@functools.wraps(_convert)
def _apply(
    self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> torch.nn.Module:
    first = next((p for p in self._parameters.values() if p is not None), None)
    if first is None:
        return _convert(self, fn, recurse)
    involved = isinstance(first, MacaTensor)
    applied: dict[int, torch.Tensor] = {}
    if not involved:
        # PyTorch decides before it converts; so convert the first parameter now and hand the result out below
        with torch.no_grad():
            applied[id(first)] = fn(first)
        involved = isinstance(applied[id(first)], MacaTensor)

    def once(t: torch.Tensor) -> torch.Tensor:
        return applied.pop(id(t)) if id(t) in applied else fn(t)

    if recurse:  # children decide for themselves, so they get the function itself
        for module in self.children():
            module._apply(fn)
    if not involved:
        return _convert(self, once, False)
    if isinstance(self, torch.jit.ScriptModule):
        _replace(self, once)
        return self
    _let_go(self)
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    # the swap leaves gradient hooks with the old tensor
    hooks = [
        (p, p._backward_hooks, p._post_accumulate_grad_hooks)
        for p in self._parameters.values()
        if p is not None
    ]
    try:
        return _convert(self, once, False)
    except RuntimeError as error:
        if "use_count" not in str(error.__cause__):
            raise
        raise RuntimeError(
            f"{error}: the graph of an earlier forward holds it. Let go of that forward's results, or detach them, "
            "before the module moves to or from maca"
        ) from error
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
        for p, backward, post_accumulate in hooks:
            if backward is not None:
                p._backward_hooks = backward
            if post_accumulate is not None:
                p._post_accumulate_grad_hooks = post_accumulate


def _replace(module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Converts a script module: C++ holds its parameters, so they cannot be swapped and become new ones. Those of a
    loaded one are plain tensors."""
    for held in (module._parameters, module._buffers):
        for name, t in list(held.items()):
            if t is None:
                continue
            with torch.no_grad():
                moved = fn(t)
            if isinstance(t, torch.nn.Parameter):
                moved = torch.nn.Parameter(moved, t.requires_grad)
            elif t.requires_grad and t.is_leaf:
                moved.requires_grad_()
            if t.is_leaf and t.grad is not None:
                with torch.no_grad():
                    moved.grad = fn(t.grad)
            held[name] = moved  # type: ignore[assignment]  # of parameters each is one


def _let_go(module: torch.nn.Module) -> None:
    """Cuts the graphs of weights that the hooks of ``nn.utils.weight_norm`` and ``spectral_norm`` compute anew before
    each forward: a graph holds the parameters, which then could not be swapped."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, (WeightNorm, SpectralNorm)):
            setattr(module, hook.name, getattr(module, hook.name).detach())


def _has_replicas() -> str | None:
    """For ``DataParallel``: one device is visible, so there is nothing to divide, and PyTorch's scatter needs a build
    with CUDA. As on a machine without accelerators the module is then called as it is, wherever it lives."""
    kind: str | None = torch._utils._get_available_device_type()
    return None if kind == "maca" else kind


def register() -> None:
    """Installs the conversion."""
    torch.nn.Module._apply = _apply  # type: ignore[method-assign]
    parallel: Any = importlib.import_module("torch.nn.parallel.data_parallel")
    parallel._get_available_device_type = _has_replicas
