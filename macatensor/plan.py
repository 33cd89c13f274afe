"""From a signature to a plan: PyTorch's meta kernel says what the result is, the library chooses how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from macatensor import counting
from macatensor.ffi import NULL, ffi, launch_error, lib
from macatensor.layout import STRIDE_RULES
from macatensor.meta import Meta, meta_of, set_lazy_bits
from macatensor.meta_rules import META_RULES
from macatensor.request import Request, scalar_array
from macatensor.signature import Role, Signature
from macatensor.tensor import MacaTensor, wrap
from op_table import Row

_gc = ffi.gc
_new = ffi.new
_release = lib.maca_buffer_release
_many = lib.maca_launch_many
_launch_4 = lib.maca_launch_4

Payload = tuple[Any, int, Meta]
ABSENT: Payload = (NULL, 0, None)  # type: ignore[assignment]
_PADDING = [[ABSENT] * (4 - n) for n in range(5)]
_REFERENCES = ffi.typeof("maca_reference[]")
_BUFFERS = ffi.typeof("maca_buffer*[]")

_SCALAR_META: dict[type, Meta] = {
    bool: meta_of((), (), torch.bool),
    int: meta_of((), (), torch.int64),
    float: meta_of((), (), torch.float64),
    complex: meta_of((), (), torch.complex128),
}


def is_number(value: object) -> bool:
    return isinstance(value, (bool, int, float, complex))


def meta_tensor(meta: Meta) -> torch.Tensor:
    """An empty tensor on the meta device."""
    return set_lazy_bits(torch.empty_strided(meta.size, meta.stride, dtype=meta.dtype, device="meta"), meta)


def substitute(value: Any, replace: Any) -> Any:
    """``value`` with every MacaTensor in it, one list deep, replaced."""
    if isinstance(value, MacaTensor):
        return replace(value)
    if isinstance(value, (list, tuple)):
        return [replace(v) if isinstance(v, MacaTensor) else v for v in value]
    if isinstance(value, torch.device) and value.type == "maca":
        return torch.device("meta")
    return value


def flatten(result: Any) -> list[Any]:
    """The tensors (or None) of an operator's result, in order."""
    if result is None:
        return []
    if isinstance(result, (list, tuple)):
        flat: list[Any] = []
        for r in result:
            if isinstance(r, (list, tuple)):
                flat.extend(r)
            else:
                flat.append(r)
        return flat
    return [result]


def infer(signature: Signature, full: list[Any], row: Row) -> Any:
    """Runs PyTorch's meta kernel: the results as meta tensors, with the row's strides."""
    args = [substitute(v, lambda t: meta_tensor(t._payload[2])) for v in full]
    own = META_RULES.get(row.name)
    result = own(*args) if own is not None else signature.call(signature.func, args)
    rule = STRIDE_RULES.get(row.strides)
    if rule is not None:
        tensors = [r for r in flatten(result) if r is not None]
        strides = rule(args, tensors)
        fixed = iter(
            torch.empty_strided(t.shape, s, dtype=t.dtype, device="meta") for t, s in zip(tensors, strides)
        )
        if isinstance(result, torch.Tensor):
            return next(fixed)
        shaped = [
            [next(fixed) if x is not None else None for x in r]
            if isinstance(r, (list, tuple))
            else (next(fixed) if r is not None else None)
            for r in result
        ]
        return (
            shaped if isinstance(result, list) else tuple(shaped)
        )  # a list is one result of several tensors
    return result


