"""Reductions of segments: PyTorch has two names for the extremes."""

from __future__ import annotations

from torch._ops import OpOverload

from macatensor.dispatch.kernel_calls import kernel_launcher
from macatensor.dispatch.launcher import special
from macatensor.dispatch.rowless import without_row
from macatensor.dispatch.signature import find_row
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value

# torch.masked says "amax" where the kernel, as torch.segment_reduce, says "max"
_NAMES = {"amax": "max", "amin": "min"}


@special("aten.segment_reduce.default", "aten._segment_reduce_backward.default")
def _segment_reduce(func: OpOverload) -> Launcher:
    found = find_row(func)
    kernel = kernel_launcher(func, *found) if found else None
    at = [a.name for a in func._schema.arguments].index("reduce")

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        if len(args) > at and args[at] in _NAMES:
            args = (*args[:at], _NAMES[args[at]], *args[at + 1 :])
        return (
            kernel(args, kwargs)
            if kernel
            else without_row(func, args, kwargs, "the op table has no row for it")
        )

    return run
