"""How an operator overload reaches the device is decided here, once, when it is first called."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType

import torch
from torch._ops import OpOverload

from macatensor.dispatch import extension_calls, host_fallback, users_kernels
from macatensor.dispatch.kernel_calls import kernel_launcher
from macatensor.dispatch.launcher import SPECIAL, static_key
from macatensor.dispatch.out_arguments import checked
from macatensor.dispatch.plan import ABSENT
from macatensor.dispatch.rowless import without_row
from macatensor.dispatch.signature import Form, find_row
from macatensor.dispatch.view_calls import ViewLauncher, change_wrapper
from macatensor.operators import composites, dynamic
from macatensor.runtime import tensor
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.ffi import launch_error, native
from macatensor.runtime.uncompiled import uncompiled
from op_table import Kind

_wrappers: list[Callable[[OpOverload, Launcher], Launcher]] = []


def wrap_launchers(wrapper: Callable[[OpOverload, Launcher], Launcher]) -> None:
    """From now on, for the whole process, an overload's launcher is what ``wrapper`` makes of it: for who counts calls."""
    _wrappers.append(wrapper)
    native.forget_launchers()


@uncompiled
def bind(func: OpOverload) -> Launcher:
    """Finds the way of an overload, once."""
    if users_kernels.has(func):
        way = users_kernels.launcher(func)
    else:
        way = _way_of(func)
        if any(a.is_out for a in func._schema.arguments):
            way = checked(func, way)
    for wrapper in _wrappers:
        way = wrapper(func, way)
    uncompiled(way if isinstance(way, FunctionType) else type(way))
    native.set_launcher(func, way)
    return way


def _way_of(func: OpOverload) -> Launcher:
    make = SPECIAL.get(str(func))
    if make is not None:
        return make(func)
    if torch.Tag.inplace_view in func.tags:
        return change_wrapper(func)
    found = find_row(func)
    if found is None and extension_calls.serves(func):
        return extension_calls.ExtensionLauncher(func)
    if found is None:
        return lambda args, kwargs: without_row(func, args, kwargs, "the op table has no row for it")
    row, form, twin = found
    if row.otherwise:
        return composites.kernel_or_composite(func, row, form, twin)
    if row.kind is Kind.KERNEL:
        return kernel_launcher(func, row, form, twin)
    if row.kind is Kind.VIEW and form is Form.DIRECT:
        return ViewLauncher(func)
    if row.kind is Kind.COMPOSITE:
        return composites.launcher(func, row, form, twin)
    if row.kind is Kind.DYNAMIC:
        return dynamic.launcher(func, row, form, twin)
    return lambda args, kwargs: host_fallback.on_cpu(func, args, kwargs or {}, row.why)


@uncompiled
def _below_modes(launcher: Launcher, args: Arguments, kwargs: Keywords | None) -> Value:
    with torch._C.DisableTorchFunction():
        return launcher(args, kwargs)


def configure_launcher() -> None:
    """Tells the launchers' module, once the device is registered, what it has to know of PyTorch and of us."""
    native.configure(
        tensor=tensor.MacaTensor,
        make_wrapper=torch.Tensor._make_wrapper_subclass,
        strided=torch.strided,
        device=tensor.device(),
        bind=bind,
        failure=uncompiled(launch_error),
        static_key=uncompiled(static_key),
        true_key=static_key(True),
        false_key=static_key(False),
        plain_types=(str, torch.dtype, torch.layout, torch.memory_format, torch.device),
        in_inference=torch.is_inference_mode_enabled,
        is_deterministic=torch._C._get_deterministic_algorithms,
        absent=ABSENT,
        is_profiled=torch._C._autograd._profiler_enabled,
        function_modes=torch._C._len_torch_function_stack,
        below_modes=_below_modes,
    )
