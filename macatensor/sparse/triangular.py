"""Triangular systems of compressed matrices."""

from __future__ import annotations

import torch

from macatensor.dispatch.named_kernels import launch
from macatensor.dispatch.request import Declined
from macatensor.runtime.boxed import Value
from macatensor.runtime.meta import contiguous_meta
from macatensor.runtime.tensor import MacaTensor
from macatensor.sparse.compressed import BY_ROWS, IN_BLOCKS, CompressedMacaTensor, operator
from macatensor.sparse.conversion import of_coo, to_coo


@operator("triangular_solve")
def triangular_solve(b: Value, a: Value, upper: bool = True, transpose: bool = False,
                     unitriangular: bool = False) -> Value:  # fmt: skip
    """[n, k] of a triangle of a compressed matrix ``a`` [n, n] and a dense ``b`` [n, k], and a tensor of nothing, in whose
    place PyTorch has a copy of a dense ``a``. What lies in the other triangle is passed over."""
    fits = isinstance(a, CompressedMacaTensor) and isinstance(b, MacaTensor) and a.dtype == b.dtype
    if not fits or a.dim() != 2 or b.dim() != 2 or not a.shape[0] == a.shape[1] == b.shape[0]:
        return NotImplemented
    if a._csx_layout in IN_BLOCKS:
        a = of_coo(to_coo(a), torch.sparse_csr)
    elif (
        a._csx_layout not in BY_ROWS
    ):  # as rows its columns are those of the transposed matrix, the triangle the other
        upper, transpose = not upper, not transpose
    members = (a._csx_compressed.contiguous(), a._csx_plain.contiguous(), a._csx_values.contiguous())
    if members[2].dim() != 1 or not (a.dtype.is_floating_point or a.dtype.is_complex):
        return NotImplemented
    if not members[1].shape[0]:  # PyTorch divides by no diagonal, of a unit triangle neither
        return b.new_full(b.shape, torch.nan), b.new_empty(0)
    result = contiguous_meta(b.shape, b.dtype)
    attributes = {"upper": upper, "transpose": transpose, "unit": unitriangular}
    try:
        (solution,) = launch("triangular_solve_of_runs", (*members, b.contiguous()), [result], attributes)
    except Declined:  # by the library of another device
        return NotImplemented
    return solution, b.new_empty(0)


@operator("triangular_solve.X")
def _triangular_solve_out(b: Value, a: Value, upper: bool = True, transpose: bool = False, unitriangular: bool = False, *,
                          X: Value, M: Value) -> Value:  # fmt: skip
    made = triangular_solve(b, a, upper, transpose, unitriangular)
    if made is NotImplemented or X.dtype != b.dtype or not isinstance(X, MacaTensor):
        return NotImplemented
    return X.resize_(b.shape).copy_(made[0]), M.resize_(0)
