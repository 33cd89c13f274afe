"""A kernel's results in memory of the caller's choice, for operators without an ``out=`` form that writes there directly.

For who looks at what a kernel does to the memory around its results; PyTorch's own ``out=`` may take a copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch._ops import OpOverload

from macatensor.dispatch.kernel_calls import KernelLauncher
from macatensor.dispatch.launcher import Run
from macatensor.dispatch.plan import create, meta_tensor, result_meta
from macatensor.dispatch.request import Scalar
from macatensor.dispatch.signature import Form, find_row
from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.tensor import MacaTensor, Payload, payload
from op_table import Kind, Row


class _Placing(KernelLauncher):
    """Calls whose results go to ``places``; ``placed`` says afterwards whether they did."""

    def __init__(self, func: OpOverload, row: Row, twin: OpOverload):
        super().__init__(func, row, Form.DIRECT, twin)
        self.places: list[torch.Tensor] = []
        self.placed = False

    def make(self, full: list[Value], given: int, inferred: Value) -> Run:
        results = inferred if isinstance(inferred, tuple) else (inferred,)
        metas = [m for r in results if isinstance(r, torch.Tensor) and (m := result_meta(r)) is not None]
        if len(metas) != len(results):
            return super().make(full, given, inferred)  # lists, or a result that is absent
        like = tuple(meta_tensor(m) for m in metas)
        returned = [len(full) + i for i in range(len(metas))]
        program = create(
            self.signature, self.row, full, given, like, result_memory=metas, returned=returned
        )  # fmt: skip

        def run(args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]) -> Value:
            if [payload(t)[2] for t in self.places] != metas:
                return self.signature.call(self.func, self.signature.fill(args, None))
            missing = (None,) * (len(full) - len(args))
            self.placed = True
            return program((*args, *missing, *self.places), [*payloads, *map(payload, self.places)], scalars)

        return run


# kept, as a plan for each call anew took more time than the rest of looking at its memory
_launchers: dict[OpOverload, _Placing] = {}
_one_at_a_time = threading.RLock()


def may_place_results(func: object) -> bool:
    """Is there one kernel that makes an operator's results?"""
    found = find_row(func) if isinstance(func, OpOverload) else None
    if found is None or found[1] is not Form.DIRECT:
        return False
    return found[0].kind is Kind.KERNEL and not found[0].otherwise


def place_results(
    func: Callable[..., Value], args: Arguments, kwargs: Keywords, places: Sequence[torch.Tensor]
) -> bool:
    """Calls an operator whose results go to tensors of their sizes, strides and dtypes. False where they went elsewhere,
    as no one kernel makes them."""
    if not isinstance(func, OpOverload) or not may_place_results(func):
        return False
    found = find_row(func)
    if found is None or not all(isinstance(t, MacaTensor) for t in places):
        return False
    with _one_at_a_time:
        launcher = _launchers.get(func)
        if launcher is None:
            launcher = _launchers.setdefault(func, _Placing(func, found[0], found[2]))
        launcher.places, launcher.placed = list(places), False
        try:
            launcher(args, kwargs)
        finally:
            launcher.places = []
        return launcher.placed
