"""What a COO tensor is made of: factories, accessors, copies, conversions, views of its dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch._ops import OpOverload

from macatensor.dispatch.errors import check_devices
from macatensor.dispatch.launcher import special
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.tensor import MacaTensor, device
from macatensor.runtime.uncompiled import uncompiled
from macatensor.sparse.calls import held
from macatensor.sparse.tensor import SparseMacaTensor, become, coo, operator

_Sparse = SparseMacaTensor
_library = torch.library.Library("aten", "IMPL")


# -- factories ----------------------------------------------------------------------------------------------------
def empty(size: Sequence[int], sparse_dim: int, dtype: torch.dtype | None = None) -> SparseMacaTensor:
    """No elements; the first ``sparse_dim`` of the dimensions are sparse."""
    indices = torch.empty((sparse_dim, 0), dtype=torch.int64, device=device())
    values = torch.empty((0, *size[sparse_dim:]), dtype=dtype, device=device())
    return coo(indices, values, size, is_coalesced=True)


@uncompiled
def _empty(size: Sequence[int], *, dtype: torch.dtype | None = None, **options: Value) -> SparseMacaTensor:
    return empty(size, len(size), dtype)


@uncompiled
def _with_dims(
    sparse_dim: int,
    dense_dim: int,
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    **options: Value,
) -> SparseMacaTensor:
    return empty(size, sparse_dim, dtype)


@special("aten._sparse_coo_tensor_with_dims_and_tensors.default")
def _with_tensors(func: OpOverload) -> Launcher:
    def run(args: Arguments, kwargs: Keywords | None) -> SparseMacaTensor:
        sparse_dim, dense_dim, size, indices, values = args
        dtype = (kwargs or {}).get("dtype")
        check_devices("a sparse tensor", (indices, values))
        if values.shape != (indices.shape[-1], *size[sparse_dim:]) or len(size) != sparse_dim + dense_dim:
            # PyTorch's says what is wrong
            of_meta = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in (indices, values)]
            func(sparse_dim, dense_dim, size, *of_meta, **{**(kwargs or {}), "device": "meta"})
        is_coalesced = bool((kwargs or {}).get("is_coalesced"))
        # another tensor of ours has the same memory, and no place in the autograd graph
        return coo(indices.detach(), values.detach().to(dtype or values.dtype), size, is_coalesced)

    return run


def _checked_here(func: OpOverload) -> Callable[..., Value]:
    """``func``, a factory, whose own kernel asks one that no other device can add whether the elements are coalesced."""
    checks = torch.sparse.check_sparse_tensor_invariants

    @uncompiled
    def make(
        indices: torch.Tensor,
        values: torch.Tensor,
        *size: Sequence[int],
        is_coalesced: bool | None = None,
        **options: Value,
    ) -> Value:
        if not (is_coalesced and checks.is_enabled()):
            return func.decompose(indices, values, *size, is_coalesced=is_coalesced, **options)
        made = func.decompose(indices, values, *size, **options)
        order = linear(made.detach())
        if not bool((order[1:] > order[:-1]).all()):
            raise RuntimeError(
                "cannot set is_coalesced to true if indices correspond to uncoalesced COO tensor"
            )
        with checks(enable=False):  # type: ignore[no-untyped-call]
            return func.decompose(indices, values, *size, is_coalesced=True, **options)

    return make


def register() -> None:
    """Makes PyTorch's factories with ``layout=torch.sparse_coo`` come here: they have no tensor that would."""
    made = torch.ops.aten.sparse_coo_tensor
    for func in (made.indices, made.indices_size, torch.ops.aten._sparse_coo_tensor_unsafe.default):
        _library.impl(func, _checked_here(func), "AutogradPrivateUse1")
    _library.impl("empty.memory_format", _empty, "SparsePrivateUse1")
    _library.impl("_sparse_coo_tensor_with_dims", _with_dims, "SparsePrivateUse1")
    torch.serialization.add_safe_globals([SparseMacaTensor])


# -- accessors ----------------------------------------------------------------------------------------------------
@operator("_indices")
def _indices(t: _Sparse) -> torch.Tensor:
    return t._coo_indices.detach()


@operator("_values")
def _values(t: _Sparse) -> torch.Tensor:
    return t._coo_values.detach()


@operator("indices")
def indices(t: _Sparse) -> torch.Tensor:
    _check_coalesced(t, "indices")
    return t._coo_indices.detach()


@operator("values")
def values(t: _Sparse) -> torch.Tensor:
    _check_coalesced(t, "values")
    return t._coo_values.detach()


def _check_coalesced(t: _Sparse, what: str) -> None:
    if not t._coo_is_coalesced:
        raise RuntimeError(f"Cannot get {what} on an uncoalesced tensor, please call .coalesce() first")


