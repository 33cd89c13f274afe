"""Products of compressed matrices with dense ones and with each other, and those that reduce rows otherwise."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from macatensor.dispatch.resize import write_out
from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import MacaTensor
from macatensor.sparse.calls import put
from macatensor.sparse.compressed import (
    BY_ROWS,
    FLIPPED,
    IN_BLOCKS,
    CompressedMacaTensor,
    compressed,
    coordinates,
    geometry,
    like,
    operator,
)
from macatensor.sparse.conversion import flipped, of_coo, to_coo
from macatensor.sparse.matrices import product
from macatensor.sparse.products import (
    added_to,
    added_to_nothing,
    by_column,
    is_of_nothing,
    product_of_nothing,
)
from macatensor.sparse.rows import TERMS, in_pieces, sums_of_runs

_Compressed = CompressedMacaTensor


def _transposed(t: _Compressed) -> _Compressed:
    """A matrix with rows and columns exchanged: the same members under another layout."""
    values = t._csx_values.transpose(1, 2) if geometry(t).block else t._csx_values
    size = (t.shape[1], t.shape[0])
    return compressed(FLIPPED[t._csx_layout], t._csx_compressed, t._csx_plain, values, size)


def _times_dense(t: _Compressed, dense: torch.Tensor) -> torch.Tensor:
    """[m, n] of a matrix [m, k] without dense dimensions and ``dense`` [k, n]; of one without blocks also [m] of [k]."""
    if t._csx_layout not in IN_BLOCKS:
        t = t if t._csx_layout in BY_ROWS else flipped(t)
        return sums_of_runs(t._csx_compressed, t._csx_plain, t._csx_values, dense)
    g = geometry(t)
    high, wide = g.block
    _, at, plain = coordinates(t)
    row, column = (at, plain) if g.by_rows else (plain, at)
    result = dense.new_zeros((g.rows, high, dense.shape[1]))
    for start, piece in in_pieces(dense, g.nnz * max(high, wide)):
        width = piece.shape[1]
        tiles = piece.reshape(g.columns, wide, width).index_select(0, column)
        result[:, :, start : start + width].index_add_(0, row, torch.bmm(t._csx_values, tiles))
    return result.reshape(t.shape[0], dense.shape[1])


def _is_matrix(t: Value) -> bool:
    if isinstance(t, _Compressed):
        return t.dim() == 2 and t._csx_values.dim() == (3 if t._csx_layout in IN_BLOCKS else 1)
    return isinstance(t, MacaTensor) and t.dim() == 2


@operator("mm")
def mm(a: Value, b: Value) -> Value:
    made = _mm(a, b)
    return product_of_nothing(a, b) if made is NotImplemented else made


def _mm(a: Value, b: Value) -> Value:
    if isinstance(a, MacaTensor) and isinstance(b, MacaTensor):  # what they are added to is sparse
        return NotImplemented
    if not (_is_matrix(a) and _is_matrix(b)) or a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        return NotImplemented
    if not isinstance(a, _Compressed):
        return _times_dense(_transposed(b), a.t()).t().contiguous()
    if not isinstance(b, _Compressed):
        return _times_dense(a, b)
    if geometry(a).block or geometry(b).block:
        return NotImplemented
    return of_coo(product(to_coo(a), to_coo(b)), torch.sparse_csr)


@operator("mm.out")
def _mm_into_dense(a: Value, b: Value, *, out: Value) -> Value:
    """``out`` [m, n], dense, with the product, or of whatever dtype with one of nothing."""
    if not isinstance(out, MacaTensor):
        return NotImplemented
    if is_of_nothing(a, b, out):
        return write_out([out], torch.zeros((a.shape[0], b.shape[1]), dtype=out.dtype, device=out.device))
    made = mm(a, b)
    if made is NotImplemented:
        return made
    return write_out([out], made.to_dense() if isinstance(made, _Compressed) else made)


@operator("addmm", "_sparse_addmm")
def addmm(added: Value, a: Value, b: Value, *, beta: Value = 1, alpha: Value = 1) -> Value:
    in_blocks = added.layout in IN_BLOCKS  # to which PyTorch adds a product of nothing in place alone
    scaled = NotImplemented if in_blocks else added_to_nothing(added, a, b, beta)
    return _with_product(added, a, b, beta, alpha) if scaled is NotImplemented else scaled


@operator("addmm_")
def _addmm_in_place(added: Value, a: Value, b: Value, *, beta: Value = 1, alpha: Value = 1) -> Value:
    scaled = added_to_nothing(added, a, b, beta)
    return put(added, _with_product(added, a, b, beta, alpha) if scaled is NotImplemented else scaled)


def _with_product(added: Value, a: Value, b: Value, beta: Value, alpha: Value) -> Value:
    result = mm(a, b)
    if result is NotImplemented or added.dtype != result.dtype:
        return NotImplemented
    if isinstance(added, MacaTensor):
        return added_to(result.to_dense(), added, beta, alpha)
    if not isinstance(result, _Compressed) or added.shape != result.shape:
        return NotImplemented
    if added._csx_layout is not result._csx_layout:
        if geometry(added).block:
            return NotImplemented
        result = of_coo(to_coo(result), added._csx_layout)
    if beta == 0:
        return result if alpha == 1 else result * alpha
    return torch.ops.aten.add.Tensor(added if beta == 1 else added * beta, result, alpha=alpha)


@operator("mv")
def _mv(t: Value, vector: Value) -> Value:
    if not isinstance(t, _Compressed) or t._csx_layout in IN_BLOCKS:
        return by_column(mm, t, vector)
    fits = _is_matrix(t) and isinstance(vector, MacaTensor) and vector.dim() == 1
    if not fits or t.shape[1] != vector.shape[0] or t.dtype != vector.dtype:
        return NotImplemented
    return _times_dense(t, vector)


@operator("addmv")
def _addmv(added: Value, t: Value, vector: Value, *, beta: Value = 1, alpha: Value = 1) -> Value:
    if not isinstance(added, MacaTensor) or not isinstance(t, _Compressed) or added.dtype != t.dtype:
        return NotImplemented
    return added_to(_mv(t, vector), added, beta, alpha)


# -- products at the places of another matrix -------------------------------------------------------------------------
def _dots(a: torch.Tensor, b: torch.Tensor, in_a: torch.Tensor, in_b: torch.Tensor) -> torch.Tensor:
    """[nnz]: products of rows ``in_a`` of ``a`` [m, k] and rows ``in_b`` of ``b`` [n, k], added up."""
    step = max(1, TERMS // max(1, a.shape[1]))
    parts = [
        (a.index_select(0, one) * b.index_select(0, other)).sum(1)
        for one, other in zip(in_a.split(step), in_b.split(step))
    ]
    return torch.cat(parts)


@operator("sparse_sampled_addmm")
def sampled_addmm(t: Value, a: Value, b: Value, *, beta: Value = 1, alpha: Value = 1) -> Value:
    if not isinstance(t, _Compressed) or t._csx_layout is not torch.sparse_csr:
        return NotImplemented
    if not isinstance(a, MacaTensor) or not isinstance(b, MacaTensor) or not t.dtype == a.dtype == b.dtype:
        return NotImplemented
    g = geometry(t)
    inner = a.shape[-1]
    fits = a.shape == (*g.batch, g.rows, inner) and b.shape == (*g.batch, inner, g.columns)
    if g.dense or not fits or not (t.dtype.is_floating_point or t.dtype.is_complex):
        return NotImplemented
    matrix, row, column = coordinates(t)
    left = a.reshape(g.matrices * g.rows, inner)
    right = b.mT.reshape(g.matrices * g.columns, inner)
    dots = _dots(left, right, matrix * g.rows + row, matrix * g.columns + column).reshape(t._csx_values.shape)
    scaled = dots if alpha == 1 else dots * alpha
    values = scaled if beta == 0 else scaled + t._csx_values * beta
    return like(t, values, index_dtype=torch.int64 if g.nnz else None)


# -- rows reduced otherwise -------------------------------------------------------------------------------------------
def _counts(t: _Compressed) -> torch.Tensor:
    """How many elements each row has, at least 1, in the dtype of the values: [m, 1]."""
    return t._csx_compressed.diff().clamp(min=1).to(t.dtype).unsqueeze(1)


def _fits_reduction(t: Value, dense: Value) -> bool:
    if not isinstance(t, _Compressed) or t._csx_layout is not torch.sparse_csr or not _is_matrix(t):
        return False
    return (
        _is_matrix(dense)
        and t.shape[1] == dense.shape[0]
        and t.dtype == dense.dtype
        and (dense.is_floating_point() or not t._nnz())
    )


@operator("_sparse_mm_reduce_impl")
def _mm_reduce(t: Value, dense: Value, reduce: str) -> Value:
    """[m, n] of CSR [m, k] and ``dense`` [k, n], whose terms in each row are reduced by ``reduce``: "sum", "mean",
    "amax" or "amin"; 0 where there is none. With it for the gradient which element each extreme came from."""
    if not _fits_reduction(t, dense) or isinstance(dense, _Compressed):
        return NotImplemented
    none = t._csx_plain.new_empty(0)
    if reduce not in ("sum", "mean", "amax", "amin"):
        return NotImplemented
    nnz, size = t._csx_plain.shape[0], (t.shape[0], dense.shape[1])
    if not nnz:
        return dense.new_zeros(size), none
    if reduce in ("sum", "mean"):
        sums = _times_dense(t, dense)
        return sums if reduce == "sum" else sums / _counts(t), none
    result = dense.new_zeros(size)
    needs_places = torch.is_grad_enabled() and (t.requires_grad or dense.requires_grad)
    chosen = t._csx_plain.new_full(size, nnz) if needs_places else none
    _, row, column = coordinates(t)
    numbers = torch.arange(nnz, dtype=chosen.dtype, device=chosen.device).unsqueeze(1)
    for start, piece in in_pieces(dense, nnz):
        part = slice(start, start + piece.shape[1])
        terms = piece.index_select(0, column) * t._csx_values.unsqueeze(1)
        result[:, part].index_reduce_(0, row, terms, reduce, include_self=False)
        if needs_places:
            extremes = result[:, part].index_select(0, row)
            is_chosen = (terms == extremes) | (terms.isnan() & extremes.isnan())
            chosen[:, part].index_reduce_(0, row, torch.where(is_chosen, numbers, nnz), "amin")
    return result, chosen


@operator("_sparse_mm_reduce_impl_backward")
def _mm_reduce_backward(
    t: Value, grad: Value, dense: Value, reduce: str, chosen: Value, wanted: Sequence[bool]
) -> Value:
    """The gradients of CSR [m, k] and of ``dense`` [k, n] of a reduced product whose gradient [m, n] is ``grad``."""
    if not _fits_reduction(t, dense) or not isinstance(grad, MacaTensor) or isinstance(dense, _Compressed):
        return NotImplemented
    _, row, column = coordinates(t)
    if reduce in ("amax", "amin"):
        of_values, of_dense = _of_extremes(t, grad, dense, chosen, column)
        return like(t, of_values) if wanted[0] else None, of_dense if wanted[1] else None
    grad = grad / _counts(t) if reduce == "mean" else grad
    return (
        like(t, _dots(grad, dense, row, column)) if wanted[0] else None,
        _times_dense(_transposed(t), grad) if wanted[1] else None,
    )


def _of_extremes(
    t: _Compressed, grad: torch.Tensor, dense: torch.Tensor, chosen: torch.Tensor, column: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    nnz = column.shape[0]
    of_values, of_dense = torch.zeros_like(t._csx_values), torch.zeros_like(dense)
    if not nnz or not chosen.numel():
        return of_values, of_dense
    passed = torch.where(chosen < nnz, grad, 0)  # rows without elements have chosen none
    element = chosen.long().clamp(max=nnz - 1)
    places = column[element]
    of_values.index_add_(0, element.flatten(), (passed * dense.gather(0, places)).flatten())
    of_dense.scatter_add_(0, places, passed * t._csx_values[element])
    return of_values, of_dense
