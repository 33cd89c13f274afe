"""Products of COO matrices, and sums of COO tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import MacaTensor, device
from macatensor.sparse.calls import DeviceSparse, held
from macatensor.sparse.matrices import product
from macatensor.sparse.rows import scattered_sums, sums_of_runs
from macatensor.sparse.structure import coalesce, empty, like, sparse_dim
from macatensor.sparse.tensor import SparseMacaTensor, coo, operator

_Sparse = SparseMacaTensor
_NOT_COMPRESSED = (torch.strided, torch.sparse_coo)


def _is_matrix(t: Value) -> bool:
    return isinstance(t, _Sparse) and t.dim() == 2 and sparse_dim(t) == 2


def _times_dense(t: _Sparse, rows: torch.Tensor, columns: torch.Tensor, dense: torch.Tensor,
                 count: int) -> torch.Tensor:  # fmt: skip
    """[count, n]: elements of ``t`` that lie at ``rows`` and ``columns`` [nnz] of a matrix, times ``dense`` [k, n]."""
    if not t._coo_is_coalesced:
        return scattered_sums(rows, columns, t._coo_values, dense, count)
    offsets = torch.searchsorted(rows.contiguous(), torch.arange(count + 1, device=device()))
    return sums_of_runs(offsets, columns, t._coo_values, dense)


def is_of_nothing(a: Value, b: Value, added: Value = None) -> bool:
    """Are these matrices of fitting sizes, whose product has no terms since a sparse one has no element, or, where one of
    the three is compressed, no elements? PyTorch then asks neither their dtypes nor whether it multiplies such layouts."""
    sparse = [t for t in (a, b) if isinstance(t, DeviceSparse)]
    are_matrices = a.dim() == b.dim() == 2 and (len(sparse) != 1 or sparse[0].dense_dim() == 0)
    if not are_matrices or a.shape[1] != b.shape[0]:
        return False
    is_compressed = any(t is not None and t.layout not in _NOT_COMPRESSED for t in (a, b, added))
    return not all(t._nnz() for t in sparse) or (is_compressed and not (a.shape[0] and b.shape[1]))


def product_of_nothing(a: Value, b: Value) -> Value:
    """Zeros [m, n] of the layout and dtype that PyTorch gives them; NotImplemented where it refuses the product."""
    are_sparse = isinstance(a, DeviceSparse) and isinstance(b, DeviceSparse)
    if not is_of_nothing(a, b) or (are_sparse and a.layout in (torch.sparse_bsr, torch.sparse_bsc)):
        return NotImplemented
    both = a.layout, b.layout
    if both == (torch.sparse_coo, torch.sparse_coo) and a.dtype != b.dtype:
        return NotImplemented
    dtype, layout = a.dtype, a.layout if are_sparse else torch.strided
    if set(both) <= {torch.sparse_csr, torch.sparse_csc}:
        dtype, layout = b.dtype, torch.sparse_csr
    elif isinstance(a, _Sparse) and not are_sparse:
        dtype = b.dtype
    return torch.zeros((a.shape[0], b.shape[1]), dtype=dtype, layout=layout, device=device())


def added_to_nothing(added: Value, a: Value, b: Value, beta: Value) -> Value:
    """``beta * added``, where it is a product of nothing to which that is added; NotImplemented where it is not."""
    if not is_of_nothing(a, b, added):
        return NotImplemented
    size = torch.Size((a.shape[0], b.shape[1]))
    if isinstance(added, MacaTensor) and _expands_to(added, size):
        added = added.expand(size)
    if added.shape != size:
        return NotImplemented
    if beta == 0:
        return torch.zeros_like(added)
    return added.clone() if beta == 1 else (added * beta).to(added.dtype)


def _expands_to(t: torch.Tensor, size: torch.Size) -> bool:
    try:
        return tuple(torch.broadcast_shapes(t.shape, size)) == tuple(size)
    except RuntimeError:
        return False


@operator("mm")
def mm(t: Value, other: Value) -> Value:
    made = _mm(t, other)
    return product_of_nothing(t, other) if made is NotImplemented else made


def _mm(t: Value, other: Value) -> Value:
    if isinstance(t, _Sparse) and isinstance(other, _Sparse):
        return product(t, other)
    if isinstance(t, MacaTensor) and t.dim() == 2 and _is_matrix(other):
        transposed = _mm(other.t(), t.t())
        return transposed if transposed is NotImplemented else transposed.t()
    fits = _is_matrix(t) and isinstance(other, MacaTensor) and other.dim() == 2
    if not fits or t.shape[1] != other.shape[0] or t.dtype != other.dtype:
        return NotImplemented
    rows, columns = t._coo_indices.unbind(0)
    return _times_dense(t, rows, columns, other, t.shape[0])


@operator("addmm", "_sparse_addmm")
def _addmm(added: Value, t: Value, dense: Value, *, beta: Value = 1, alpha: Value = 1) -> Value:
    if not (isinstance(added, MacaTensor) and isinstance(t, _Sparse) and isinstance(dense, MacaTensor)):
        return NotImplemented
    if added.dtype != t.dtype:
        return added_to_nothing(added, t, dense, beta)
    return added_to(mm(t, dense), added, beta, alpha)


def added_to(result: Value, added: torch.Tensor, beta: Value, alpha: Value) -> Value:
    """``beta * added + alpha * result``; NotImplemented where the sum would have other sizes than the result."""
    if result is NotImplemented or not _expands_to(added, result.shape):
        return NotImplemented
    if not (result.is_floating_point() or result.is_complex()):
        beta, alpha = int(beta), int(alpha)  # as PyTorch, which computes in the dtype of the product
    scaled = result if alpha == 1 else result * alpha
    return scaled if beta == 0 else scaled + (added if beta == 1 else added * beta)


def by_column(product: Callable[[Value, Value], Value], t: Value, vector: Value) -> Value:
    """[m] of a matrix [m, k] and a dense ``vector`` [k], by the ``product`` with a matrix of one column."""
    if not isinstance(vector, MacaTensor) or vector.dim() != 1:
        return NotImplemented
    column = product(t, vector.unsqueeze(1))
    return column if column is NotImplemented else column.squeeze(1)


@operator("mv")
def _mv(t: Value, vector: Value) -> Value:
    return by_column(mm, t, vector)


@operator("bmm")
def _bmm(t: Value, dense: Value) -> Value:
    fits = isinstance(t, _Sparse) and t.dim() == 3 and sparse_dim(t) == 3 and isinstance(dense, MacaTensor)
    if not fits or dense.dim() != 3 or t.shape[0] != dense.shape[0] or t.shape[2] != dense.shape[1]:
        return NotImplemented
    if t.dtype != dense.dtype:
        return NotImplemented
    batch, row, column = t._coo_indices.unbind(0)
    (count, rows, inner), columns = t.shape, dense.shape[2]
    flat = dense.reshape(count * inner, columns)
    stacked = _times_dense(t, batch * rows + row, batch * inner + column, flat, count * rows)
    return stacked.reshape(count, rows, columns)


def _rows_of_product(t: Value, dense: Value) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Which rows of a matrix ``t`` [m, k] have elements, int64 [r], and these rows of ``t @ dense`` [k, n]: [r, n]."""
    fits = _is_matrix(t) and isinstance(dense, MacaTensor) and dense.dim() == 2
    if not fits or t.shape[1] != dense.shape[0] or t.dtype != dense.dtype:
        return None
    whole = coalesce(t)
    numbers, of = torch.unique(whole._coo_indices[0], sorted=True, return_inverse=True)
    return numbers, _times_dense(whole, of, whole._coo_indices[1], dense, numbers.shape[0])


