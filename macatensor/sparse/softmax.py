"""Softmax of COO tensors: what is not there takes no part in the sums."""

from __future__ import annotations

import torch

from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import device
from macatensor.sparse.structure import coalesce, empty, like, places, sparse_dim, values_at
from macatensor.sparse.tensor import SparseMacaTensor, operator

_Sparse = SparseMacaTensor


def _pools(t: _Sparse, dim: int) -> tuple[torch.Tensor, int]:
    """For each element the number of its sum along the sparse dimension ``dim``, int64 [nnz], and how many there are."""
    others = [d for d in range(sparse_dim(t)) if d != dim]
    where = torch.tensor(others, dtype=torch.int64, device=device())
    along = places(t._coo_indices.index_select(0, where), [t.shape[d] for d in others])
    numbers, of = torch.unique(along, sorted=True, return_inverse=True)
    return of, numbers.shape[0]


def _sums(values: torch.Tensor, of: torch.Tensor, count: int) -> torch.Tensor:
    """For each element the sum of its pool."""
    sums = values.new_zeros((count, *values.shape[1:])).index_add_(0, of, values)
    return sums.index_select(0, of)


def _forward(t: Value, dim: int, half_to_float: bool, log: bool) -> Value:
    rank = t.dim()
    if half_to_float or not -rank <= dim < rank:
        return NotImplemented
    if not t.numel():
        return empty(t.shape, sparse_dim(t), t.dtype)
    if not t.is_floating_point():
        return NotImplemented
    whole = coalesce(t)
    values, dims = whole._coo_values, sparse_dim(t)
    dim %= rank
    if not values.numel():
        return like(whole, values.clone())
    if dim >= dims:
        along = dim - dims + 1
        return like(whole, values.log_softmax(along) if log else values.softmax(along))
    of, count = _pools(whole, dim)
    tops = values.new_full((count, *values.shape[1:]), -torch.inf).index_reduce_(0, of, values, "amax")
    less = values - tops.index_select(0, of)
    powers = less.exp()
    sums = _sums(powers, of, count)
    return like(whole, less - sums.log() if log else powers / sums)


def _backward(grad: Value, output: Value, dim: int, log: bool) -> Value:
    rank = output.dim()
    fits = isinstance(grad, _Sparse) and isinstance(output, _Sparse) and grad.shape == output.shape
    if not fits or sparse_dim(grad) != sparse_dim(output) or not -rank <= dim < rank:
        return NotImplemented
    output = coalesce(output)
    results, dims = output._coo_values, sparse_dim(output)
    dim %= rank
    if not results.numel():
        return like(output, results.clone())
    above = values_at(grad, output)
    if dim >= dims:
        backward = torch.ops.aten._log_softmax_backward_data if log else torch.ops.aten._softmax_backward_data
        return like(output, backward(above, results, dim - dims + 1, results.dtype))
    of, count = _pools(output, dim)
    if log:
        return like(output, above - results.exp() * _sums(above, of, count))
    return like(output, results * (above - _sums(above * results, of, count)))


@operator("_sparse_softmax")
def _softmax(t: Value, dim: int, half_to_float: bool) -> Value:
    return _forward(t, dim, half_to_float, log=False)


@operator("_sparse_log_softmax")
def _log_softmax(t: Value, dim: int, half_to_float: bool) -> Value:
    return _forward(t, dim, half_to_float, log=True)


@operator("_sparse_softmax_backward_data")
def _softmax_backward(grad: Value, output: Value, dim: int, t: Value) -> Value:
    return _backward(grad, output, dim, log=False)


@operator("_sparse_log_softmax_backward_data")
def _log_softmax_backward(grad: Value, output: Value, dim: int, t: Value) -> Value:
    return _backward(grad, output, dim, log=True)