@operator("_nnz")
def _nnz(t: _Sparse) -> int:
    return t._coo_values.shape[0]


@operator("is_coalesced")
def _is_coalesced(t: _Sparse) -> bool:
    return t._coo_is_coalesced


@operator("_coalesced_")
def _coalesced(t: _Sparse, coalesced: bool) -> _Sparse:
    t._coo_is_coalesced = coalesced
    return t


@operator("sparse_dim", "_dimI")
def sparse_dim(t: _Sparse) -> int:
    return t._coo_indices.shape[0]


@operator("dense_dim", "_dimV")
def dense_dim(t: _Sparse) -> int:
    return t._coo_values.dim() - 1


# -- copies -------------------------------------------------------------------------------------------------------
def like(t: _Sparse, values: torch.Tensor, is_coalesced: bool | None = None) -> _Sparse:
    """Other values at the same indices."""
    return coo(t._coo_indices, values, t.shape, t._coo_is_coalesced if is_coalesced is None else is_coalesced)


@operator("detach", "alias", "lift_fresh")
def _detach(t: _Sparse) -> _Sparse:
    return like(t, t._coo_values)


@operator("clone")
def _clone(t: _Sparse, *, memory_format: torch.memory_format | None = None) -> _Sparse:
    return coo(t._coo_indices.clone(), t._coo_values.clone(), t.shape, t._coo_is_coalesced)


def _is_another(layout: torch.layout | None, device: torch.device | None) -> bool:
    """Does a factory name another layout than COO, or another device?"""
    return layout not in (None, torch.sparse_coo) or (device is not None and device.type != "maca")


@operator("empty_like", "zeros_like")
def _zeros_like(t: _Sparse, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
                device: torch.device | None = None, memory_format: torch.memory_format | None = None,
                **options: Value) -> Value:  # fmt: skip
    if device is not None and device.type != "maca":
        return NotImplemented
    if layout is torch.strided:
        return torch.zeros(t.shape, dtype=dtype or t.dtype, device="maca").contiguous(
            memory_format=memory_format or torch.contiguous_format
        )
    if layout not in (None, torch.sparse_coo):
        sizes = 0, dense_dim(t), t.shape, (), torch.int64
        made = torch.ops.aten._sparse_compressed_tensor_with_dims.default
        return made(*sizes, dtype=dtype or t.dtype, layout=layout, device="maca").zero_()
    if memory_format is not None:
        raise RuntimeError("memory format option is only supported by strided tensors")
    return empty(t.shape, sparse_dim(t), dtype or t.dtype)


@operator("new_zeros", "new_empty")
def _new_zeros(t: _Sparse, size: Sequence[int], *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
               device: torch.device | None = None, **options: Value) -> Value:  # fmt: skip
    if _is_another(layout, device):
        return NotImplemented
    return empty(size, len(size), dtype or t.dtype)


@operator("view_as_real")
def _view_as_real(t: _Sparse) -> Value:
    if not t.dtype.is_complex:
        return NotImplemented
    return coo(t._coo_indices, torch.view_as_real(t._coo_values), (*t.shape, 2), t._coo_is_coalesced)


@operator("zero_")
def _zero(t: _Sparse) -> _Sparse:
    none = empty(t.shape, sparse_dim(t), t.dtype)
    return become(t, none._coo_indices, none._coo_values, True)


@operator("sparse_resize_")
def _resize(t: _Sparse, size: Sequence[int], sparse: int, dense: int) -> Value:
    _ask_pytorch(t, "sparse_resize_", size, sparse, dense)
    nnz = t._coo_values.shape[0]
    indices = t._coo_indices if nnz else t._coo_indices.new_empty((sparse, 0))
    values = t._coo_values.clone().resize_(nnz, *size[sparse:])
    return held(t, coo(indices, values, size, t._coo_is_coalesced))


@operator("sparse_resize_and_clear_")
def _clear(t: _Sparse, size: Sequence[int], sparse: int, dense: int) -> Value:
    _ask_pytorch(t, "sparse_resize_and_clear_", size, sparse, dense)
    return held(t, empty(size, sparse, t.dtype))


def _ask_pytorch(t: _Sparse, name: str, *args: Value) -> None:
    """Raises what PyTorch says to sizes of such a tensor, of which an element stands for all."""
    few = min(1, t._coo_values.shape[0])
    at = torch.zeros((sparse_dim(t), few), dtype=torch.int64, device="cpu")
    values = torch.zeros((few, *t._coo_values.shape[1:]), dtype=t.dtype, device="cpu")
    getattr(torch.sparse_coo_tensor(at, values, t.shape, check_invariants=False, device="cpu"), name)(*args)


