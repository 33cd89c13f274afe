"""Parts of COO tensors along a dimension, and tensors that are put together along one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import MacaTensor
from macatensor.sparse.structure import empty, sparse_dim
from macatensor.sparse.tensor import SparseMacaTensor, coo, operator

_Sparse = SparseMacaTensor


@operator("select.int")
def _select(t: _Sparse, dim: int, index: int) -> Value:
    if not -t.dim() <= dim < t.dim():
        return NotImplemented
    dim %= t.dim()
    dims = sparse_dim(t)
    if not -t.shape[dim] <= index < t.shape[dim]:
        return NotImplemented
    size = [*t.shape[:dim], *t.shape[dim + 1 :]]
    if dim >= dims:
        return coo(t._coo_indices, t._coo_values.select(dim - dims + 1, index), size, t._coo_is_coalesced)
    chosen = (t._coo_indices[dim] == index % t.shape[dim]).nonzero().squeeze(1)
    if dims == 1:  # what is left is dense
        return t._coo_values.index_select(0, chosen).sum(0, dtype=t.dtype)
    at = t._coo_indices.index_select(1, chosen)
    rest = torch.cat([at[:dim], at[dim + 1 :]])
    return coo(rest, t._coo_values.index_select(0, chosen), size, t._coo_is_coalesced)


@operator("narrow_copy")
def _narrow_copy(t: _Sparse, dim: int, start: int, length: int) -> Value:
    if not (0 <= dim < t.dim() and 0 <= start and length >= 0 and start + length <= t.shape[dim]):
        return NotImplemented
    dims = sparse_dim(t)
    size = [*t.shape[:dim], length, *t.shape[dim + 1 :]]
    if dim >= dims:
        values = t._coo_values.narrow(dim - dims + 1, start, length)
        return coo(t._coo_indices, values, size, t._coo_is_coalesced)
    place = t._coo_indices[dim]
    chosen = ((place >= start) & (place < start + length)).nonzero().squeeze(1)
    at = t._coo_indices.index_select(1, chosen)
    at[dim] -= start
    return coo(at, t._coo_values.index_select(0, chosen), size, t._coo_is_coalesced)


@operator("cat")
def _cat(tensors: Sequence[Value], dim: int = 0) -> Value:
    first = tensors[0]
    if not all(isinstance(t, _Sparse) and t.dim() == first.dim() for t in tensors):
        return NotImplemented
    dims = sparse_dim(first)
    if not -first.dim() <= dim < first.dim() or any(sparse_dim(t) != dims for t in tensors):
        return NotImplemented
    dim %= first.dim()
    others = {(*t.shape[:dim], *t.shape[dim + 1 :]) for t in tensors}
    if len(others) > 1:
        return NotImplemented
    if dim >= dims:
        return _beside(tensors, dim, dims)
    shifted, before = [], 0
    for t in tensors:
        at = t._coo_indices.clone()
        at[dim] += before
        before += t.shape[dim]
        shifted.append(at)
    size = [*first.shape[:dim], before, *first.shape[dim + 1 :]]
    return coo(torch.cat(shifted, 1), torch.cat([t._coo_values for t in tensors]), size)


def _beside(tensors: Sequence[_Sparse], dim: int, dims: int) -> _Sparse:
    """Along a dense dimension: elements of each are zero where the others are."""
    sides, values = [t.shape[dim] for t in tensors], []
    for i, t in enumerate(tensors):
        around = (0, 0) * (t.dim() - 1 - dim) + (sum(sides[:i]), sum(sides[i + 1 :]))
        values.append(torch.nn.functional.pad(t._coo_values, around))
    size = list(tensors[0].shape)
    size[dim] = sum(sides)
    return coo(torch.cat([t._coo_indices for t in tensors], 1), torch.cat(values), size)


@operator("stack")
def _stack(tensors: Sequence[Value], dim: int = 0) -> Value:
    first = tensors[0]
    if not all(isinstance(t, _Sparse) and t.shape == first.shape for t in tensors):
        return NotImplemented
    if not -first.dim() - 1 <= dim <= first.dim():
        return NotImplemented
    return _cat([torch.ops.aten.unsqueeze.default(t, dim) for t in tensors], dim % (first.dim() + 1))


@operator("unbind.int")
def unbind(t: torch.Tensor, dim: int = 0) -> Value:
    if not -t.dim() <= dim < t.dim():
        return NotImplemented
    return [torch.ops.aten.select.int(t, dim, i) for i in range(t.shape[dim])]


@operator("index_select")
def _index_select(t: Value, dim: int, index: Value) -> Value:
    """Elements whose place along ``dim`` is one of ``index``, as often as it is named there."""
    fits = isinstance(t, _Sparse) and isinstance(index, MacaTensor) and index.dim() < 2
    if not fits or index.dtype not in (torch.int64, torch.int32) or not -t.dim() <= dim < t.dim():
        return NotImplemented
    dim, side, index = dim % t.dim(), t.shape[dim], index.reshape(-1).long()
    dims = sparse_dim(t)
    size = [*t.shape[:dim], index.shape[0], *t.shape[dim + 1 :]]
    if dim >= dims and not t._coo_values.shape[0]:  # PyTorch asks no values for any index
        return empty(size, dims, t.dtype)
    if bool(((index < -side) | (index >= side)).any()):
        return NotImplemented
    index = torch.where(index < 0, index + side, index)
    if dim >= dims:
        values = t._coo_values.index_select(dim - dims + 1, index)
        return coo(t._coo_indices, values, size, t._coo_is_coalesced)
    ordered, order = t._coo_indices[dim].sort(stable=True)
    begin = torch.searchsorted(ordered, index)
    count = torch.searchsorted(ordered, index, right=True) - begin
    to = torch.repeat_interleave(count)
    skipped = begin - (count.cumsum(0) - count)
    chosen = order.index_select(0, torch.arange(to.shape[0], device=to.device) + skipped.index_select(0, to))
    at = t._coo_indices.index_select(1, chosen)
    at[dim] = to
    return coo(at, t._coo_values.index_select(0, chosen), size, t._coo_is_coalesced and dim == 0)
