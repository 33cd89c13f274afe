"""The dtype to which PyTorch promotes the operands of an elementwise operator: kernels are told, none derives it."""

from __future__ import annotations

from functools import cache, reduce
from typing import Any

import torch

from macatensor.dispatch.signature import Role, Signature
from macatensor.runtime.boxed import Value
from op_table import Row

_KINDS = (bool, int, float, complex)


@cache
def _tensors_somewhere(operator: str) -> frozenset[str]:
    """Arguments that are tensors in one of the operator's overloads: a number in the place of one is an operand, as
    ``other`` of ``add.Scalar``, and not a parameter, as its ``alpha``."""
    packet = getattr(torch.ops.aten, operator)
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    return frozenset(a.name for s in schemas for a in s.arguments if "Tensor" in str(a.type))


def promoted(signature: Signature, row: Row) -> tuple[int, ...]:
    """Positions of the arguments whose dtypes decide; none where no kernel is told: what is not elementwise, and lists."""
    arguments = signature.arguments
    if not row.elementwise or any(a.role is Role.TENSORS for a in arguments):
        return ()
    names = row.promotes or _tensors_somewhere(signature.func._schema.name.partition("::")[2])
    kinds = (Role.TENSOR, Role.SCALAR)
    return tuple(i for i, a in enumerate(arguments) if a.role in kinds and a.name in names and not a.is_out)


def common_dtype(signature: Signature, row: Row, full: list[Value]) -> torch.dtype | None:
    """``torch.result_type`` of the operands among ``full``, as many as there are; None where there are none."""
    operands = [full[i] for i in promoted(signature, row) if full[i] is not None]
    tensors = [v for v in operands if isinstance(v, torch.Tensor)]
    numbers = [v for v in operands if not isinstance(v, torch.Tensor)]
    # numbers yield to tensors without dimensions, and these to others: two at a time, from the weakest
    found: Any = max(numbers, key=_kind, default=None)
    for group in ([t for t in tensors if not t.dim()], [t for t in tensors if t.dim()]):
        if group:
            tensor = _like(reduce(torch.promote_types, [t.dtype for t in group]), group[0].dim())
            found = tensor if found is None else _like(torch.result_type(tensor, found), 0)
    if found is None or isinstance(found, torch.Tensor):
        return None if found is None else found.dtype
    return torch.result_type(found, found)


def _kind(number: Any) -> int:
    return next(i for i, kind in enumerate(_KINDS) if isinstance(number, kind))


def _like(dtype: torch.dtype, dim: int) -> torch.Tensor:
    return torch.empty((0,) * dim, dtype=dtype, device="meta")