@operator("hspmm")
def _hspmm(t: Value, dense: Value) -> Value:
    """[m, n] whose rows are sparse and whose columns are dense."""
    made = _rows_of_product(t, dense)
    if made is None:
        return _no_rows(t, dense, t.dtype)
    return coo(made[0].unsqueeze(0), made[1], (t.shape[0], dense.shape[1]))


def _no_rows(t: Value, dense: Value, dtype: torch.dtype) -> Value:
    """[m, n] without a row, whatever the dtypes of its factors, where these make nothing; else NotImplemented."""
    if (
        not isinstance(t, _Sparse)
        or not isinstance(dense, (MacaTensor, _Sparse))
        or not is_of_nothing(t, dense)
    ):
        return NotImplemented
    return empty((t.shape[0], dense.shape[1]), 1, dtype)


@operator("hspmm.out")
def _hspmm_of_nothing(t: Value, dense: Value, *, out: Value) -> Value:
    return held(out, _no_rows(t, dense, out.dtype)) if isinstance(out, _Sparse) else NotImplemented


@operator("sspaddmm.out")
def _sspaddmm(
    added: Value, t: Value, dense: Value, *, beta: Value = 1, alpha: Value = 1, out: Value
) -> Value:
    """The elements of ``beta * added`` and those of ``alpha * t @ dense``, which are not added up: [m, n] in ``out``."""
    made = _rows_of_product(t, dense)
    if made is None or not isinstance(added, _Sparse) or not added.dtype == out.dtype == t.dtype:
        return NotImplemented
    size = (t.shape[0], dense.shape[1])
    numbers, rows = made
    columns = torch.arange(size[1], device=device()).repeat(numbers.shape[0])
    at, values = torch.stack([numbers.repeat_interleave(size[1]), columns]), rows.reshape(-1) * alpha
    if added is not out or added._coo_values.shape[0]:  # `smm` adds to its result, which has no size yet
        if added.shape != size or sparse_dim(added) != 2:
            return NotImplemented
        at = torch.cat([added._coo_indices, at], 1)
        values = torch.cat([added._coo_values * beta, values])
    return held(out, coo(at, values.to(out.dtype), size))


