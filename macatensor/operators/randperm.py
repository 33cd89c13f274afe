"""``randperm``: a random operator that is a factory too."""

from __future__ import annotations

import torch
from torch._ops import OpOverload

from macatensor.dispatch.errors import scalar_type
from macatensor.dispatch.launcher import special
from macatensor.dispatch.named_kernels import launch
from macatensor.dispatch.resize import write_out
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.meta import contiguous_meta
from macatensor.runtime.random import drawn_from

# how many numbers from 0 on have no gap; PyTorch lets bfloat16 round
_MOST = {torch.float16: (1 << 11) + 1, torch.float32: (1 << 24) + 1, torch.float64: (1 << 53) + 1}


@special("aten.randperm.generator_out", "aten.randperm.out")
def _randperm(func: OpOverload) -> Launcher:
    """PyTorch makes the result and asks for it to be filled; ours is drawn, then takes its place."""

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        options = kwargs or {}
        n, out = args[0], options["out"]
        if n < 0:
            raise RuntimeError(f"n must be non-negative, got {n}")
        most = _MOST.get(out.dtype)
        if most is not None and n > most:
            raise RuntimeError(f"n cannot be greater than {most} for {scalar_type(out.dtype)} type.")
        if out.dtype.is_complex:
            raise NotImplementedError(f"\"randperm\" not implemented for '{scalar_type(out.dtype)}'")
        with drawn_from(options.get("generator", args[1] if len(args) > 1 else None)):
            (drawn,) = launch("randperm", [], [contiguous_meta((n,), out.dtype)], {})
        return write_out([out], drawn)

    return run
