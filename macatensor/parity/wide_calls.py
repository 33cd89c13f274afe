"""One call of an operator on the host: in its operands' dtypes, in float64, or of its terms' magnitudes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from macatensor.parity import formulas_quantized, formulas_recurrent  # noqa: F401 - register their formulas
from macatensor.parity.canonical import canonical
from macatensor.parity.formulas import FORMULAS, SHARPER
from macatensor.parity.transport import replace, tensors, twin, wide
from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.plan_flags import host_default_dtype
from op_table import Row


def float64() -> AbstractContextManager[None]:
    """Integers become float64 where PyTorch would make them float32."""
    return host_default_dtype(torch.float64)


class Schema(Protocol):
    """What is asked of an operator's schema."""

    @property
    def name(self) -> str: ...
    @property
    def arguments(self) -> Sequence[torch._C.Argument]: ...


class Operator(Protocol):
    """An OpOverload, or a kernel that no operator names, in the shape of one."""

    @property
    def _schema(self) -> Schema: ...
    def __call__(self, *args: Value, **kwargs: Value) -> Value: ...


def on_host(value: Value) -> Value:
    return torch.device("cpu") if isinstance(value, torch.device) else value


# float32 whatever the other operands are: PyTorch's fused optimizers read it by pointer
FLOAT32 = ("grad_scale", "found_inf")


def compact(row: Row, args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords]:
    if not row.dense_on_cpu:
        return args, kwargs
    dense: tuple[Arguments, Keywords] = replace(
        (args, kwargs), lambda t: t.clone(memory_format=torch.contiguous_format)
    )
    return dense


def widen(value: Value) -> Value:
    """Arguments with floats made float64, ``dtype=`` included."""
    if isinstance(value, torch.Tensor):
        return twin(value, wide(value.dtype))
    if isinstance(value, torch.dtype):
        return wide(value)
    if isinstance(value, (list, tuple)):
        return type(value)(widen(v) for v in value)
    if isinstance(value, dict):
        return {k: v if k in FLOAT32 else widen(v) for k, v in value.items()}
    return on_host(value)


def run(
    func: Operator, row: Row, args: Arguments, kwargs: Keywords, sharp: bool = False
) -> tuple[list[torch.Tensor | None], int]:
    """Results and arguments after the call, by a formula where the CPU has no kernel or (``sharp``) a worse one."""
    name = func._schema.name.partition("::")[2] or func._schema.name
    formula = FORMULAS.get(name) or (SHARPER[row.formula] if sharp and row.formula else None)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = canonical(row.form, tensors((formula or func)(*args, **kwargs)))
    return results + tensors((args, kwargs)), len(results)


_NUMBERS = ("number", "Optional[number]", "List[number]")


def each_number(
    func: Operator,
    args: Arguments,
    kwargs: Keywords,
    change: Callable[[float], float],
    kinds: tuple[str, ...] = _NUMBERS,
) -> tuple[Arguments, Keywords]:
    """The arguments with every float changed that the schema types as a Scalar, or as one of ``kinds``."""

    def visit(value: Value) -> Value:
        if isinstance(value, float):
            return change(value)
        return [visit(v) for v in value] if isinstance(value, (list, tuple)) else value

    names = {a.name for a in func._schema.arguments if str(a.type) in kinds}
    spots = [i for i, a in enumerate(func._schema.arguments) if a.name in names]
    changed = tuple([visit(v) if i in spots else v for i, v in enumerate(args)])
    return changed, {k: visit(v) if k in names else v for k, v in kwargs.items()}


def as_computed(func: Operator, row: Row, args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords]:
    """Numbers rounded as PyTorch rounds them, once, to float32 where it computes in float32; a number may also stand,
    bare or as a 0-dim tensor, where the schema has a Tensor."""
    operands = [t for t in tensors((args, kwargs)) if t is not None and t.dtype != torch.bool]
    sized = [t for t in operands if t.dim()] if row.elementwise else []
    kinds = {t.dtype for t in sized or operands}
    if not kinds & {torch.float32, torch.float16, torch.bfloat16, torch.complex64} or torch.float64 in kinds:
        return args, kwargs
    if sized:
        number = lambda t: t.float() if t.dim() == 0 and t.dtype == torch.float64 else t  # noqa: E731
        args, kwargs = replace((args, kwargs), number)
    typed = (*_NUMBERS, "Tensor", "Optional[Tensor]") if sized else _NUMBERS
    return each_number(func, args, kwargs, lambda v: float(torch.tensor(v, dtype=torch.float32)), typed)


def magnitudes(value: Value) -> Value:
    if isinstance(value, torch.Tensor):
        wider = twin(value, wide(value.dtype))
        if wider.is_complex():
            return torch.complex(wider.abs(), torch.zeros_like(wider.real))
        return wider.abs() if wider.is_floating_point() else wider
    if isinstance(value, torch.dtype):
        return wide(value)
    if isinstance(value, (list, tuple)):
        return type(value)(magnitudes(v) for v in value)
    if isinstance(value, dict):
        return {k: magnitudes(v) for k, v in value.items()}
    return on_host(value)