@operator("resize_as_sparse_", "resize_as_")
def _resize_as(t: Value, template: Value, *, memory_format: torch.memory_format | None = None) -> Value:
    if isinstance(t, MacaTensor) and memory_format is None:
        return t.resize_(template.shape)
    if memory_format is not None or not isinstance(t, _Sparse) or not isinstance(template, _Sparse):
        return NotImplemented
    return _resize(t, template.shape, sparse_dim(template), dense_dim(template))


@operator("_to_copy")
def _to_copy(
    t: _Sparse,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    **options: Value,
) -> Value:
    if layout not in (None, torch.sparse_coo):
        return NotImplemented
    copied = like(_clone(t), t._coo_values.to(dtype or t.dtype, copy=True))
    return copied if device is None or device.type == "maca" else copied.to_host().to(device)


@operator("copy_")
def _copy(to: Value, source: Value, non_blocking: bool = False) -> Value:
    if not isinstance(to, _Sparse):
        return to.copy_(source.to_host()) if to.layout is torch.sparse_coo else NotImplemented
    if source.layout is not torch.sparse_coo or to.shape != source.shape:
        return NotImplemented
    return become(
        to,
        source._indices().to("maca", copy=True),
        source._values().to("maca", to.dtype, copy=True),
        source.is_coalesced(),
    )


# -- to sorted indices, to dense and back -----------------------------------------------------------------------------
def linear(t: _Sparse) -> torch.Tensor:
    """For each element its place among the sparse dimensions in row-major order, int64 [nnz]."""
    return places(t._coo_indices, t.shape[: sparse_dim(t)])


def places(at: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Places in row-major order, int64 [nnz], of indices int64 [len(sizes), nnz]."""
    place = torch.zeros(at.shape[1], dtype=torch.int64, device=device())
    for dim, size in enumerate(sizes):
        place = place * size + at[dim]
    return place


def found_in(among: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each of ``wanted`` int64 [n] a position in ``among``, sorted, and whether it is what stands there."""
    if among.shape[0] == 0:
        return torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.bool)
    at = torch.searchsorted(among, wanted).clamp(max=among.shape[0] - 1)
    return at, among.index_select(0, at) == wanted


