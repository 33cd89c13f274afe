"""From each layout to the others: dense, COO, and compressed by rows or columns, in blocks or not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch._ops import OpOverload

from macatensor.dispatch.launcher import special
from macatensor.dispatch.rowless import without_row
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.tensor import device
from macatensor.sparse import structure
from macatensor.sparse.compressed import (
    BY_ROWS,
    FLIPPED,
    IN_BLOCKS,
    CompressedMacaTensor,
    compressed,
    coordinates,
    ends_of,
    flat_values,
    geometry,
    linear,
    operator,
    runs_of,
)
from macatensor.sparse.tensor import SparseMacaTensor, coo
from macatensor.sparse.tensor import operator as coo_operator

_Compressed = CompressedMacaTensor
_LAYOUTS = {
    "aten::_to_sparse_csr": torch.sparse_csr,
    "aten::_to_sparse_csc": torch.sparse_csc,
    "aten::_to_sparse_bsr": torch.sparse_bsr,
    "aten::_to_sparse_bsc": torch.sparse_bsc,
}


# -- to dense and back ------------------------------------------------------------------------------------------------
@operator("_to_dense", "to_dense")
def to_dense(t: _Compressed, dtype: torch.dtype | None = None, masked_grad: bool | None = None) -> Value:
    if dtype is not None:
        return NotImplemented
    if not t.numel():
        return t._csx_values.new_zeros(t.shape)
    g = geometry(t)
    flat = t._csx_values.new_zeros((g.matrices * g.rows * g.columns, *g.each))
    flat.index_add_(0, linear(t), flat_values(t))
    tiles = flat.reshape(g.matrices, g.rows, g.columns, *g.each)
    return (tiles.transpose(2, 3) if g.block else tiles).reshape(t.shape)


def tiled(dense: torch.Tensor, block: Sequence[int], dense_dims: int) -> torch.Tensor:
    """[matrices, rows, columns, *block sizes, *dense sizes] of a dense tensor whose last dimensions, ``dense_dims``,
    are dense; rows and columns are counted in blocks."""
    batch = dense.dim() - 2 - dense_dims
    matrices, (rows, columns), rest = (
        math.prod(dense.shape[:batch]),
        dense.shape[batch : batch + 2],
        dense.shape[batch + 2 :],
    )
    if not block:
        return dense.reshape(matrices, rows, columns, *rest)
    high, wide = block
    return dense.reshape(matrices, rows // high, high, columns // wide, wide, *rest).transpose(2, 3)


def of_dense(
    dense: torch.Tensor,
    layout: torch.layout,
    block: Sequence[int],
    dense_dims: int,
    mask: torch.Tensor | None = None,
) -> _Compressed:
    """The elements, or blocks, of a dense tensor that are not all zero, or not all false in ``mask``.

    Raises RuntimeError where matrices of a batch have different numbers of them.
    """
    size, batch = dense.shape, dense.shape[: dense.dim() - 2 - dense_dims]
    values = tiled(dense, block, dense_dims)
    is_there = tiled(dense != 0 if mask is None else mask, block, dense_dims)
    if is_there.dim() > 3:
        is_there = is_there.flatten(3).any(-1)
    if layout not in BY_ROWS:
        values, is_there = values.transpose(1, 2), is_there.transpose(1, 2)
    matrices, n, m = is_there.shape
    at = is_there.nonzero()
    nnz = at.shape[0] // max(1, matrices)
    matrix, row, plain = at.unbind(1)
    if matrices > 1 and bool((is_there.flatten(1).sum(1) != nnz).any()):
        raise RuntimeError("Expect the same number of specified elements per batch.")
    ends = ends_of(row.reshape(matrices, nnz), n)
    rest = values.shape[3:]
    chosen = values.reshape(matrices * n * m, *rest).index_select(0, (matrix * n + row) * m + plain)
    return compressed(
        layout,
        ends.reshape(*batch, n + 1),
        plain.reshape(*batch, nnz),
        chosen.reshape(*batch, nnz, *rest),
        size,
    )


def _coo_of_dense(dense: torch.Tensor, dims: int) -> SparseMacaTensor:
    if dense.dim() == 0:
        there = dense.reshape(1)
        there = there[there != 0]
        return coo(torch.empty((0, there.shape[0]), dtype=torch.int64, device=device()), there, (), True)
    is_there = dense != 0
    if dims < dense.dim():
        is_there = is_there.flatten(dims).any(-1)
    at = is_there.nonzero().t().contiguous()
    return coo(at, dense[tuple(at)], dense.shape, is_coalesced=True)


def _divides(block: Sequence[int] | None, layout: torch.layout, sizes: Sequence[int]) -> bool:
    """Does a block fit a layout, and a matrix of these sizes?"""
    if layout not in IN_BLOCKS:
        return block is None
    if block is None or len(block) != 2 or min(block) <= 0:
        return False
    return all(n % b == 0 for n, b in zip(sizes, block))


@special(
    "aten._to_sparse.default",
    "aten._to_sparse.sparse_dim",
    *[f"aten.{name.removeprefix('aten::')}.default" for name in _LAYOUTS],
)
def _of_dense(func: OpOverload) -> Launcher:
    names = [a.name for a in func._schema.arguments]

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        given = dict(zip(names, args)) | (kwargs or {})
        dense = given["self"]
        layout = _LAYOUTS.get(func._schema.name) or given.get("layout") or torch.sparse_coo
        block, dense_dims = given.get("blocksize"), given.get("dense_dim")
        rank = dense.dim()
        if layout is torch.sparse_coo and block is None:
            dims = given.get("sparse_dim")
            if dims is None:
                dims = rank - (dense_dims or 0)
            if min(rank, 1) <= dims <= rank:
                return _coo_of_dense(dense, dims)
        elif layout in FLIPPED and 0 <= (dense_dims or 0) <= rank - 2:
            batch = rank - 2 - (dense_dims or 0)
            if 0 not in dense.shape[:batch] and _divides(block, layout, dense.shape[batch : batch + 2]):
                return of_dense(dense, layout, block or (), dense_dims or 0)
        func(
            torch.zeros((), dtype=dense.dtype, device="cpu").expand(dense.shape), *args[1:], **(kwargs or {})
        )  # raises
        return without_row(func, args, kwargs, "this layout is made on the host")

    return run


# -- of indices alone -------------------------------------------------------------------------------------------------
@special("aten._convert_indices_from_csr_to_coo.default")
def _coo_indices(func: OpOverload) -> Launcher:
    def run(args: Arguments, kwargs: Keywords | None) -> torch.Tensor:
        """[batch dimensions + 2, matrices * nnz] of compressed indices [*batch, n + 1] and plain ones [*batch, nnz]."""
        (ends, plain), options = args, kwargs or {}
        batch = plain.shape[:-1]
        if not (
            ends.dim() == plain.dim() > 0
            and ends.shape[:-1] == batch
            and ends.shape[-1]
            and ends.dtype == plain.dtype
        ):
            raise RuntimeError(
                f"_convert_indices_from_csr_to_coo got indices {ends.dtype} {list(ends.shape)} and {plain.dtype} "
                f"{list(plain.shape)}; accepted: [*batch, n + 1] and [*batch, nnz] of one integral dtype"
            )
        matrix, at = runs_of(ends.reshape(-1, ends.shape[-1]), plain.shape[-1])
        rows = at, plain.reshape(-1)
        by_batch = structure.from_linear(matrix, batch)
        dtype = torch.int32 if options.get("out_int32") else torch.int64
        return torch.cat(
            [by_batch, *(r.unsqueeze(0) for r in (rows[::-1] if options.get("transpose") else rows))]
        ).to(dtype)

    return run


@special("aten._convert_indices_from_coo_to_csr.default")
def _csr_ends(func: OpOverload) -> Launcher:
    def run(args: Arguments, kwargs: Keywords | None) -> torch.Tensor:
        (at, size), options = args, kwargs or {}
        if at.dim() != 1:
            raise RuntimeError(f"Input is supposed to be a vector, but got {at.dim()} dimensional tensor.")
        if at.dtype.is_floating_point or size < 0:
            raise RuntimeError(
                f"_convert_indices_from_coo_to_csr got indices {at.dtype} {list(at.shape)} of {size} rows; accepted: "
                "sorted integers [nnz], none of them negative or as large as the number of rows"
            )
        return ends_of(at.long(), size, torch.int32 if options.get("out_int32") else torch.int64)

    return run


# -- between sparse layouts -------------------------------------------------------------------------------------------
def flipped(t: _Compressed) -> _Compressed:
    """CSR as CSC, BSR as BSC, and back."""
    g = geometry(t)
    matrix, at, plain = coordinates(t)
    runs = matrix * g.plain + plain
    order = torch.argsort(runs * g.compressed + at, stable=True)
    dtype = t._csx_plain.dtype
    ends = ends_of(plain.index_select(0, order).reshape(g.matrices, g.nnz), g.plain, dtype)
    return compressed(
        FLIPPED[t._csx_layout],
        ends.reshape(*g.batch, g.plain + 1),
        at.index_select(0, order).to(dtype).reshape(*g.batch, g.nnz),
        flat_values(t).index_select(0, order).reshape(t._csx_values.shape),
        t.shape,
    )


def _in_blocks(t: _Compressed, block: Sequence[int]) -> _Compressed:
    """A matrix in CSR as BSR, in CSC as BSC."""
    g = geometry(t)
    layout = torch.sparse_bsr if g.by_rows else torch.sparse_bsc
    high, wide = block
    count = t.shape[1] // wide if g.by_rows else t.shape[0] // high  # blocks of a run
    _, at, plain = coordinates(t)
    row, column = (at, plain) if g.by_rows else (plain, at)
    run, other = (row // high, column // wide) if g.by_rows else (column // wide, row // high)
    blocks, of = torch.unique(run * count + other, sorted=True, return_inverse=True)
    nnz, dtype = blocks.shape[0], t._csx_plain.dtype
    values = t._csx_values.new_zeros((nnz * high * wide, *g.dense))
    values.index_copy_(0, (of * high + row % high) * wide + column % wide, t._csx_values)
    runs = (t.shape[0] // high) if g.by_rows else (t.shape[1] // wide)
    return compressed(
        layout,
        ends_of(blocks // max(1, count), runs, dtype),
        (blocks % max(1, count)).to(dtype),
        values.reshape(nnz, high, wide, *g.dense),
        t.shape,
    )


def to_coo(t: _Compressed) -> SparseMacaTensor:
    """The same elements; those of blocks one by one. Coalesced where their order is that of rows."""
    g = geometry(t)
    matrix, at, plain = coordinates(t)
    row, column = (at, plain) if g.by_rows else (plain, at)
    values = flat_values(t)
    is_coalesced = t._csx_layout is torch.sparse_csr or t.numel() == 0 or g.nnz == 1
    if g.block:
        high, wide = g.block
        is_coalesced |= g.by_rows and high == 1 and not g.batch
        within = torch.arange(high * wide, device=device())
        row = (row.unsqueeze(1) * high + within // max(1, wide)).flatten()
        column = (column.unsqueeze(1) * wide + within % max(1, wide)).flatten()
        matrix = matrix.repeat_interleave(high * wide)
        values = values.reshape(row.shape[0], *g.dense)
    indices = torch.cat([structure.from_linear(matrix, g.batch), torch.stack([row, column])])
    return coo(indices, values, t.shape, is_coalesced)


def of_coo(t: SparseMacaTensor, layout: torch.layout) -> _Compressed:
    """A matrix, perhaps with dense dimensions, in CSR or CSC."""
    whole = structure.coalesce(t)
    rows, columns = whole._coo_indices.unbind(0)
    values = whole._coo_values
    if layout is torch.sparse_csr:
        return compressed(layout, ends_of(rows, t.shape[0]), columns.contiguous(), values, t.shape)
    order = torch.argsort(columns * t.shape[0] + rows, stable=True)
    rows, columns = rows.index_select(0, order), columns.index_select(0, order)
    return compressed(layout, ends_of(columns, t.shape[1]), rows, values.index_select(0, order), t.shape)


def to_layout(t: Value, layout: torch.layout, block: Sequence[int] | None = None) -> Value:
    """A sparse tensor in another layout; NotImplemented where PyTorch has no such conversion."""
    if layout is torch.strided:
        return structure.to_dense(t) if isinstance(t, SparseMacaTensor) else to_dense(t)
    if isinstance(t, SparseMacaTensor):
        if layout is torch.sparse_coo:
            return t
        if structure.sparse_dim(t) != 2 or not _divides(block, layout, t.shape):
            return NotImplemented
        plain = of_coo(t, torch.sparse_csr if layout in BY_ROWS else torch.sparse_csc)
        return plain if block is None else _in_blocks(plain, block)
    if layout is torch.sparse_coo:
        return to_coo(t) if block is None else NotImplemented
    g = geometry(t)
    if g.block:
        fits = block is not None and tuple(block) == g.block and layout in IN_BLOCKS
        return NotImplemented if not fits else t if layout is t._csx_layout else flipped(t)
    if not _divides(block, layout, t.shape[len(g.batch) :]) or (block and g.batch):
        return NotImplemented
    by_rows = layout in BY_ROWS
    plain = t if by_rows == g.by_rows else flipped(t)
    return plain if block is None else _in_blocks(plain, block)


@coo_operator("_to_sparse")
@operator("_to_sparse")
def _to_sparse(
    t: Value,
    *,
    layout: torch.layout | None = None,
    blocksize: Sequence[int] | None = None,
    dense_dim: int | None = None,
) -> Value:
    return NotImplemented if dense_dim is not None else to_layout(t, layout or torch.sparse_coo, blocksize)


@coo_operator("_to_sparse.sparse_dim")
@operator("_to_sparse.sparse_dim")
def _to_sparse_dims(t: Value, sparse_dim: int) -> Value:
    has = structure.sparse_dim(t) if isinstance(t, SparseMacaTensor) else 2
    return to_layout(t, torch.sparse_coo) if sparse_dim == has else NotImplemented


@coo_operator("_to_sparse_csr")
@operator("_to_sparse_csr")
def _to_csr(t: Value, dense_dim: int | None = None) -> Value:
    return _to_sparse(t, layout=torch.sparse_csr, dense_dim=dense_dim)


@coo_operator("_to_sparse_csc")
@operator("_to_sparse_csc")
def _to_csc(t: Value, dense_dim: int | None = None) -> Value:
    return _to_sparse(t, layout=torch.sparse_csc, dense_dim=dense_dim)


@coo_operator("_to_sparse_bsr")
@operator("_to_sparse_bsr")
def _to_bsr(t: Value, blocksize: Sequence[int], dense_dim: int | None = None) -> Value:
    return _to_sparse(t, layout=torch.sparse_bsr, blocksize=blocksize, dense_dim=dense_dim)


@coo_operator("_to_sparse_bsc")
@operator("_to_sparse_bsc")
def _to_bsc(t: Value, blocksize: Sequence[int], dense_dim: int | None = None) -> Value:
    return _to_sparse(t, layout=torch.sparse_bsc, blocksize=blocksize, dense_dim=dense_dim)
