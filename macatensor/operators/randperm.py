"""``randperm``: a random operator that is a factory too."""

from __future__ import annotations

import torch
from torch._ops import OpOverload

from macatensor.dispatch.launcher import special
from macatensor.dispatch.named_kernels import launch
from macatensor.dispatch.resize import write_out
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.meta import contiguous_strides, meta_of
from macatensor.runtime.random import drawn_from


@special("aten.randperm.generator_out", "aten.randperm.out")
def _randperm(func: OpOverload) -> Launcher:
    """PyTorch makes the result and asks for it to be filled; ours is drawn, then takes its place."""

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        options = kwargs or {}
        n, out = args[0], options["out"]
        if n < 0:
            raise RuntimeError(f"n must be non-negative, got {n}")
        if n > 1 << 24 and out.dtype == torch.float32 or n > 1 << 11 and out.dtype == torch.float16:
            raise RuntimeError(f"n is too large to be represented exactly in {out.dtype}")
        with drawn_from(options.get("generator", args[1] if len(args) > 1 else None)):
            (drawn,) = launch("randperm", [], [meta_of((n,), contiguous_strides((n,)), out.dtype)], {})
        return write_out([out], drawn)

    return run