def from_linear(place: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Indices int64 [len(sizes), nnz] of places in row-major order."""
    rows = []
    for size in reversed(sizes):
        rows.append(place % size)
        place = place // size
    return torch.stack(rows[::-1]) if rows else place.new_empty((0, place.shape[0]))


@operator("_coalesce")
def coalesce(t: _Sparse) -> _Sparse:
    """``t`` itself, or its elements in row-major order, those of one place added up."""
    if t._coo_is_coalesced:
        return t
    nnz = t._coo_values.shape[0]
    if nnz < 2:
        return coo(t._coo_indices, t._coo_values, t.shape, is_coalesced=True)
    sizes = t.shape[: sparse_dim(t)]
    places, of = torch.unique(linear(t), sorted=True, return_inverse=True)
    summed = t._coo_values.new_zeros((places.shape[0], *t._coo_values.shape[1:]))
    summed.index_add_(0, of, t._coo_values)
    return coo(from_linear(places, sizes), summed, t.shape, is_coalesced=True)


@operator("_to_dense", "to_dense")
def to_dense(t: _Sparse, dtype: torch.dtype | None = None, masked_grad: bool | None = None) -> Value:
    if dtype is not None:
        return NotImplemented
    sparse = t.shape[: sparse_dim(t)]
    flat = t._coo_values.new_zeros((math.prod(sparse), *t._coo_values.shape[1:]))
    if t._coo_is_coalesced:
        flat.index_copy_(0, linear(t), t._coo_values)
    else:
        flat.index_add_(0, linear(t), t._coo_values)
    return flat.reshape(t.shape)


# -- masks ------------------------------------------------------------------------------------------------------------
@operator("sparse_mask")
def _sparse_mask(t: Value, mask: Value) -> Value:
    """What ``t`` has at the elements of ``mask``; zero where it has nothing."""
    if not isinstance(mask, _Sparse) or t.shape != mask.shape:
        return NotImplemented
    if t is mask:
        return t
    if isinstance(t, MacaTensor):
        at = tuple(mask._coo_indices)
        # without sparse dimensions each element holds the whole
        values = t[at] if at else t.expand(mask._coo_values.shape).clone()
    elif isinstance(t, _Sparse) and sparse_dim(t) == sparse_dim(mask):
        values = values_at(t, mask)
    else:
        return NotImplemented
    return coo(mask._coo_indices.clone(), values, t.shape, mask._coo_is_coalesced)


def values_at(t: _Sparse, others: _Sparse) -> torch.Tensor:
    """The sums that ``t`` has at the elements of ``others``, zero where there is nothing: [nnz, *dense sizes]."""
    whole = coalesce(t)
    at, is_there = found_in(linear(whole), linear(others))
    values = whole._coo_values.new_zeros((at.shape[0], *whole._coo_values.shape[1:]))
    here = is_there.nonzero().squeeze(1)
    return values.index_copy_(0, here, whole._coo_values.index_select(0, at.index_select(0, here)))


@operator("_sparse_mask_projection")
def _projection(t: _Sparse, mask: Value, accumulate_matches: bool = False) -> Value:
    """``t``, with zeros where ``mask`` has no element; added up for each that it has there, if so wished."""
    fits = isinstance(t, _Sparse) and isinstance(mask, _Sparse) and t.shape == mask.shape
    if not fits or sparse_dim(t) != sparse_dim(mask):
        return NotImplemented
    among, wanted = linear(mask).sort().values, linear(t)
    count = torch.searchsorted(among, wanted, right=True) - torch.searchsorted(among, wanted)
    count = count.reshape(-1, *[1] * (t._coo_values.dim() - 1))
    values = t._coo_values * count.to(t.dtype) if accumulate_matches else t._coo_values
    return like(t, torch.where(count > 0, values, torch.zeros_like(values)))


# -- dimensions -----------------------------------------------------------------------------------------------------
def _permuted(t: _Sparse, order: Sequence[int]) -> Value:
    dims = sparse_dim(t)
    if sorted(order[:dims]) != list(range(dims)):
        return NotImplemented  # a dimension that is sparse would become dense
    values = t._coo_values.permute(0, *[d - dims + 1 for d in order[dims:]])
    size = [t.shape[d] for d in order]
    is_sorted = t._coo_is_coalesced and (list(order[:dims]) == list(range(dims)) or not values.shape[0])
    return coo(t._coo_indices[list(order[:dims])], values.clone(), size, is_sorted)


@operator("permute")
def _permute(t: _Sparse, dims: Sequence[int]) -> Value:
    order = [d + t.dim() if d < 0 else d for d in dims]
    if sorted(order) != list(range(t.dim())):
        return NotImplemented
    made = _permuted(t, order)
    if made is not NotImplemented and order and dims[0] != 0:
        made._coo_is_coalesced = False  # as PyTorch, which asks for the first dimension by this name
    return made


@operator("transpose.int")
def _transpose(t: _Sparse, one: int, other: int) -> Value:
    order = list(range(t.dim()))
    if not order and one in (-1, 0) and other in (-1, 0):
        return _detach(t)
    if not all(-t.dim() <= d < t.dim() for d in (one, other)):
        return NotImplemented
    order[one], order[other] = order[other], order[one]
    return _permuted(t, order)


@operator("transpose_")
def _transpose_in_place(t: _Sparse, one: int, other: int) -> Value:
    return held(t, _transpose(t, one, other))


@operator("t")
def _t(t: _Sparse) -> Value:
    if t.dim() > 2:
        return NotImplemented
    return _transpose(t, 0, 1) if t.dim() == 2 else _detach(t)


@operator("t_")
def _t_in_place(t: _Sparse) -> Value:
    return held(t, _t(t)) if dense_dim(t) == 0 else NotImplemented


@operator("unsqueeze")
def _unsqueeze(t: _Sparse, dim: int) -> Value:
    if not -t.dim() - 1 <= dim <= t.dim():
        return NotImplemented
    at = dim % (t.dim() + 1)
    size = [*t.shape[:at], 1, *t.shape[at:]]
    dims, indices = sparse_dim(t), t._coo_indices
    if at > dims:
        return coo(indices, t._coo_values.unsqueeze(at - dims + 1), size, t._coo_is_coalesced)
    row = indices.new_zeros((1, indices.shape[1]))
    return coo(torch.cat([indices[:at], row, indices[at:]]), t._coo_values, size, t._coo_is_coalesced)


@operator("_sparse_broadcast_to")
def _broadcast_to(t: _Sparse, size: Sequence[int]) -> Value:
    """Elements are repeated along sparse dimensions, and expanded along dense ones."""
    more, dims = len(size) - t.dim(), sparse_dim(t)
    had = [1] * more + list(t.shape)
    if more < 0 or any(h not in (1, s) for h, s in zip(had, size)):
        return NotImplemented
    repeated = [d for d in range(more + dims) if d < more or had[d] != size[d]]
    times = math.prod(size[d] for d in repeated)
    nnz = t._coo_values.shape[0]
    among = from_linear(torch.arange(times, device=device()), [size[d] for d in repeated])
    rows = t._coo_indices.repeat_interleave(times, 1)
    at = [
        among[repeated.index(d)].repeat(nnz) if d in repeated else rows[d - more] for d in range(more + dims)
    ]
    values = t._coo_values.repeat_interleave(times, 0)
    values = values.expand(values.shape[0], *size[more + dims :])
    indices = torch.stack(at) if at else rows
    return coo(indices, values, size, t._coo_is_coalesced and not repeated)