def result_meta(tensor: torch.Tensor) -> Meta:
    return meta_of(tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _is_attribute(value: Any) -> bool:
    if value is None or isinstance(
        value, (torch.device, torch.layout, torch.memory_format, torch.Generator, torch.Tensor)
    ):
        return False
    if isinstance(value, (list, tuple)):
        return all(isinstance(v, (bool, int, float)) for v in value)
    return isinstance(value, (bool, int, float, str, torch.dtype))


def _operand_of(value: Any, request: Request) -> tuple[Meta | None, int]:
    if value is None:
        return None, -1
    if isinstance(value, MacaTensor):
        return value._payload[2], -1
    if isinstance(value, torch.Tensor):  # a 0-dim host tensor: its value travels as a scalar
        return meta_of((), (), value.dtype), request.slots(1)
    return _SCALAR_META[type(value)], request.slots(1)


class Plan:
    """A program of the library with the metas of its results. Immutable."""

    __slots__ = ("program", "metas", "lists", "operator", "single", "made", "absent", "kernel", "is_small")

    def __init__(
        self, program: Any, metas: list[Meta | None], lists: Sequence[int], operator: str, kernel: str
    ):
        self.program = program
        self.metas = metas
        self.lists = lists  # for each result: -1 for a tensor, else the length of the list
        self.operator = operator
        self.kernel = kernel
        self.made = sum(m is not None for m in metas)
        self.absent = [i for i, m in enumerate(metas) if m is None]
        self.single = len(metas) == 1 and metas[0] is not None and list(lists) == [-1]
        self.is_small = self.single or not metas

    def launch_small(self, payloads: list[Payload], scalars: list[Any]) -> Any:
        """As :meth:`launch`, without arrays, for at most 4 operands, 2 real scalars and one result.

        Returns the new tensor, or None when the program writes memory of the caller.
        """
        (a, a0, _), (b, b0, _), (c, c0, _), (d, d0, _) = payloads + _PADDING[len(payloads)]
        if not scalars:
            buffer = _launch_4(self.program, a, a0, b, b0, c, c0, d, d0, 0, 0, 0, 0.0, 0, 0, 0.0)
        else:
            x = scalars[0]
            y = scalars[1] if len(scalars) > 1 else 0
            x_real = type(x) is float
            y_real = type(y) is float
            buffer = _launch_4(
                self.program, a, a0, b, b0, c, c0, d, d0, len(scalars),
                1 if x_real else 0, 0 if x_real else x, x if x_real else 0.0,
                1 if y_real else 0, 0 if y_real else y, y if y_real else 0.0,
            )  # fmt: skip
        if not buffer:
            raise launch_error(lib.maca_runtime_status(), self.operator)
        meta = self.metas[0] if self.metas else None
        return wrap(_gc(buffer, _release), 0, meta) if meta is not None else None

    def run(self, payloads: list[Payload], scalars: list[Any]) -> Any:
        """Launches and returns the operator's result (None for programs that only write)."""
        if self.is_small and 0 < len(payloads) <= 4 and len(scalars) <= 2:
            for s in scalars:
                if type(s) is not float and type(s) is not int:
                    break
            else:
                return self.launch_small(payloads, scalars)
        if self.absent:
            payloads = payloads + [ABSENT] * len(self.absent)
        return self.results(self.launch(payloads, scalars))

    def launch(self, payloads: list[Payload], scalars: list[Any]) -> list[Any]:
        """Runs the program; ``payloads`` in operand order for every operand that is not allocated here."""
        references = _new(_REFERENCES, [(p[0], p[1]) for p in payloads] or 1)
        values = scalar_array(scalars) if scalars else NULL
        made = _new(_BUFFERS, self.made or 1)
        status = _many(self.program, len(payloads), references, values, len(scalars), made)
        if status:
            raise launch_error(status, self.operator)
        buffers = iter(made)
        return [wrap(_gc(next(buffers), _release), 0, m) if m is not None else None for m in self.metas]

    def results(self, tensors: list[Any]) -> Any:
        """The launch's tensors in the shape of the operator's result."""
        if self.single:
            return tensors[0]
        flat = iter(tensors)
        shaped = [next(flat) if n < 0 else [next(flat) for _ in range(n)] for n in self.lists]
        return shaped[0] if len(shaped) == 1 else tuple(shaped) if shaped else None


def create(
    signature: Signature,
    row: Row,
    full: list[Any],
    given: int,
    results: Any,
    *,
    result_memory: list[Meta] | None = None,
    inplace_list: bool = False,
) -> Plan:
    """Asks the library for a plan.

    ``full``: every argument; the first ``given`` of them bring their scalars at each launch, the others' defaults
    are kept with the program. ``results``: the meta kernel's result. ``result_memory``: metas of tensors of the
    caller that take the results instead of new ones, by position.
    Raises :class:`Declined`.
    """
    request = Request(row.kernel_name)
    written: list[bool] = []
    defaults: list[Any] = []
    for i, (argument, value) in enumerate(zip(signature.arguments, full)):
        if argument.is_out:
            continue
        if argument.role is Role.TENSOR:
            request.add([_operand_of(value, request)], is_list=False, is_output=False)
            written.append(argument.written)
        elif argument.role is Role.TENSORS:
            if value is None:
                request.add([(None, -1)], is_list=False, is_output=False)
                written.append(False)
            else:
                request.add([_operand_of(v, request) for v in value], is_list=True, is_output=False)
                written.extend([argument.written] * len(value))
        elif argument.role is Role.SCALAR:
            if value is not None:
                request.attributes.append((f"{argument.name}.scalar", request.slots(1)))
                if i >= given:
                    defaults.append(value)
        elif argument.role is Role.SCALARS:
            request.attributes.append((f"{argument.name}.scalar", request.slots(len(value))))
            request.attributes.append((f"{argument.name}.count", len(value)))
        elif _is_attribute(value):
            request.attributes.append((argument.name, value))
    if inplace_list:
        request.attributes.append(("inplace", True))
    inputs = len(request.operands)
    shaped = list(results) if isinstance(results, tuple) else [results] if results is not None else []
    lists = [len(r) if isinstance(r, (list, tuple)) else -1 for r in shaped]
    metas = [None if t is None else result_meta(t) for t in flatten(results)]
    flat = iter(metas)
    for n in lists:
        request.add(
            [(next(flat), -1) for _ in range(max(n, 1) if n < 0 else n)], is_list=n >= 0, is_output=True
        )
    if result_memory is not None:
        for position, target in enumerate(result_memory):
            request.operands[inputs + position] = (target, -1)
            request.arguments[len(request.arguments) - len(lists) + position][2][0] = (target, -1)

    program = request.create_program(written, in_memory=result_memory is not None, defaults=defaults)
    counting.misses += 1
    made: list[Meta | None] = [] if result_memory is not None else metas
    return Plan(
        program,
        made,
        [] if result_memory is not None else lists,
        signature.name,
        row.kernel_name,
    )
