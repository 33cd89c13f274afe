"""When a call goes wrong that is right by itself: at the first launch of a plan, with operands written anew, on a stream."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING

import torch

from macatensor.parity.transport import tensors
from macatensor.runtime import plan_caches
from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.ffi import allocate
from macatensor.runtime.tensor import MacaTensor

if TYPE_CHECKING:
    from macatensor.runtime.ffi import Buffer

_HELD = 16  # blocks of memory for each operand
_LARGEST_HELD = 1 << 22  # bytes of one
LAUNCHES_BEFORE = 3  # what the library keeps of a constant operand is kept by then


class Circumstance(Enum):
    """What comes before a call, or where it runs. The value is a phrase for a report."""

    ALONE = "by itself"
    FIRST = "where its plan is launched for the first time"
    REWRITTEN = "after launches from the same memory with other values"
    STREAM = "on a stream of its own"


def memory_used_before(operands: list[torch.Tensor | None]) -> list[Buffer]:
    """Memory as large as the operands', as the allocator gives it: while it is held, they get some that the library has
    not met with their values in it."""
    sizes = [t.numel() * t.element_size() for t in operands if t is not None]
    return [allocate(n) for n in sizes if n <= _LARGEST_HELD for _ in range(_HELD)]


@contextlib.contextmanager
def brought_about(
    circumstance: Circumstance, args: Arguments, kwargs: Keywords, call: Callable[[], Value]
) -> Iterator[None]:
    """A call on maca that runs inside runs in this circumstance; ``call`` is that call."""
    if circumstance is Circumstance.FIRST:
        plan_caches.drop_plans()
    elif circumstance is Circumstance.REWRITTEN:
        _launch_with_other_values(args, kwargs, call)
    elif circumstance is Circumstance.STREAM:
        device = torch.get_device_module("maca")
        device.synchronize()
        with device.stream(device.Stream()):
            yield
        device.synchronize()
        return
    yield


def _launch_with_other_values(args: Arguments, kwargs: Keywords, call: Callable[[], Value]) -> None:
    """Launches from zeros in the operands' memory, then gives that its values back. Integers stay: they may be places."""
    operands = [t for t in tensors((args, kwargs)) if isinstance(t, MacaTensor) and t.dtype.is_floating_point]
    rows = [
        torch.as_strided(t, (t.untyped_storage().nbytes() // t.element_size(),), (1,), 0) for t in operands
    ]
    values = [row.clone() for row in rows]
    for row in rows:
        row.zero_()
    for _ in range(LAUNCHES_BEFORE):
        call()
    for row, value in zip(rows, values):
        row.copy_(value)
