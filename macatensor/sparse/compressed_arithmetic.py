"""Elementwise operators of compressed tensors, and their sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._ops import OpOverload

from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import MacaTensor
from macatensor.sparse import structure
from macatensor.sparse.calls import DeviceSparse, is_one_number, written
from macatensor.sparse.compressed import (
    CompressedMacaTensor,
    compressed,
    coordinates,
    ends_of,
    flat_values,
    geometry,
    like,
    linear,
    operator,
)
from macatensor.sparse.conversion import of_coo, tiled, to_coo, to_dense, to_layout
from macatensor.sparse.tensor import SparseMacaTensor
from op_table.sparse import OF_COMPRESSED, OF_COMPRESSED_NEVER_IN_PLACE

_Compressed = CompressedMacaTensor


# -- of one operand ---------------------------------------------------------------------------------------------------
def _of_values(func: OpOverload) -> Callable[..., Value]:
    def compute(t: _Compressed, *args: Value, **kwargs: Value) -> _Compressed:
        return like(t, func(t._csx_values, *args, **kwargs))

    return compute


def _of_values_in_place(func: OpOverload) -> Callable[..., Value]:
    def compute(t: _Compressed, *args: Value, **kwargs: Value) -> Value:
        func(t._csx_values, *args, **kwargs)
        return t

    return compute


def _register_unary(name: str, in_place: bool) -> None:
    # the overload that PyTorch asks its devices for is another than the function's
    of = "_conj_physical" if name == "conj_physical" else name
    operator(of, name)(_of_values(getattr(torch.ops.aten, of).default))
    if in_place:
        operator(f"{name}_")(_of_values_in_place(getattr(torch.ops.aten, f"{name}_").default))


for _name in OF_COMPRESSED:
    _register_unary(_name, in_place=True)
for _name in OF_COMPRESSED_NEVER_IN_PLACE:
    _register_unary(_name, in_place=False)


@operator("threshold_backward")
def _threshold_backward(grad: Value, t: Value, threshold: Value) -> Value:
    if not isinstance(grad, _Compressed) or not isinstance(t, _Compressed):
        return NotImplemented
    return like(grad, torch.ops.aten.threshold_backward(grad._csx_values, t._csx_values, threshold))


# -- products by numbers, and elementwise -----------------------------------------------------------------------------
def _is_csr(*values: Value) -> bool:
    return all(isinstance(t, _Compressed) and t._csx_layout is torch.sparse_csr for t in values)


def _as_csr(t: Value) -> Value:
    """A sparse matrix; NotImplemented where it has dense dimensions."""
    if _is_csr(t):
        return t
    elements = to_coo(t) if isinstance(t, _Compressed) else t
    return of_coo(elements, torch.sparse_csr) if structure.sparse_dim(elements) == 2 else NotImplemented


@operator("mul.Tensor", "mul.Scalar")
def mul(t: Value, other: Value) -> Value:
    if isinstance(t, _Compressed) and is_one_number(other):
        return like(t, t._csx_values * other)
    if is_one_number(t):
        return mul(other, t)
    if not isinstance(t, _Compressed):
        return mul(other, t)
    if isinstance(other, MacaTensor) and _is_csr(t):
        other = torch.ops.aten.sparse_mask.default(other, t)
    if _is_csr(t) and isinstance(other, DeviceSparse) and t.dim() == other.dim() == 2:
        other = _as_csr(other)
    if not _is_csr(t, other) or t.shape != other.shape or t.dim() != 2 + len(geometry(t).dense):
        return NotImplemented
    product = to_coo(t) * to_coo(other)
    return of_coo(product, torch.sparse_csr) if isinstance(product, SparseMacaTensor) else NotImplemented


@operator("mul_.Tensor", "mul_.Scalar")
def _mul_in_place(t: Value, other: Value) -> Value:
    if not isinstance(t, _Compressed):
        return NotImplemented
    if is_one_number(other):
        t._csx_values.mul_(other)
        return t
    return written(t, mul(t, other))


@operator("sparse_mask")
def _sparse_mask(t: Value, mask: Value) -> Value:
    """What ``t`` has where ``mask`` has elements."""
    if not isinstance(mask, _Compressed) or t.shape != mask.shape:
        return NotImplemented
    if t is mask:
        return t
    if not mask.numel() or not mask._csx_plain.shape[-1]:
        return like(mask, mask._csx_values.to(t.dtype, copy=True))
    if isinstance(t, MacaTensor):
        g = geometry(mask)
        flat = tiled(t, g.block, len(g.dense)).reshape(g.matrices * g.rows * g.columns, *g.each)
        values = flat.index_select(0, linear(mask)).reshape(mask._csx_values.shape)
        return like(mask, values, t.shape, index_dtype=torch.int64)
    if isinstance(t, _Compressed) and t._csx_layout is mask._csx_layout:
        product = mul(t, like(mask, torch.ones_like(mask._csx_values)))
        return product if product is NotImplemented else like(product, product._csx_values.to(t.dtype))
    masked = torch.ops.aten.sparse_mask.default(t, to_coo(mask))
    return to_layout(masked, mask._csx_layout, geometry(mask).block or None)


# -- sums and differences ---------------------------------------------------------------------------------------------
def _add_dense(dense: torch.Tensor, sparse: _Compressed, alpha: Value) -> Value:
    """``dense + alpha * sparse``, dense."""
    g = geometry(sparse)
    if dense.shape != sparse.shape:
        # what the host's kernel says of it; of some that fit it reads past their ends
        return NotImplemented
    if g.block or g.dense or not dense.numel():
        return torch.add(dense, to_dense(sparse), alpha=alpha)
    dtype = torch.promote_types(dense.dtype, sparse.dtype)
    result = torch.empty(dense.shape, dtype=dtype, device=dense.device).copy_(dense)
    values = flat_values(sparse) if alpha == 1 else flat_values(sparse) * alpha
    result.reshape(-1).index_add_(0, linear(sparse), values.to(dtype))
    return result


def _have_same_places(t: _Compressed, other: _Compressed) -> bool:
    pairs = (t._csx_compressed, other._csx_compressed), (t._csx_plain, other._csx_plain)
    return all(a is b or (a.dtype is b.dtype and torch.equal(a, b)) for a, b in pairs)


@operator("add.Tensor")
def add(t: Value, other: Value, *, alpha: Value = 1) -> Value:
    if isinstance(t, MacaTensor):
        return _add_dense(t, other, alpha) if isinstance(other, _Compressed) else NotImplemented
    if isinstance(other, MacaTensor):
        return _add_dense(other, t, alpha)  # which PyTorch, in its tests, too, multiplies the sparse one by
    if not (isinstance(t, _Compressed) and isinstance(other, _Compressed)) or t.shape != other.shape:
        return NotImplemented
    if t._csx_layout is not other._csx_layout:
        other = _as_csr(other) if _is_csr(t) and t.dim() == 2 else NotImplemented
    if other is NotImplemented:
        return NotImplemented
    g, dtype = geometry(t), torch.promote_types(t.dtype, other.dtype)
    if g == geometry(other) and _have_same_places(t, other):
        return like(t, torch.add(t._csx_values, other._csx_values, alpha=alpha))
    if g.batch or g.dense or g.block or torch.bool in (t.dtype, other.dtype):
        return NotImplemented
    both = torch.ops.aten.add.Tensor(to_coo(t), to_coo(other), alpha=alpha)
    result = of_coo(structure.coalesce(both), t._csx_layout)
    kind = torch.promote_types(t._csx_plain.dtype, other._csx_plain.dtype)
    indices = result._csx_compressed.to(kind), result._csx_plain.to(kind)
    return compressed(t._csx_layout, *indices, result._csx_values.to(dtype), t.shape)


@operator("add_.Tensor")
def _add_in_place(t: Value, other: Value, *, alpha: Value = 1) -> Value:
    total = add(t, other, alpha=alpha)
    if isinstance(t, _Compressed):
        return written(t, total)
    fits = isinstance(total, MacaTensor) and torch.can_cast(total.dtype, t.dtype)
    return t.copy_(total) if fits else NotImplemented


# -- reductions -------------------------------------------------------------------------------------------------------
@operator("sum")
def _sum(t: _Compressed, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    return t._csx_values.sum(dtype=dtype)


@operator("sum.dim_IntList", "_sparse_csr_sum.dim_dtype")
def _sum_along(
    t: _Compressed, dims: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Value:
    return _reduced(t, dims, keepdim, dtype, "sum")


@operator("_sparse_csr_prod.dim_dtype")
def _product_along(
    t: _Compressed, dims: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Value:
    return _reduced(t, dims, keepdim, dtype, "prod")


def _reduced(
    t: _Compressed, dims: Sequence[int] | None, keepdim: bool, dtype: torch.dtype | None, how: str
) -> Value:
    """CSR [m, n] reduced over what is there: by columns [1, n], by rows [m, 1] or altogether [1, 1]."""
    is_whole = not (t.dtype.is_floating_point or t.dtype.is_complex or t.dtype is torch.bool)
    kind = dtype or (torch.int64 if is_whole else t.dtype)
    if not _is_csr(t) or t.dim() != 2 or dims is None or not keepdim or kind is torch.bool:
        return NotImplemented
    if not all(-2 <= d < 2 for d in dims):
        return NotImplemented
    values, indices = t._csx_values.to(kind), t._csx_plain.dtype
    along = {d % 2 for d in dims} or {0, 1}
    if len(along) == 2:
        nnz = min(1, values.shape[0])
        total = (values.sum() if how == "sum" else values.prod()).reshape(1)[:nnz]
        ends = torch.tensor([0, nnz], dtype=indices, device=t._csx_plain.device)
        return compressed(
            torch.sparse_csr, ends, torch.zeros_like(ends[:nnz]), total, (1, min(1, t.shape[1]))
        )
    _, row, column = coordinates(t)
    if along == {0}:
        columns, of = torch.unique(column, sorted=True, return_inverse=True)
        ends = torch.tensor([0, columns.shape[0]], dtype=indices, device=columns.device)
        reduced = _by_group(values, of, columns.shape[0], how)
        return compressed(torch.sparse_csr, ends, columns.to(indices), reduced, (1, t.shape[1]))
    rows, of = torch.unique(row, sorted=True, return_inverse=True)
    reduced = _by_group(values, of, rows.shape[0], how)
    plain = torch.zeros_like(rows, dtype=indices)
    return compressed(torch.sparse_csr, ends_of(rows, t.shape[0], indices), plain, reduced, (t.shape[0], 1))


def _by_group(values: torch.Tensor, of: torch.Tensor, count: int, how: str) -> torch.Tensor:
    if how == "sum":
        return values.new_zeros(count).index_add_(0, of, values)
    return values.new_ones(count).scatter_reduce_(0, of, values, "prod")
