"""``normal`` into an ``out=``: the law's parameters may be of any dtype there, as PyTorch adds them to what it has drawn."""

from __future__ import annotations

from torch import Tensor
from torch._ops import OpOverload

from macatensor.dispatch.kernel_calls import kernel_launcher
from macatensor.dispatch.launcher import special
from macatensor.dispatch.signature import find_row
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value


@special("aten.normal.Tensor_float_out", "aten.normal.float_Tensor_out", "aten.normal.Tensor_Tensor_out")
def _normal(func: OpOverload) -> Launcher:
    found = find_row(func)
    assert found is not None, func
    kernel = kernel_launcher(func, *found)

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        options = dict(kwargs or {})
        out = options["out"]

        def drawn_in(value: Value) -> Value:
            is_whole = isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex())
            return value.to(out.dtype) if is_whole and out.is_floating_point() else value

        named = {k: v if k == "out" else drawn_in(v) for k, v in options.items()}
        return kernel(tuple(map(drawn_in, args)), named)

    return run
