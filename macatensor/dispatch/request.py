"""What the library is asked for: a kernel's name, operands, attributes and scalars, as maca.h has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from macatensor.runtime.ffi import DECLINED, INVALID, check, ffi, last_failure, lib
from macatensor.runtime.meta import Meta
from macatensor.runtime.plan_flags import plan_flags

if TYPE_CHECKING:
    from macatensor.runtime.ffi import CData

# What a launch uses is bound by name: torch.compile, which traces into here, cannot guard the library object.
_new, _gc, _sizeof, _string = ffi.new, ffi.gc, ffi.sizeof, ffi.string
_create, _destroy = lib.maca_program_create, lib.maca_program_destroy
_ARGUMENT_ABSENT = lib.MACA_ARGUMENT_ABSENT
_ARGUMENT_LIST = lib.MACA_ARGUMENT_LIST
_ARGUMENT_TENSOR = lib.MACA_ARGUMENT_TENSOR
_ATTRIBUTE_BOOL = lib.MACA_ATTRIBUTE_BOOL
_ATTRIBUTE_BOOLS = lib.MACA_ATTRIBUTE_BOOLS
_ATTRIBUTE_FLOAT = lib.MACA_ATTRIBUTE_FLOAT
_ATTRIBUTE_FLOATS = lib.MACA_ATTRIBUTE_FLOATS
_ATTRIBUTE_INT = lib.MACA_ATTRIBUTE_INT
_ATTRIBUTE_INTS = lib.MACA_ATTRIBUTE_INTS
_ATTRIBUTE_STRING = lib.MACA_ATTRIBUTE_STRING
_SCALAR_BOOL = lib.MACA_SCALAR_BOOL
_SCALAR_COMPLEX = lib.MACA_SCALAR_COMPLEX
_SCALAR_FLOAT = lib.MACA_SCALAR_FLOAT
_SCALAR_INT = lib.MACA_SCALAR_INT

# dtypes by their code in maca.h
DTYPE_CODES: dict[torch.dtype, int] = {
    torch.bool: lib.MACA_BOOL,
    torch.bfloat16: lib.MACA_BFLOAT,
    **dict.fromkeys((torch.complex32, torch.complex64, torch.complex128), lib.MACA_COMPLEX),
    **dict.fromkeys((torch.float16, torch.float32, torch.float64), lib.MACA_FLOAT),
    **dict.fromkeys((torch.int8, torch.int16, torch.int32, torch.int64), lib.MACA_INT),
    **dict.fromkeys((torch.uint8, torch.uint16, torch.uint32, torch.uint64), lib.MACA_UINT),
}


Scalar: TypeAlias = bool | int | float | complex  # a number that a launch brings
# What is part of a plan: the kinds of maca_attribute, and a dtype, whose name is the attribute.
Attribute: TypeAlias = bool | int | float | str | torch.dtype | Sequence[int] | Sequence[float]


class Declined(NotImplementedError):
    """The library has no kernel for the request; the text says why."""


class Refused(Declined):
    """The library found that operands contradict each other."""


def fill_scalar(scalar: CData, value: Scalar) -> None:
    """Writes a Python number into a ``maca_scalar``."""
    if isinstance(value, bool):
        scalar.tag, scalar.value.integer = _SCALAR_BOOL, int(value)
    elif isinstance(value, int):
        if -(1 << 63) <= value < (1 << 63):
            scalar.tag, scalar.value.integer = _SCALAR_INT, value
        elif value < (1 << 64):
            scalar.tag, scalar.value.integer = _SCALAR_INT, value - (1 << 64)
        else:
            raise OverflowError("int too big to convert")
    elif isinstance(value, complex):
        scalar.tag = _SCALAR_COMPLEX
        scalar.value.real, scalar.imaginary = value.real, value.imag
    else:
        scalar.tag, scalar.value.real = _SCALAR_FLOAT, float(value)


def scalar_array(values: Sequence[Scalar]) -> CData:
    """A ``maca_scalar[]``; its caller keeps it alive over the launch."""
    array = _new("maca_scalar[]", len(values))
    for i, value in enumerate(values):
        fill_scalar(array[i], value)
    return array


class Operand(NamedTuple):
    """One operand of a request. ``meta``: None where it is absent."""

    meta: Meta | None
    scalar_slot: int = -1  # -1: memory; else a 0-dim operand whose value is this scalar of the launch


class Argument(NamedTuple):
    """One argument of a request: an operand or a list of them."""

    kind: int
    is_output: bool
    operands: list[Operand]


class Request:
    """Builds a ``maca_plan_request`` and keeps what it points to alive."""

    def __init__(self, kernel: str):
        self.keep: list[CData] = []
        self.arguments: list[Argument] = []
        self.attributes: list[tuple[str, Attribute]] = []
        self.operands: list[Operand] = []  # of all arguments
        self.scalars = 0
        self.kernel = kernel
        self.by_rows = ""  # as the row has it
        self.way = ""  # one of plan_candidates' names; "": the library's own choice

    def add(self, operands: Sequence[Operand], *, is_list: bool, is_output: bool) -> None:
        kind = _ARGUMENT_TENSOR
        if is_list:
            kind = _ARGUMENT_LIST
        elif operands[0].meta is None:
            kind = _ARGUMENT_ABSENT
        self.arguments.append(Argument(kind, is_output, list(operands)))
        self.operands.extend(operands)

    def slots(self, count: int) -> int:
        self.scalars += count
        return self.scalars - count

    def _hold(self, value: CData) -> CData:
        self.keep.append(value)
        return value

    def _operand(self, operand: CData, meta: Meta | None, scalar_slot: int) -> None:
        operand.scalar_slot = scalar_slot
        if meta is None:
            operand.rank = -1
            return
        code = DTYPE_CODES.get(meta.dtype)
        if code is None:
            raise Declined(f"{meta.dtype} has no code in maca.h")
        operand.rank = len(meta.size)
        operand.dtype.code = code
        operand.dtype.bits = meta.itemsize * 8
        operand.dtype.lanes = 1
        operand.sizes = self._hold(_new("int64_t[]", list(meta.size)))
        operand.strides = self._hold(_new("int64_t[]", list(meta.stride)))

    def _attribute(self, attribute: CData, name: str, value: Attribute) -> None:
        attribute.name = self._hold(_new("char[]", name.encode()))
        if isinstance(value, torch.dtype):
            value = str(value).removeprefix("torch.")
        if isinstance(value, bool):
            attribute.kind, attribute.integer = _ATTRIBUTE_BOOL, int(value)
        elif isinstance(value, int):
            attribute.kind, attribute.integer = _ATTRIBUTE_INT, value
        elif isinstance(value, float):
            attribute.kind, attribute.real = _ATTRIBUTE_FLOAT, value
        elif isinstance(value, str):
            attribute.kind = _ATTRIBUTE_STRING
            attribute.text = self._hold(_new("char[]", value.encode()))
        elif any(isinstance(v, float) for v in value):
            attribute.kind, attribute.count = _ATTRIBUTE_FLOATS, len(value)
            attribute.doubles = self._hold(_new("double[]", [float(v) for v in value]))
        else:
            truths = value and all(isinstance(v, bool) for v in value)
            attribute.kind = _ATTRIBUTE_BOOLS if truths else _ATTRIBUTE_INTS
            attribute.count = len(value)
            attribute.ints = self._hold(_new("int64_t[]", [int(v) for v in value]))

    def build(self) -> CData:
        request = self._hold(_new("maca_plan_request*"))
        arguments = self._hold(_new("maca_argument[]", len(self.arguments)))
        for argument, given in zip(arguments, self.arguments):
            operands = self._hold(_new("maca_operand[]", max(len(given.operands), 1)))
            for operand, (meta, slot) in zip(operands, given.operands):
                self._operand(operand, meta, slot)
            argument.kind, argument.is_output = given.kind, int(given.is_output)
            argument.count = len(given.operands)
            argument.operands = operands
        named = [*self.attributes, ("implementation", self.way)] if self.way else self.attributes
        attributes = self._hold(_new("maca_attribute[]", max(len(named), 1)))
        for attribute, (name, value) in zip(attributes, named):
            self._attribute(attribute, name, value)
        request.size = _sizeof("maca_plan_request")
        request.flags = plan_flags(self.kernel)
        request.kernel = self._hold(_new("char[]", self.kernel.encode()))
        request.argument_count = len(self.arguments)
        request.attribute_count = len(named)
        request.scalar_count = self.scalars
        request.arguments = arguments
        request.attributes = attributes
        return request

    def create_program(
        self,
        operator: str,
        written: Sequence[bool],
        *,
        in_memory: bool = False,
        defaults: Sequence[Scalar] = (),
    ) -> CData:
        """The library's plan with what a launch has to do around it; destroyed with the object returned.

        ``written``: for each input operand, does the kernel write it? The operands behind them are results, new
        tensors or, with ``in_memory``, memory of the caller. ``defaults``: scalars that no launch brings.
        Raises :class:`Declined`, or :class:`Refused` when the operands contradict each other; for ``operator`` what the
        library failed with.
        """
        roles = _new("maca_role[]", max(len(self.operands), 1))
        layouts: dict[Meta, int] = {}
        places = [
            place
            for argument in self.arguments
            for place in (range(1, len(argument.operands) + 1) if argument.kind == _ARGUMENT_LIST else (0,))
        ]
        for i, (meta, slot) in enumerate(self.operands):
            role = roles[i]
            role.output_bytes = -1
            if meta is None:
                continue
            role.item_bytes = meta.itemsize
            role.extent_bytes = meta.nbytes if slot < 0 else 0
            role.scalar = int(slot >= 0)
            role.dense = int(meta.dense)
            role.place = places[i]
            role.layout = layouts.setdefault(meta, len(layouts))
            if i < len(written):
                role.written = int(written[i])
            elif in_memory:
                role.written = 1
            else:
                role.output_bytes = meta.nbytes
        program = _new("maca_program**")
        reason = _new("maca_reason*")
        reason.size = _sizeof("maca_reason")
        status = _create(
            self.build(), len(self.operands), roles, len(defaults), scalar_array(defaults), program, reason
        )
        if status in (DECLINED, INVALID) and (failure := last_failure()).slot == "plan_create":
            kind = Refused if status == INVALID else Declined
            raise kind(_string(reason.text).decode(errors="replace") or failure.said)
        check(status, operator)
        return _gc(program[0], _destroy)
