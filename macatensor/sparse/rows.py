"""Weighted sums of rows of a dense matrix: what a sparse matrix times a dense one is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import torch

from macatensor.dispatch.named_kernels import launch
from macatensor.dispatch.request import Declined
from macatensor.runtime.meta import contiguous_meta

# Elements of a temporary that has a row for each element of a sparse matrix: columns are taken so many at a time.
TERMS = 1 << 24


def in_pieces(dense: torch.Tensor, count: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Columns of ``dense`` [k, n] in pieces, of which ``count`` rows are at most :data:`TERMS` elements, and where each
    begins."""
    step = max(1, TERMS // max(1, count))
    for start in range(0, dense.shape[1], step):
        yield start, dense[:, start : start + step]


def sums_of_runs(
    offsets: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, dense: torch.Tensor
) -> torch.Tensor:
    """[rows, n] of a matrix compressed by rows, times ``dense`` [k, n]; [rows] times ``dense`` [k].

    Row ``r`` has the elements ``values[offsets[r] : offsets[r + 1]]`` at ``columns``, both [nnz]; offsets and columns are
    int32 or int64. Floating sums take no memory beside the result's.
    """
    size = (offsets.shape[0] - 1, *dense.shape[1:])
    if not columns.shape[0] or not dense.numel():
        return dense.new_zeros(size)
    if dense.is_floating_point():
        if dense.dim() == 2 and dense.stride(1) != 1:
            dense = dense.contiguous()
        if columns.dtype != offsets.dtype:
            columns = columns.to(offsets.dtype)
        members = (offsets.contiguous(), columns.contiguous(), values.contiguous(), dense)
        with suppress(Declined):  # by the library of another device
            return launch("sums_of_runs", members, [contiguous_meta(size, dense.dtype)], {})[0]
    if dense.dim() == 1:
        return sums_of_runs(offsets, columns, values, dense.unsqueeze(1)).squeeze(1)
    if not dense.is_floating_point():
        numbers = torch.arange(columns.shape[0], dtype=offsets.dtype, device=offsets.device)
        rows = torch.searchsorted(offsets, numbers, right=True) - 1
        return scattered_sums(rows, columns, values, dense, size[0])
    # bags of an embedding table: each sums up rows of it, of which each has its weight
    result: torch.Tensor = torch.ops.aten._embedding_bag_forward_only.default(
        dense, columns, offsets, False, 0, False, values, True
    )[0]
    return result


def scattered_sums(
    rows: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, dense: torch.Tensor, count: int
) -> torch.Tensor:
    """[count, n]: for each element of a matrix, in whatever order, its value times the row of ``dense`` [k, n] at its
    column, added up in its row. ``rows``, ``columns`` and ``values`` are [nnz]."""
    result = dense.new_zeros((count, dense.shape[1]))
    for start, piece in in_pieces(dense, rows.shape[0]):
        terms = piece.index_select(0, columns) * values.unsqueeze(1)
        result[:, start : start + piece.shape[1]].index_add_(0, rows, terms)
    return result
