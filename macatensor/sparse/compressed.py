"""Compressed tensors of the device: CSR and BSR by rows, CSC and BSC by columns, BSR and BSC in blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, NoReturn

import torch

from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import device, take_sizes
from macatensor.sparse.calls import FROM_HOST, DeviceSparse, registrar

BY_ROWS = frozenset({torch.sparse_csr, torch.sparse_bsr})
IN_BLOCKS = frozenset({torch.sparse_bsr, torch.sparse_bsc})
# The layout of the same members when rows and columns change their names.
FLIPPED = {
    torch.sparse_csr: torch.sparse_csc,
    torch.sparse_csc: torch.sparse_csr,
    torch.sparse_bsr: torch.sparse_bsc,
    torch.sparse_bsc: torch.sparse_bsr,
}


class CompressedMacaTensor(DeviceSparse):
    """A tensor of layout ``torch.sparse_csr``, ``sparse_csc``, ``sparse_bsr`` or ``sparse_bsc`` on ``maca:0``. Made by
    PyTorch's functions, never directly."""

    _IMPLEMENTATION = "SparseCsrTensorImpl"
    operators: ClassVar[dict[str, Callable[..., Value]]] = {}
    _csx_layout: torch.layout
    # int32 or int64 [*batch, n + 1]: where the elements of each of the n rows, or columns, begin and end
    _csx_compressed: torch.Tensor
    _csx_plain: torch.Tensor  # of the same dtype [*batch, nnz]: the column, or row, of each element
    _csx_values: torch.Tensor  # [*batch, nnz, *block sizes, *dense sizes]

    def to_host(self, check: bool = False) -> torch.Tensor:
        return torch.sparse_compressed_tensor(
            self._csx_compressed.cpu(),
            self._csx_plain.cpu(),
            self._csx_values.cpu(),
            self.shape,
            layout=self._csx_layout,
            check_invariants=check,
            device="cpu",
        )

    def hold(self, other: Value) -> None:
        if self.shape != other.shape:
            take_sizes(self, other)
        become(self, other._csx_compressed, other._csx_plain, other._csx_values)

    def write(self, new: Value) -> None:
        """In place where there are as many elements, so that tensors which share them have them too, as PyTorch's do.
        Indices keep their dtype."""
        own, given = own_members(self), own_members(new)
        if self.shape == new.shape and all(to.shape == source.shape for to, source in zip(own, given)):
            for to, source in zip(own, given):
                to.copy_(source)
        else:
            kind = self._csx_compressed.dtype
            self.hold(compressed(new._csx_layout, given[0].to(kind), given[1].to(kind), given[2], new.shape))

    def is_contiguous(self, *args: Value, **kwargs: Value) -> NoReturn:
        raise RuntimeError("Sparse CSR tensors do not have is_contiguous")

    def stride(self, *args: Value) -> NoReturn:
        raise RuntimeError("Sparse CSR tensors do not have strides")


operator = registrar(CompressedMacaTensor)


def compressed(
    layout: torch.layout,
    compressed_indices: torch.Tensor,
    plain_indices: torch.Tensor,
    values: torch.Tensor,
    size: Sequence[int],
) -> CompressedMacaTensor:
    """The tensor of ``size`` and ``layout`` with these members, on maca: see :class:`CompressedMacaTensor`."""
    made: CompressedMacaTensor = torch.Tensor._make_wrapper_subclass(
        CompressedMacaTensor,
        tuple(size),
        dtype=values.dtype,
        layout=layout,
        device=device(),
        dispatch_layout=True,  # PyTorch asks such a tensor for its layout, which its dispatch key leaves open
    )
    made._csx_layout = layout
    return become(made, compressed_indices, plain_indices, values)


def become(
    tensor: CompressedMacaTensor,
    compressed_indices: torch.Tensor,
    plain_indices: torch.Tensor,
    values: torch.Tensor,
) -> CompressedMacaTensor:
    """``tensor`` with these elements instead."""
    tensor._csx_compressed, tensor._csx_plain, tensor._csx_values = compressed_indices, plain_indices, values
    return tensor


def like(
    t: CompressedMacaTensor,
    values: torch.Tensor,
    size: Sequence[int] | None = None,
    index_dtype: torch.dtype | None = None,
) -> CompressedMacaTensor:
    """Other values at copies of the same indices, as PyTorch's operators give; some in another dtype."""
    begins, plain = (i.to(index_dtype or i.dtype, copy=True) for i in (t._csx_compressed, t._csx_plain))
    return compressed(t._csx_layout, begins, plain, values, t.shape if size is None else size)


