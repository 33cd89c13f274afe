"""Operators that PyTorch takes apart above the device, or computes in C++ of its own there, and that are served whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common.wrappers import _maybe_resize_out

from macatensor.dispatch import rowless
from macatensor.dispatch.launcher import special
from macatensor.dispatch.resize import write_out
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.tensor import MacaTensor

_Function = TypeVar("_Function", bound=Callable[..., Value])

# What the dispatcher calls in the place of PyTorch's own, by overload; as for any kernel of this key, the derivative is
# that of what the function calls.
ON_AUTOGRAD_KEY: dict[str, Callable[..., Value]] = {}
# PyTorch takes these apart above autograd, but where the device's key has a kernel; then it has their derivatives, too.
# Rows of the op table serve them.
_IN_ONE_PIECE = ("_fused_rms_norm",)
_library: torch.library.Library | None = None


def whole(*names: str) -> Callable[[_Function], _Function]:
    """Decorates what is called with the operator's arguments, with autograd and, under inference_mode, without.

    ``names`` are overloads of aten, such as ``"lstm.input"``.
    """

    def register(function: _Function) -> _Function:
        def undecomposed(func: OpOverload) -> Launcher:
            def run(args: Arguments, kwargs: Keywords | None) -> Value:
                return function(*args, **(kwargs or {}))

            return run

        ON_AUTOGRAD_KEY.update(dict.fromkeys(names, function))
        special(*(f"aten.{name}" for name in names))(undecomposed)
        return function

    return register


def overload(name: str) -> OpOverload:
    """The overload of aten of that name, such as ``"lstm.input"``."""
    packet, _, kind = name.partition(".")
    found: OpOverload = getattr(getattr(torch.ops.aten, packet), kind)
    return found


def taken_apart(operator: OpOverload, *args: Value, **kwargs: Value) -> Value:
    """What PyTorch's own composite of the operator gives: in C++, where ``decompose()`` calls some in Python that check less."""
    return operator._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def give(out: Tensor, result: Tensor) -> Value:
    """What an operator with ``out=`` returns: ``out``, of the result's shape and numbers."""
    if isinstance(out, MacaTensor):
        return write_out([out], result)
    return _maybe_resize_out(out, result.shape).copy_(result)  # in a traced program


def register() -> None:
    """Takes the operators over on the autograd key, or has PyTorch keep them in one piece."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    for name, function in ON_AUTOGRAD_KEY.items():
        _library.impl(name.removesuffix(".default"), function, "AutogradPrivateUse1")
    for name in _IN_ONE_PIECE:
        rowless.OURS.add(f"aten::{name}")
        # called of tensors that are not ours, of which there are none on the device
        _library.impl(name, overload(f"{name}.default").decompose, "PrivateUse1")
