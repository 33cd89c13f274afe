"""Calls on float8 numbers, of which the library knows the bytes alone: kernels that only move elements are given these
bytes, and what PyTorch's CPU computes is computed in float32, as it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch._ops import OpOverload

from macatensor.dispatch.consultation import may_ask_cpu
from macatensor.dispatch.forms import in_form
from macatensor.dispatch.plan import flatten, substitute
from macatensor.dispatch.promotion import common_dtype, promoted
from macatensor.dispatch.request import DTYPE_CODES, Scalar
from macatensor.dispatch.resize import write_out
from macatensor.dispatch.signature import Form, Role, Signature, read
from macatensor.runtime.boxed import Arguments, Value
from macatensor.runtime.tensor import MacaTensor, Payload
from op_table import Row

if TYPE_CHECKING:
    from macatensor.dispatch.launcher import Run

FLOAT8 = frozenset(
    dtype for name, dtype in vars(torch).items() if name.startswith("float8_") and dtype not in DTYPE_CODES
)


class _Launcher(Protocol):
    """What is asked of a :class:`~macatensor.dispatch.kernel_calls.KernelLauncher`, which imports this module."""

    func: OpOverload
    row: Row
    form: Form
    twin: OpOverload
    signature: Signature
    writes_list: bool

    def ask_host(self, full: list[Value]) -> None: ...
    def infer(self, signature: Signature, full: list[Value]) -> Value: ...
    def __call__(self, args: Arguments) -> Value: ...


def as_bytes(t: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor whose elements are one byte each."""
    made: torch.Tensor = torch.ops.aten.view.dtype(t, torch.uint8)
    return made


def of_bytes(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    made: torch.Tensor = torch.ops.aten.view.dtype(t, dtype)
    return made


def byte_of(number: Scalar, dtype: torch.dtype) -> int:
    """The byte that stands for a number in ``dtype``."""
    return int(torch.tensor([number], dtype=torch.float64, device="cpu").to(dtype).view(torch.uint8))


def run_of(launcher: _Launcher, full: list[Value]) -> Run | None:
    """What runs a call with float8 among its operands. None: it has none, or the library has to say that it has no kernel.

    Raises what PyTorch's CPU kernel says of operands like these.
    """
    dtypes = {t.dtype for t in flatten(full) if isinstance(t, MacaTensor)} & FLOAT8
    if not dtypes:
        return None
    launcher.ask_host(full)
    row, signature = launcher.row, launcher.signature
    if row.moves and len(dtypes) == 1:
        sources = [signature.positions[name] for name in row.moves]
        moved, written = (
            {t.dtype for i in places for t in flatten([full[i]]) if isinstance(t, torch.Tensor)}
            for places in (sources, signature.outs)
        )
        adds = "accumulate" in signature.positions and full[signature.positions["accumulate"]]
        if moved and moved | written == dtypes and not adds:  # of a list of nothing the device would not hear
            return _moved(launcher, *dtypes)
    computes = (row.elementwise or row.widens) and not launcher.writes_list
    if computes and may_ask_cpu(launcher.func):  # which has agreed then
        return _computed(launcher, full)
    return None


def _moved(launcher: _Launcher, dtype: torch.dtype) -> Run:
    signature = launcher.signature

    def run(args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]) -> Value:
        full = signature.fill(args, None)
        if launcher.form is Form.OUT:
            inputs = [v for i, v in enumerate(full) if i not in signature.outs]
            made = read(launcher.twin).call(launcher.twin, inputs)
            return write_out([full[i] for i in signature.outs], made)
        given: list[tuple[torch.Tensor, torch.Tensor]] = []

        def stand_in(t: MacaTensor) -> torch.Tensor:
            if t.dtype is not dtype:
                return t
            given.append((t, as_bytes(t)))
            return given[-1][1]

        operands = [
            byte_of(v, dtype)
            if argument.role is Role.SCALAR and isinstance(v, (bool, int, float))
            else substitute(v, stand_in)
            for argument, v in zip(signature.arguments, full)
        ]

        def back(t: Value) -> Value:
            for own, bytes_ in given:
                if t is bytes_:
                    return own  # it was written
            return of_bytes(t, dtype)

        result = launcher(tuple(operands))
        return type(result)(map(back, result)) if isinstance(result, (list, tuple)) else back(result)

    return run


def _computed(launcher: _Launcher, full: list[Value]) -> Run:
    signature = launcher.signature
    functional = read(launcher.twin)
    inputs = [v for i, v in enumerate(full) if i not in signature.outs]
    wanted = [t.dtype for t in flatten(launcher.infer(functional, inputs))]
    # a number beside float8 is one of float8: 0.1 equals what it is rounded to
    beside = promoted(functional, launcher.row)
    common = common_dtype(functional, launcher.row, inputs)

    def widened(t: MacaTensor) -> torch.Tensor:
        return t.to(torch.float32) if t.dtype in FLOAT8 else t

    def given(place: int, value: Value) -> Value:
        if common in FLOAT8 and place in beside and isinstance(value, (bool, int, float)):
            return torch.tensor([value], dtype=torch.float64, device="cpu").to(common).item()
        return substitute(value, widened)

    def body(*args: Value, **kwargs: Value) -> Value:
        result = launcher.twin(
            *[given(i, a) for i, a in enumerate(args)],
            **{k: substitute(v, widened) for k, v in kwargs.items()},
        )
        if isinstance(result, (list, tuple)):
            return type(result)(t.to(dtype) for t, dtype in zip(result, wanted))
        return result.to(wanted[0])

    whole = in_form(launcher.func, launcher.form, launcher.twin, body)

    def run(args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]) -> Value:
        # keyword-only arguments came here by position
        return whole(args[: signature.positional], signature.named(args))

    return run
