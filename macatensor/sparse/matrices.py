"""Products of two COO matrices."""

from __future__ import annotations

import torch

from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import device
from macatensor.sparse.rows import TERMS
from macatensor.sparse.structure import coalesce, empty
from macatensor.sparse.tensor import SparseMacaTensor, coo, operator

_Sparse = SparseMacaTensor


@operator("_sparse_sparse_matmul")
def product(a: Value, b: Value) -> Value:
    """[m, n], coalesced, of ``a`` [m, k] and ``b`` [k, n]: each element of ``a`` meets the row of ``b`` at its column.

    The terms are made and added up :data:`TERMS` at a time, so that memory follows the result.
    """
    fits = all(isinstance(t, _Sparse) and t.dim() == 2 and t._coo_indices.shape[0] == 2 for t in (a, b))
    if not fits or a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        return NotImplemented
    a, b = coalesce(a), coalesce(b)
    size = (a.shape[0], b.shape[1])
    inner = a._coo_indices[1]
    starts = torch.searchsorted(b._coo_indices[0].contiguous(), torch.arange(b.shape[0] + 1, device=device()))
    counts = starts.diff().index_select(0, inner)
    ends = counts.cumsum(0)
    total = int(ends[-1]) if ends.shape[0] else 0
    if not total:
        return empty(size, 2, a.dtype)
    edges = torch.tensor(range(TERMS, total, TERMS), dtype=ends.dtype, device=device())
    bounds = [0, *torch.searchsorted(ends, edges, right=True).tolist(), inner.shape[0]]
    parts = [
        _terms(a, b, starts, counts, begin, end) for begin, end in zip(bounds, bounds[1:]) if begin < end
    ]
    if len(parts) == 1:
        return coalesce(coo(*parts[0], size))
    parts = [(t._coo_indices, t._coo_values) for t in (coalesce(coo(*part, size)) for part in parts)]
    places, values = zip(*parts)
    return coalesce(coo(torch.cat(places, 1), torch.cat(values), size))


def _terms(
    a: _Sparse, b: _Sparse, starts: torch.Tensor, counts: torch.Tensor, begin: int, end: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices and values of what the elements ``begin`` to ``end`` of ``a`` give."""
    counts = counts[begin:end]
    of_a = torch.repeat_interleave(counts)
    within = torch.arange(of_a.shape[0], device=device()) - (counts.cumsum(0) - counts).index_select(0, of_a)
    of_a += begin
    rows, inner = a._coo_indices.index_select(1, of_a).unbind(0)
    of_b = starts.index_select(0, inner) + within
    columns = b._coo_indices[1].index_select(0, of_b)
    values = a._coo_values.index_select(0, of_a) * b._coo_values.index_select(0, of_b)
    return torch.stack([rows, columns]), values
