"""Kernels that users register for the device's key: ``torch.library.impl(lib, "erfc", "PrivateUse1")``.

Each comes before the table's row, as it comes before the kernel of any backend. Whether an overload has one is asked when
its launcher is bound; a registration, or the end of one, lets all overloads be bound anew.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch._library import custom_ops
from torch._ops import OpOverload

from macatensor.runtime import counters, plan_caches
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.ffi import native

_KEY = "PrivateUse1"
_Library: Value = torch.library.Library


class Registration(NamedTuple):
    """A kernel of a user's: what the dispatcher calls it by, ``"aten::erfc"``, and where it comes from."""

    operator: str
    origin: str


class _Kernel(NamedTuple):
    operator: str
    origin: str
    function: Callable[..., Value] | None  # None: the dispatcher knows it


_ours: set[str] = (
    set()
)  # operators that have one of this package or of PyTorch, or one that does nothing, on the key
_users: dict[
    str, list[_Kernel]
] = {}  # operators that have some of users', registered from Python: the last is asked


def _qualified(namespace: str, name: str) -> str:
    """The name that the dispatcher knows: ``"aten::erfc"`` of ``"erfc"``, ``"erfc.default"`` and ``"aten::erfc"``."""
    return f"{namespace}::{name.rpartition('::')[2].removesuffix('.default')}"


def _origin(operator: str, function: Value) -> str:
    """``"my_kernels.erfc"``."""
    of_pytorch = str(getattr(function, "__module__", "")).startswith("torch.")
    definition = custom_ops.OPDEFS.get(operator) if of_pytorch else None
    plain: Value = definition._init_fn if definition is not None else inspect.unwrap(function)
    kind = plain if hasattr(plain, "__qualname__") else type(plain)
    return f"{kind.__module__}.{kind.__qualname__}"


def _forget() -> None:
    """What was decided on the grounds of the kernels that there were."""
    plan_caches.drop_plans()
    native.forget_launchers()


def has(func: OpOverload) -> bool:
    """Has a user registered a kernel for this overload?"""
    name = func.name()
    if name in _users:
        return True
    of_cpp = func.namespace == "aten" and name not in _ours
    return of_cpp and torch._C._dispatch_has_kernel_for_dispatch_key(name, _KEY)


def registrations() -> list[Registration]:
    """Those that came by Python, by name."""
    return [Registration(name, kernels[-1].origin) for name, kernels in sorted(_users.items())]


def launcher(func: OpOverload) -> Launcher:
    """Calls of an overload that a user has a kernel for, counted."""
    name = str(func)
    kernels = _users.get(func.name())
    # PyTorch forgets which one there was before, and calls the one that is gone
    function = kernels[-1].function if kernels else None
    call = function or functools.partial(func._op_dk, torch._C.DispatchKey.PrivateUse1)

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        counters.users_kernels[name] += 1
        return call(*args, **(kwargs or {}))

    return run


def _end(registered: list[_Kernel]) -> None:
    """The library that they were registered with is gone: what was before each of them is asked again."""
    if registered:
        for kernel in registered:
            others = [k for k in _users.pop(kernel.operator) if k is not kernel]
            if others:
                _users[kernel.operator] = others
        registered.clear()
        _forget()


def follow() -> None:
    """Learns of each registration from now on, and of those before."""
    for known in torch.library._impls:
        namespace, name, key = known.split("/")
        if key == _KEY:
            name = _qualified(namespace, name)
            _users[name] = [_Kernel(name, "registered before macatensor was imported", None)]
    plain_impl, plain_destroy = _Library.impl, _Library._destroy
    plain_load: Value = torch.ops.load_library
    held: weakref.WeakKeyDictionary[Value, list[_Kernel]] = weakref.WeakKeyDictionary()

    @functools.wraps(plain_impl)
    def impl(self: Value, op_name: Value, fn: Value, dispatch_key: str = "", **options: Value) -> Value:
        result = plain_impl(self, op_name, fn, dispatch_key, **options)
        if (dispatch_key or self.dispatch_key) != _KEY:
            return result
        name = _qualified(self.ns, op_name if isinstance(op_name, str) else op_name.name())
        origin = _origin(name, fn)
        if origin.startswith(("macatensor.", "torch.")) or fn is torch.library.fallthrough_kernel:
            _ours.add(name)
            return result
        if self not in held:
            registered = held[self] = []
            weakref.finalize(self, _end, registered).atexit = False
        kernel = _Kernel(name, origin, None if options.get("with_keyset") else fn)
        held[self].append(kernel)
        _users.setdefault(name, []).append(kernel)
        _forget()
        return result

    @functools.wraps(plain_destroy)
    def destroy(self: Value) -> None:
        plain_destroy(self)
        if self in held:
            _end(held[self])

    @functools.wraps(plain_load)
    def load_library(path: Value) -> None:
        plain_load(path)
        _forget()  # its kernels are asked for when a launcher is bound

    _Library.impl, _Library._destroy = impl, destroy
    torch.ops.load_library = load_library  # type: ignore[method-assign]
