"""The cheap look at a call: PyTorch's own kernel in float32 (float64 for doubles), without float64 and without terms.

Halves are computed in float32, which is exact beside them and several times as fast on a CPU without half arithmetic.
Where the device's result lies within half of the row's bound of that kernel's, element by element and at the result's
own magnitude (the bound is stated at the larger magnitude of the terms), the full judgement could only pass it.
"""

from __future__ import annotations

import torch

from macatensor.parity.formulas import FORMULAS
from macatensor.parity.measure import allowance
from macatensor.parity.transport import replace, tensors, twin
from macatensor.parity.watch import Seen
from macatensor.parity.wide_calls import run
from macatensor.runtime.boxed import Value
from op_table import Kind

_SHARE = 0.5  # of the bound: PyTorch's kernel has an error of its own
_FEW = 2048  # elements of a sum's operands up to which the full judgement costs no more than this

_HALVES = (torch.float16, torch.bfloat16)


def _raised(value: Value) -> Value:
    """Copies of arguments with halves made float32, ``dtype=`` included."""
    if isinstance(value, torch.Tensor):
        return twin(value, torch.float32 if value.dtype in _HALVES else None)
    if isinstance(value, torch.dtype):
        return torch.float32 if value in _HALVES else value
    if isinstance(value, (list, tuple)):
        return type(value)(_raised(v) for v in value)
    if isinstance(value, dict):
        return {k: _raised(v) for k, v in value.items()}
    return value


def is_clean(seen: Seen) -> bool:
    """Is a call certainly right? False where only the full judgement knows."""
    row = seen.row
    if seen.copies is None or row is None or row.kind is Kind.ON_CPU or row.form or row.random:
        return False
    name = seen.func._schema.name.partition("::")[2] or seen.func._schema.name
    if row.formula or name in FORMULAS:
        return False
    operands = [t for t in tensors(seen.copies) if t is not None]
    halves = any(t.dtype in _HALVES for t in operands)
    if row.terms == "sum" and sum(t.numel() for t in operands) <= _FEW and not halves:
        return False
    args, kwargs = _raised(seen.copies) if halves else replace(seen.copies, twin)
    # PyTorch's fused optimizers take memory for dense, and a device is to be the host
    if name.startswith("_fused_") or "device" in kwargs:
        return False
    try:
        with torch.no_grad():
            wanted, count = run(seen.func, row, args, kwargs)
    except Exception:
        return False
    if count != len(seen.host):
        return False
    bound = row.bound
    for got, want in zip(seen.host + seen.changed, wanted):
        if got is None:
            continue
        if want is None or got.shape != want.shape:
            return False
        if halves and got.dtype in _HALVES and want.dtype is torch.float32:
            want = want.to(got.dtype) if bound.measure == "exact" else want
        elif got.dtype != want.dtype:
            return False
        got, want = got.resolve_conj().resolve_neg(), want.resolve_conj().resolve_neg()
        if not (got.is_floating_point() or got.is_complex()):
            if not torch.equal(got, want):
                return False
            continue
        if got.element_size() == 1:
            return False
        # where only the half is infinite the full judgement knows what that means
        same = (got == want) | (got.isnan() & want.isnan())
        if bool(same.all()):
            continue
        if bound.measure == "exact" or got.is_complex():
            return False
        wide = want.double()
        near = (got.double() - wide).abs() <= _SHARE * allowance(got.dtype, wide, bound, None, 0.0)
        if not bool((same | near).all()):
            return False
    return True