# -- sums and norms ---------------------------------------------------------------------------------------------------
@operator("sum")
def _sum(t: _Sparse, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    return t._coo_values.sum(dtype=dtype)


@operator("sum.dim_IntList")
def _sum_along(
    t: _Sparse, dims: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Value:
    rank = t.dim()
    if dims is None or not all(-rank <= d < rank for d in dims):
        return NotImplemented
    is_whole = not (t.dtype.is_floating_point or t.dtype.is_complex)
    dtype = torch.int64 if dtype is None and is_whole else dtype
    given = like(t, t._coo_values.to(dtype)) if dtype is not None else t
    result = torch.ops.aten._sparse_sum.dim(given, dims)
    if keepdim:
        for d in sorted({d % rank for d in dims}):
            result = result.unsqueeze(d)
    return result


@operator("any")
def _any(t: _Sparse) -> torch.Tensor:
    return t._coo_values.any()


@operator("native_norm")
def _native_norm(t: _Sparse, p: Value = 2) -> Value:
    return coalesce(t)._coo_values.norm(p)


@operator("norm.Scalar", "norm.ScalarOpt_dtype")
def _norm(t: _Sparse, p: Value = 2, *, dtype: torch.dtype | None = None) -> Value:
    return NotImplemented if dtype is not None else _native_norm(t, 2 if p is None else p)


@operator("norm.ScalarOpt_dim")
def _norm_along(t: _Sparse, p: Value, dims: Sequence[int], keepdim: bool = False) -> Value:
    rank = t.dim()
    is_whole = not dims or sorted(d + rank if d < 0 else d for d in dims) == list(range(rank))
    return _norm(t, p) if is_whole and not keepdim else NotImplemented


@operator("_sparse_sum_backward")
def _sum_backward(grad: Value, t: _Sparse, dims: Sequence[int]) -> Value:
    """The gradient of a sum over ``dims``: what lies at the place that each element went to."""
    t = coalesce(t)  # each place has a gradient once
    rank, sparse = t.dim(), sparse_dim(t)
    summed = {d % rank for d in dims}
    kept = [d for d in range(sparse) if d not in summed]
    if isinstance(grad, _Sparse):
        grad = grad.to_dense() if kept else NotImplemented
    if not isinstance(grad, MacaTensor):
        return NotImplemented
    values = grad[tuple(t._coo_indices[d] for d in kept)] if kept else grad.unsqueeze(0)
    for d in sorted(d for d in summed if d >= sparse):
        values = values.unsqueeze(d - sparse + 1)
    return like(t, values.expand(t._coo_values.shape).clone())
