"""What the recorder must know of an aten operator, found once for each overload."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from macatensor.accuracy.recording.naming import aten_name

_UNRECORDED = ("prim", "profiler", "debugprims", "_inductor_debug")

_BLANK = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")


class Operator(NamedTuple):
    """An overload. ``written``: positions and names of the arguments it writes."""

    packet: str  # aten.add_
    op: str  # aten.add_.Tensor
    written: tuple[int, ...]
    written_names: tuple[str, ...]
    is_random: bool
    is_collective: bool  # its results come later, with a Work
    is_pending: bool  # its results come later, with wait_tensor
    is_wait: bool
    is_recorded: bool
    is_blank: bool  # its result is memory as it was found


_operators: dict[int, Operator] = {}
_kept: list[Any] = []


def operator(func: Any) -> Operator:
    """The facts of an overload."""
    found = _operators.get(id(func))
    if found is None:
        found = _operators[id(func)] = _read(func)
        _kept.append(func)  # the id stays its own
    return found


def _read(func: Any) -> Operator:
    packet, op = aten_name(func)
    space = getattr(func, "namespace", "")
    written: list[int] = []
    names: list[str] = []
    schema = getattr(func, "_schema", None)
    for i, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(i)
            names.append(argument.name)
    functional = space == "_c10d_functional"
    return Operator(
        packet,
        op,
        tuple(written),
        tuple(names),
        torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()),
        space == "c10d",
        functional and "wait_tensor" not in op,
        "wait_tensor" in op,
        space not in _UNRECORDED,
        packet.removeprefix("aten.") in _BLANK,
    )


def written_by(found: Operator, args: Any, kwargs: Any) -> list[tuple[str, torch.Tensor]]:
    """The tensors that a call writes, with their places."""
    result: list[tuple[str, torch.Tensor]] = []
    for position, name in zip(found.written, found.written_names):
        if position < len(args):
            value, place = args[position], str(position)
        elif kwargs and name in kwargs:
            value, place = kwargs[name], name
        else:
            continue
        if isinstance(value, torch.Tensor):
            result.append((place, value))
        elif isinstance(value, (list, tuple)):
            result += [(f"{place}.{i}", v) for i, v in enumerate(value) if isinstance(v, torch.Tensor)]
    return result
