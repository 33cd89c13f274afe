"""Operators that the table does not serve: the user's kernel, then a decomposition, then the host."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch._C import DispatchKey
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel
from torch._ops import OpOverload

from macatensor.dispatch import host_fallback
from macatensor.dispatch.errors import check_devices, refuse_nested
from macatensor.dispatch.forms import in_form
from macatensor.dispatch.request import Declined
from macatensor.dispatch.signature import Form, functional
from macatensor.runtime.boxed import Arguments, Keywords, Value

# A key by its name takes 2 us to look up, a third of what an operator without a row takes here.
_IMPLICIT, _EXPLICIT = DispatchKey.CompositeImplicitAutograd, DispatchKey.CompositeExplicitAutograd
_DEVICE = DispatchKey.PrivateUse1
_thread = threading.local()
# Overloads whose kernel on the device's key is this package's: it would come back here.
OURS: set[str] = set()


def _inside() -> list[str]:
    """Overloads that this thread is inside of: PyTorch's decomposition of some calls another overload of the operator,
    whose decomposition may call the first one again, for ever."""
    inside: list[str] | None = getattr(_thread, "inside", None)
    if inside is None:
        inside = _thread.inside = []
    return inside


def taken_apart(func: OpOverload, args: Arguments, kwargs: Keywords, explicit: bool) -> Value:
    """What PyTorch's decomposition gives; NotImplemented where there is none.

    ``explicit``: may one be used that PyTorch keeps below autograd?
    """
    name = func.name()
    if has_kernel(name, _IMPLICIT):
        # what func.decompose() does after it has asked for the kernel once more
        written = func.py_kernels.get(_IMPLICIT)
        result = written(*args, **kwargs) if written else func._op_dk(_IMPLICIT, *args, **kwargs)
        if result is not NotImplemented:
            return result
    operator = func._schema.name
    if (
        explicit
        and has_kernel(name, _EXPLICIT)
        and not any(torch.Tag.view_copy == t for t in func.tags)
        and operator != "aten::copy_"  # what that kernel does on a device is to ask the device to copy
        and name not in _inside()
    ):
        _inside().append(name)
        try:
            return func._op_dk(_EXPLICIT, *args, **kwargs)
        finally:
            _inside().remove(name)
    return NotImplemented


def without_row(func: OpOverload, args: Arguments, kwargs: Keywords | None, reason: str) -> Value:
    """An operator the table does not serve: the user's kernel, then a decomposition, then the host."""
    kwargs = kwargs or {}
    name = func.name()
    if name not in OURS and has_kernel(name, _DEVICE):
        return func._op_dk(_DEVICE, *args, **kwargs)
    given = [*args, *kwargs.values()]
    try:
        result = taken_apart(func, args, kwargs, explicit=True)
    except RuntimeError:
        refuse_nested(str(func), given)  # of which decompositions ask sizes
        raise
    if result is not NotImplemented:
        return result
    check_devices(str(func), given)
    allocating = functional(func)
    if (
        allocating is not None
    ):  # whatever computes it, tensors of the caller are written by us, which checks them
        return in_form(func, Form.OUT, allocating, allocating)(args, kwargs)
    return host_fallback.on_cpu(func, args, kwargs, reason)


def with_a_next_way(func: OpOverload, body: Callable[..., Value]) -> Callable[..., Value]:
    """``body``, which computes ``func``, and what serves ``func`` without it where the library lacks a kernel of its."""

    def run(*args: Value, **kwargs: Value) -> Value:
        try:
            return body(*args, **kwargs)
        except Declined as error:
            return without_row(func, args, kwargs, str(error))

    return run
