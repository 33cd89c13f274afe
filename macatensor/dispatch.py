"""How an operator overload reaches the device is decided here, once, when it is first called."""

from __future__ import annotations

from typing import Any

import torch

from macatensor import composites, dynamic, host_fallback, tensor
from macatensor.kernel_calls import KernelLauncher, RandomLauncher
from macatensor.launcher import SPECIAL, Launcher
from macatensor.out_arguments import checked
from macatensor.rowless import without_row
from macatensor.signature import Form, find_row
from macatensor.tensor import LAUNCHERS
from macatensor.view_calls import ViewLauncher, change_wrapper
from op_table import Kind


def bind(func: Any) -> Launcher:
    """Finds the way of an overload, once."""
    launcher = _way_of(func)
    if any(a.is_out for a in func._schema.arguments):
        launcher = checked(func, launcher)
    LAUNCHERS[id(func)] = launcher
    _bound.append(func)  # ids stay theirs
    return launcher


_bound: list[Any] = []


def _way_of(func: Any) -> Launcher:
    make = SPECIAL.get(str(func))
    if make is not None:
        return make(func)
    if torch.Tag.inplace_view in func.tags:
        return change_wrapper(func)
    found = find_row(func)
    if found is None:
        return lambda args, kwargs: without_row(func, args, kwargs, "the op table has no row for it")
    row, form, twin = found
    if row.kind is Kind.KERNEL:
        return (RandomLauncher if row.random else KernelLauncher)(func, row, form, twin).quick()
    if row.kind is Kind.VIEW and form is Form.DIRECT:
        return ViewLauncher(func).quick()
    if row.kind is Kind.COMPOSITE:
        return composites.launcher(func, row, form, twin)
    if row.kind is Kind.DYNAMIC:
        return dynamic.launcher(func, row, form, twin)
    return lambda args, kwargs: host_fallback.on_cpu(func, args, kwargs or {}, row.why)


tensor.bind = bind
