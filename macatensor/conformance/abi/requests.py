"""Plan requests written by hand: what the runtime would ask of the simplest kernels."""

from __future__ import annotations

from collections.abc import Sequence

from .header import Pointer, ffi

FLOAT32 = (2, 32, 1)
INT64 = (0, 64, 1)


class Request:
    """A request and the memory that it points into.

    Operands are ``(dtype, sizes)``, row-major; attributes and scalars as in maca.h.
    """

    def __init__(
        self,
        kernel: str,
        inputs: Sequence[tuple[tuple[int, int, int], Sequence[int]]],
        outputs: Sequence[tuple[tuple[int, int, int], Sequence[int]]],
        attributes: Sequence[tuple[str, int | str | bool]] = (),
        scalars: Sequence[float | int] = (),
    ):
        self.kept: list[Pointer] = []
        self.kernel = kernel
        self.pointer = self._new("maca_plan_request*")
        self.operands = [(d, list(s)) for d, s in [*inputs, *outputs]]
        count = len(self.operands)
        arguments = self._new("maca_argument[]", count)
        for i, (dtype, sizes) in enumerate(self.operands):
            operand = self._new("maca_operand*")
            operand.dtype.code, operand.dtype.bits, operand.dtype.lanes = dtype
            operand.rank, operand.scalar_slot = len(sizes), -1
            strides: list[int] = []
            run = 1
            for n in reversed(sizes):
                strides.insert(0, run)
                run *= max(n, 1)
            operand.sizes = self._new("int64_t[]", list(sizes) or 1)
            operand.strides = self._new("int64_t[]", strides or 1)
            arguments[i].kind, arguments[i].is_output = 1, int(i >= len(inputs))
            arguments[i].count, arguments[i].operands = 1, operand
        made = self._new("maca_attribute[]", max(1, len(attributes)))
        for i, (name, value) in enumerate(attributes):
            made[i].name = self._new("char[]", name.encode())
            if isinstance(value, str):
                made[i].kind, made[i].text = 3, self._new("char[]", value.encode())
            else:
                made[i].kind, made[i].integer = 2 if isinstance(value, bool) else 0, int(value)
        self.scalars = self._new("maca_scalar[]", max(1, len(scalars)))
        for i, number in enumerate(scalars):
            self.scalars[i].tag = 1 if isinstance(number, float) else 0
            if isinstance(number, float):
                self.scalars[i].value.real = number
            else:
                self.scalars[i].value.integer = number
        r = self.pointer
        r.size, r.flags, r.kernel = ffi.sizeof("maca_plan_request"), 0, self._new("char[]", kernel.encode())
        r.argument_count, r.attribute_count, r.scalar_count = count, len(attributes), len(scalars)
        r.arguments, r.attributes = arguments, made

    def _new(self, what: str, value: object = None) -> Pointer:
        made = ffi.new(what) if value is None else ffi.new(what, value)
        self.kept.append(made)
        return made

    def launch(
        self, addresses: Sequence[Pointer], stream: Pointer = ffi.NULL, correlation: int = 0
    ) -> Pointer:
        """A launch of the request's plan on these operands, which lives as the request does."""
        made = self._new("maca_launch*")
        made.size = ffi.sizeof("maca_launch")
        made.pointers, made.pointer_count = self._new("void*[]", list(addresses)), len(addresses)
        made.scalars, made.scalar_count = self.scalars, self.pointer.scalar_count
        made.stream, made.correlation = stream, correlation
        return made


def unary(kernel: str, n: int) -> Request:
    """``relu(self) -> Tensor`` of n float32."""
    return Request(kernel, [(FLOAT32, [n])], [(FLOAT32, [n])], [("common_dtype", "float32")])


def add(n: int, alpha: int = 1) -> Request:
    """``add(self, other, *, alpha) -> Tensor`` of n float32."""
    return Request("add", [(FLOAT32, [n])] * 2, [(FLOAT32, [n])], [("alpha.scalar", 0), ("common_dtype", "float32")],
                   [alpha])  # fmt: skip


def mm(m: int, k: int, n: int) -> Request:
    return Request("mm", [(FLOAT32, [m, k]), (FLOAT32, [k, n])], [(FLOAT32, [m, n])])


def index_select(rows: int, columns: int, count: int) -> Request:
    """``index_select(self, dim=0, index)``."""
    return Request("index_select", [(FLOAT32, [rows, columns]), (INT64, [count])], [(FLOAT32, [count, columns])],
                   [("dim", 0)])  # fmt: skip
