"""What the recorder must know of an aten operator, found once for each overload."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch._ops import OpOverload

from macatensor.accuracy.recording.naming import aten_name
from macatensor.runtime.uncompiled import uncompiled

_UNRECORDED = ("prim", "profiler", "debugprims", "_inductor_debug")

_BLANK = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")


class Operator(NamedTuple):
    """An overload, in the order that shim/recorder/operators.cpp reads. ``written``: positions and names of the arguments
    it writes."""

    packet: str  # aten.add_
    op: str  # aten.add_.Tensor
    written: tuple[tuple[int, str], ...]
    is_random: bool
    is_collective: bool  # its results come later, with a Work
    is_pending: bool  # its results come later, with wait_tensor
    is_wait: bool
    is_recorded: bool
    is_blank: bool  # its result is memory as it was found
    run: Callable[..., object]  # what the overload calls


@uncompiled
def operator(func: OpOverload) -> Operator:
    """The facts of an overload, which C keeps."""
    packet, op = aten_name(func)
    space = getattr(func, "namespace", "")
    schema = getattr(func, "_schema", None)
    written = tuple(
        (i, argument.name)
        for i, argument in enumerate(schema.arguments if schema is not None else ())
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    functional = space == "_c10d_functional"
    return Operator(
        packet,
        op,
        written,
        torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()),
        space == "c10d",
        functional and "wait_tensor" not in op,
        "wait_tensor" in op,
        space not in _UNRECORDED,
        packet.removeprefix("aten.") in _BLANK,
        func._op if type(func) is torch._ops.OpOverload else func,
    )