def members_of(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compressed indices, plain indices and values of a compressed tensor of any device."""
    if t.layout in BY_ROWS:
        return t.crow_indices(), t.col_indices(), t.values()
    return t.ccol_indices(), t.row_indices(), t.values()


def own_members(t: CompressedMacaTensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same of one of ours: those that it holds."""
    return t._csx_compressed, t._csx_plain, t._csx_values


def _from_host(source: torch.Tensor) -> CompressedMacaTensor:
    compressed_indices, plain_indices, values = members_of(source)
    # a 4-D tensor of values has its dimensions in this order
    values = values.to("maca", memory_format=torch.preserve_format)
    return compressed(
        source.layout, compressed_indices.to("maca"), plain_indices.to("maca"), values, source.shape
    )


FROM_HOST.update(dict.fromkeys(FLIPPED, _from_host))


class Geometry(NamedTuple):
    """The dimensions of a compressed tensor; of its matrices in blocks, where it has them."""

    batch: tuple[int, ...]
    compressed: int  # rows of CSR and BSR, columns of CSC and BSC
    plain: int
    block: tuple[int, ...]  # rows and columns of a block, or nothing
    dense: tuple[int, ...]
    nnz: int  # elements, or blocks, of each matrix of the batch
    by_rows: bool

    @property
    def matrices(self) -> int:
        return math.prod(self.batch)

    @property
    def rows(self) -> int:
        return self.compressed if self.by_rows else self.plain

    @property
    def columns(self) -> int:
        return self.plain if self.by_rows else self.compressed

    @property
    def each(self) -> tuple[int, ...]:
        """Sizes of what lies at each place: a block and the dense dimensions."""
        return (*self.block, *self.dense)


def geometry(t: CompressedMacaTensor) -> Geometry:
    """What the sizes of a tensor and of its members are."""
    values, batch = t._csx_values.shape, t._csx_compressed.dim() - 1
    blocks = 2 if t._csx_layout in IN_BLOCKS else 0
    block = tuple(values[batch + 1 : batch + 1 + blocks])
    rows, columns = t.shape[batch : batch + 2]
    if block:
        rows, columns = (n // max(1, b) for n, b in zip((rows, columns), block))
    by_rows = t._csx_layout in BY_ROWS
    return Geometry(
        tuple(t.shape[:batch]),
        rows if by_rows else columns,
        columns if by_rows else rows,
        block,
        tuple(values[batch + 1 + blocks :]),
        t._csx_plain.shape[-1],
        by_rows,
    )


def coordinates(t: CompressedMacaTensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each element, or block, of all matrices in their order: the number of the matrix, and its compressed and its
    plain index. Three of int64 [matrices * nnz]."""
    g = geometry(t)
    matrix, at = runs_of(t._csx_compressed.reshape(g.matrices, g.compressed + 1), g.nnz)
    return matrix, at, t._csx_plain.reshape(-1).long()


def runs_of(ends: torch.Tensor, nnz: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each of ``nnz`` elements of every matrix the number of the matrix and the run in which it lies, of compressed
    indices [matrices, n + 1]. Two of int64 [matrices * nnz]."""
    matrices = ends.shape[0]
    numbers = torch.arange(nnz, dtype=ends.dtype, device=device()).expand(matrices, nnz)
    at = torch.searchsorted(ends.contiguous(), numbers.contiguous(), right=True) - 1
    matrix = torch.arange(matrices, device=device()).unsqueeze(1).expand(matrices, nnz)
    return matrix.reshape(-1), at.reshape(-1)


def flat_values(t: CompressedMacaTensor) -> torch.Tensor:
    """The values of all matrices, one after the other: [matrices * nnz, *block sizes, *dense sizes]."""
    g = geometry(t)
    return t._csx_values.reshape(g.matrices * g.nnz, *g.each)


def linear(t: CompressedMacaTensor) -> torch.Tensor:
    """For each element, or block, its place in row-major order among those of all matrices: int64 [matrices * nnz]."""
    g = geometry(t)
    matrix, at, other = coordinates(t)
    row, column = (at, other) if g.by_rows else (other, at)
    return (matrix * g.rows + row) * g.columns + column


def ends_of(at: torch.Tensor, count: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Compressed indices [*batch, count + 1] of ``at`` int64 [*batch, nnz], sorted, of numbers below ``count``."""
    numbers = torch.arange(count + 1, device=device()).expand(*at.shape[:-1], count + 1)
    return torch.searchsorted(at.contiguous(), numbers.contiguous()).to(dtype)
