"""An operator's schema, read once: which arguments are tensors, which are scalars of a launch, what is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch._ops import OpOverload

from macatensor.runtime.boxed import Arguments, Keywords, Value
from op_table import TABLE, Row


class Role(Enum):
    """What an argument is to a plan; the values are the letters by which shim/launcher/kernel_call.cpp knows them."""

    TENSOR = b"T"  # Tensor or Tensor?
    TENSORS = b"L"  # Tensor[] or Tensor?[]
    SCALAR = b"N"  # a scalar of the launch, which may change from call to call
    SCALARS = b"M"  # a list of those
    STATIC = b"S"  # part of the plan


_OUT = b"O"  # the letter of a tensor that takes a result


_ROLES = {
    "Tensor": Role.TENSOR,
    "Optional[Tensor]": Role.TENSOR,
    "List[Tensor]": Role.TENSORS,
    "Optional[List[Tensor]]": Role.TENSORS,
    "List[Optional[Tensor]]": Role.TENSORS,
    "number": Role.SCALAR,
    "Optional[number]": Role.SCALAR,
    "List[number]": Role.SCALARS,
}


@dataclass(frozen=True)
class Argument:
    """One argument of a schema."""

    name: str
    role: Role
    default: Value
    written: bool
    is_out: bool


class Form(Enum):
    """How an overload relates to the row it was found by."""

    DIRECT = "direct"  # the row's own overload
    INPLACE = "in-place"  # add_ of the row add
    OUT = "out="  # add.out of the row add


@dataclass(frozen=True)
class Signature:
    """The schema of one overload."""

    func: OpOverload
    arguments: tuple[Argument, ...]
    positions: dict[str, int]
    positional: int  # the first keyword-only argument
    returns: tuple[bool, ...]  # for each result: is it a list of tensors?
    returned_arguments: tuple[int | None, ...]  # for each result: the written argument it is, if any

    @property
    def name(self) -> str:
        """``"aten.add.Tensor"``."""
        return str(self.func)

    @property
    def outs(self) -> tuple[int, ...]:
        """Positions of out= arguments."""
        return tuple(i for i, a in enumerate(self.arguments) if a.is_out)

    @property
    def letters(self) -> bytes:
        """What every argument is to a plan, as the launchers written in C read it."""
        return b"".join(_OUT if a.is_out and a.role is Role.TENSOR else a.role.value for a in self.arguments)

    @property
    def tensors_end(self) -> int:
        """Past the last argument that brings tensors."""
        takes = [a.role in (Role.TENSOR, Role.TENSORS) and not a.is_out for a in self.arguments]
        return max((i + 1 for i, t in enumerate(takes) if t), default=0)

    @property
    def names(self) -> tuple[str, ...]:
        """Of every argument."""
        return tuple(a.name for a in self.arguments)

    @property
    def defaults(self) -> tuple[Value, ...]:
        """Of every argument; None where it has none."""
        return tuple(a.default for a in self.arguments)

    def fill(self, args: Arguments, kwargs: Keywords | None) -> list[Value]:
        """Every argument in schema order, defaults included."""
        full = list(args)
        full.extend(a.default for a in self.arguments[len(full) :])
        if kwargs:
            for name, value in kwargs.items():
                full[self.positions[name]] = value
        return full

    def call(self, func: Callable[..., Value], full: list[Value]) -> Value:
        """Calls ``func`` (of this schema) with ``full``, keyword-only arguments by name."""
        return func(*full[: self.positional], **self.named(full))

    def named(self, full: Sequence[Value]) -> Keywords:
        """The keyword-only arguments of ``full``."""
        rest = self.arguments[self.positional :]
        return {a.name: value for a, value in zip(rest, full[self.positional :])}


def read(func: OpOverload, launch_scalars: tuple[str, ...] = ()) -> Signature:
    """The Signature of an OpOverload. ``launch_scalars`` names further arguments that are scalars of a launch."""
    schema = func._schema
    arguments = []
    alias_sets: dict[str, int] = {}
    for i, a in enumerate(schema.arguments):
        role = _ROLES.get(str(a.type), Role.STATIC)
        if a.name in launch_scalars and role is Role.STATIC:
            role = Role.SCALAR
        alias = a.alias_info
        written = alias is not None and alias.is_write
        if alias is not None and written:
            for name in alias.before_set:
                alias_sets[name] = i
        default = a.default_value if a.has_default_value() else None
        arguments.append(Argument(a.name, role, default, written, bool(a.is_out)))
    returned = []
    lists = []
    for r in schema.returns:
        info = r.alias_info
        names = info.before_set if info is not None and info.is_write else ()
        returned.append(next((alias_sets[n] for n in names if n in alias_sets), None))
        lists.append(str(r.type).startswith("List["))
    return Signature(
        func,
        tuple(arguments),
        {a.name: i for i, a in enumerate(arguments)},
        sum(not a.kwarg_only for a in schema.arguments),
        tuple(lists),
        tuple(returned),
    )


def row_name(func: OpOverload) -> str:
    """``"add.Tensor"``; ``"relu"`` for ``relu.default``."""
    operator = func._schema.name.partition("::")[2]
    overload = func._overloadname
    return operator if overload == "default" else f"{operator}.{overload}"


def _shape_of(schema: torch._C.FunctionSchema) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]


def _twins(func: OpOverload, operator: str) -> Iterator[OpOverload]:
    """The overloads of ``aten.<operator>`` with the inputs of ``func`` that allocate their results."""
    packet = getattr(torch.ops.aten, operator, None)
    if packet is None:
        return
    wanted = _shape_of(func._schema)
    for overload in packet.overloads():
        twin = getattr(packet, overload)
        if _shape_of(twin._schema) == wanted and not any(a.is_out for a in twin._schema.arguments):
            yield twin


def functional(func: OpOverload) -> OpOverload | None:
    """The overload that allocates what an ``out=`` overload of aten writes, or None. Of some operators only the internal
    one has it: ``_adaptive_avg_pool3d_backward`` of ``adaptive_avg_pool3d_backward.grad_input``."""
    if func.namespace != "aten" or not any(a.is_out for a in func._schema.arguments):
        return None
    operator = func._schema.name.partition("::")[2]
    return next((t for name in (operator, f"_{operator}") for t in _twins(func, name)), None)


def _of_in_place_operator(operator: str) -> str | None:
    """The name of the operator that allocates what an in-place one writes; None of one that is not in place."""
    if operator.startswith("__i") and operator.endswith("__"):  # __ilshift__ of __lshift__
        return "__" + operator[len("__i") :]
    return operator[:-1] if operator.endswith("_") and not operator.endswith("__") else None


def of_in_place(func: OpOverload) -> OpOverload | None:
    """The overload of aten that allocates what an in-place one writes, or None."""
    base = _of_in_place_operator(func._schema.name.partition("::")[2])
    return next(_twins(func, base), None) if base is not None and func.namespace == "aten" else None


def find_row(func: OpOverload) -> tuple[Row, Form, OpOverload] | None:
    """The row that serves an overload, the overload's form, and the overload the row names."""
    if func.namespace != "aten":
        return None
    name = row_name(func)
    row = TABLE.get(name)
    if row is not None:
        return row, Form.DIRECT, func
    operator = func._schema.name.partition("::")[2]
    form = Form.OUT if any(a.is_out for a in func._schema.arguments) else Form.INPLACE
    base = operator if form is Form.OUT else _of_in_place_operator(operator)
    if base is None:
        return None
    twins = _twins(func, base)
    twin = next((t for t in twins if row_name(t) in TABLE), None)
    if twin is None:
        return None
    return TABLE[row_name(twin)], form, twin
