"""``nn.Module.to`` across the device boundary keeps every Parameter's identity.

PyTorch makes new Parameters when a conversion changes the tensor's type, so ties break and an optimizer that was
built before keeps the old ones. ``torch.utils.swap_tensors`` mends that; PyTorch uses it for every module when a
global switch is on. Here each parameter that comes to maca or leaves it is swapped, and one that stays there gets other
data, as PyTorch's do, so that a live graph does not stand in the way. Modules on the host are converted as ever. Script
modules get new Parameters.
"""

from __future__ import annotations

import functools
import gc
import importlib
import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from macatensor.runtime.attributes import OURS, whole_attributes
from macatensor.runtime.ffi import native
from macatensor.runtime.tensor import MacaTensor, plain_data

_PLAIN = torch.Tensor.__torch_dispatch__
_convert: Callable[..., torch.nn.Module] = torch.nn.Module._apply


@functools.wraps(_convert)
def _apply(
    self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> torch.nn.Module:
    if recurse:  # children decide for themselves, so they get the function itself
        for module in self.children():
            module._apply(fn)
    applied: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for p in self._parameters.values():
            if p is not None and id(p) not in applied:
                applied[id(p)] = fn(p)

    def once(t: torch.Tensor) -> torch.Tensor:
        return applied.pop(id(t)) if id(t) in applied else fn(t)

    ours = {
        name: p
        for name, p in self._parameters.items()
        if p is not None and (isinstance(p, MacaTensor) or isinstance(applied[id(p)], MacaTensor))
    }
    # PyTorch by itself does what its users ask for in the place of its default
    future = torch.__future__
    if (
        not ours
        or future.get_swap_module_params_on_conversion()
        or future.get_overwrite_module_params_on_conversion()
    ):
        return _convert(self, once, False)
    if isinstance(self, torch.jit.ScriptModule):
        _replace(self, once)
        return self
    if any(isinstance(p, MacaTensor) != isinstance(applied[id(p)], MacaTensor) for p in ours.values()):
        _let_go(self)
    for name, p in ours.items():
        if id(p) not in applied:
            continue
        try:
            _become(p, applied[id(p)], fn, f"{self._get_name()}.{name}")
        except _Watched as error:
            replaced = _stand_in(p, applied[id(p)], fn)
            if replaced is None:
                raise RuntimeError(str(error)) from error
            for key in [key for key, held in self._parameters.items() if held is p]:
                self._parameters[key] = replaced
        del applied[id(p)]
    # the others, and what is no parameter, are PyTorch's
    every = self._parameters
    self.__dict__["_parameters"] = {name: p for name, p in every.items() if name not in ours}
    try:
        _convert(self, once, False)
    finally:
        every.update(self._parameters)
        self.__dict__["_parameters"] = every
    return self


def become(tensor: torch.Tensor, device: torch.device, name: str) -> None:
    """Makes a Parameter or a tensor of the host one of the device, which whoever holds it sees. Raises RuntimeError where
    a graph or a profiler holds it."""
    with torch.no_grad():
        moved = tensor.to(device)
    if not isinstance(tensor, torch.nn.Parameter):
        torch.utils.swap_tensors(tensor, moved)
        return
    _move(tensor, moved, name)


def _move(p: Any, moved: torch.Tensor, name: str) -> None:
    """Gives a Parameter what ``moved`` holds, and takes its gradient to that device: for whom no other Parameter will do."""
    try:
        _become(p, moved, lambda t: t.to(moved.device), name)
    except _Watched as error:
        raise RuntimeError(str(error)) from error


def _assign_data(target: torch.Tensor, value: torch.Tensor) -> None:
    """``target.data = value``, where one of them is of the device, or both.

    Across the boundary ``target`` becomes a tensor of the other type, as a Parameter does in ``nn.Module.to``, and its
    gradient goes with it. Raises RuntimeError where a graph or a profiler holds ``target``, and PyTorch's own where
    neither is a plain tensor.
    """
    kinds = [type(t) for t in (target, value) if not isinstance(t, MacaTensor)]
    if not isinstance(value, torch.Tensor):
        plain_data.__set__(target, value)  # which refuses it
    elif not kinds:
        plain_data.__set__(target, value)
        target._payload = value._payload  # type: ignore[attr-defined]
    elif any(getattr(kind, "__torch_dispatch__", _PLAIN) is not _PLAIN for kind in kinds):
        plain_data.__set__(target, value)  # which refuses it
    elif not target.is_leaf:
        raise RuntimeError(
            f"cannot assign a tensor on {value.device} to the data of one on {target.device} that a graph computes; "
            "assign to its detach()"
        )
    elif isinstance(target, torch.nn.Parameter):
        grad = target.grad
        data = value.detach()
        if grad is not None and (grad.dtype, grad.shape) != (value.dtype, value.shape):
            # one of another kind may stay where data is set, and may not be set beside it
            data = torch.empty_like(grad, device=value.device)
        _move(target, data, "the tensor whose data is set")
        if data.dtype != value.dtype or data.shape != value.shape:
            target.data = value
    else:
        other = value.detach()
        kind = getattr(type(target), "users_class", type(target))
        if kind not in (torch.Tensor, MacaTensor):
            other = other.as_subclass(kind)
        try:
            torch.utils.swap_tensors(target, other.requires_grad_(target.requires_grad))
        except RuntimeError as error:
            _swap_back(target, other)
            raise RuntimeError(
                f"cannot assign a tensor on {value.device} to the data of one on {target.device} that a graph or a weak "
                "reference holds; let go of it first, or take a new tensor"
            ) from error


def _become(p: Any, applied: Any, fn: Any, name: str) -> None:
    """Gives a Parameter of the device, now or by then, and its gradient what their conversions hold."""
    grad = p.grad
    if applied is not p:
        if isinstance(p, MacaTensor) and isinstance(applied, MacaTensor):
            p.data = applied  # a live graph may hold it
        else:
            _cross(p, _counterpart(p, applied), name)
    if grad is None:
        return
    with torch.no_grad():
        moved = fn(grad)
    if isinstance(grad, MacaTensor) == isinstance(moved, MacaTensor):
        grad.data = moved
    else:
        moved.requires_grad_(grad.requires_grad)
        torch.utils.swap_tensors(grad, moved)
    p.grad = grad


def _counterpart(p: Any, applied: Any) -> Any:
    """What a Parameter is on the other side of the boundary: one of its class, with its attributes."""
    kind = getattr(type(p), "users_class", type(p))
    if issubclass(kind, torch.nn.Parameter) and kind is not torch.nn.Parameter:
        other = torch.Tensor._make_subclass(kind, applied, p.requires_grad)
    else:
        other = torch.nn.Parameter(applied, p.requires_grad)
    for name, value in vars(p).items():
        if name not in OURS:
            other.__dict__.setdefault(name, value)
    return other


def _cross(p: Any, other: Any, name: str) -> None:
    """Swaps a Parameter with what it is on the other side of the boundary, where its type is another."""
    # the swap leaves gradient hooks with the old tensor, and a gradient would count as one more that holds it
    hooks = p._backward_hooks, p._post_accumulate_grad_hooks
    grad, p.grad = p.grad, None
    try:
        torch.utils.swap_tensors(p, other)
    except RuntimeError as error:
        if "weakref" in str(error):
            _swap_back(p, other)
        p.grad = grad
        if "weakref" in str(error):
            raise _Watched(
                f"_apply(): Couldn't swap {name}: something keeps weak references to it, as torch.profiler does with "
                "record_shapes or with_stack, and an optimizer was built with it. Move the module before it is profiled"
            ) from error
        if "use_count" not in str(error):
            raise RuntimeError(f"_apply(): Couldn't swap {name}") from error
        raise RuntimeError(
            f"_apply(): Couldn't swap {name}: the graph of an earlier forward holds it. Let go of that forward's "
            "results, or detach them, before the module moves to or from maca"
        ) from error
    finally:
        backward, post_accumulate = hooks
        if backward is not None:
            p._backward_hooks = backward
        if post_accumulate is not None:
            p._post_accumulate_grad_hooks = post_accumulate


def _swap_back(p: Any, other: Any) -> None:
    """Undoes what ``torch.utils.swap_tensors`` had done when C++ refused: classes and attributes were swapped by then."""
    if isinstance(p, MacaTensor) == (p.device.type == "maca"):
        return
    p.__class__, other.__class__ = other.__class__, p.__class__
    with whole_attributes():
        p.__dict__, other.__dict__ = other.__dict__, p.__dict__


class _Watched(Exception):
    """Weak references of C++ to a Parameter, which no swap survives."""


def _stand_in(p: Any, applied: Any, fn: Any) -> Any:
    """A new Parameter where one cannot be swapped, the same one for all that are tied; None where an optimizer was built
    with the old one, which it would go on to update."""
    moved = getattr(p, "_maca_moved_to", None)
    if moved is not None and isinstance(moved, MacaTensor) == isinstance(applied, MacaTensor):
        return moved
    # isinstance() would ask lazy modules for their class, which import and warn
    optimizers = (held for held in gc.get_objects() if issubclass(type(held), torch.optim.Optimizer))
    if any(p is q for held in optimizers for group in held.param_groups for q in group["params"]):
        return None
    moved = torch.nn.Parameter(applied, p.requires_grad)
    if p.grad is not None:
        with torch.no_grad():
            moved.grad = fn(p.grad)
    p._maca_moved_to = moved
    return moved


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
    """For ``DataParallel``, which would move a module of the host to the device: an import of this package alone changes
    nothing for programs of the host. As on a machine without accelerators the module is then called as it is."""
    kind: str | None = torch._utils._get_available_device_type()
    module = sys._getframe(1).f_locals.get("module")
    held = (
        itertools.chain(module.parameters(), module.buffers()) if isinstance(module, torch.nn.Module) else ()
    )
    return None if kind == "maca" and not any(isinstance(t, MacaTensor) for t in held) else kind


def register() -> None:
    """Installs the conversion."""
    torch.nn.Module._apply = _apply  # type: ignore[method-assign]
    tensor: Any = torch.Tensor
    tensor.data = native.AssignedAttribute(plain_data, MacaTensor, _assign_data)
    parallel: Any = importlib.import_module("torch.nn.parallel.data_parallel")
    parallel._get_available_device_type = _has_replicas
