"""What a compressed tensor is made of: factories, accessors, copies, views of its dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch._ops import OpOverload

from macatensor.dispatch.errors import check_devices
from macatensor.dispatch.launcher import special
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.tensor import device
from macatensor.runtime.uncompiled import uncompiled
from macatensor.sparse import structure
from macatensor.sparse.compressed import (
    BY_ROWS,
    FLIPPED,
    IN_BLOCKS,
    CompressedMacaTensor,
    compressed,
    coordinates,
    flat_values,
    geometry,
    like,
    members_of,
    operator,
    own_members,
)
from macatensor.sparse.selection import unbind
from macatensor.sparse.tensor import coo
from op_table.sparse import COMPRESSED_FACTORIES

_Compressed = CompressedMacaTensor
_Members: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor]"
_library = torch.library.Library("aten", "IMPL")
_KINDS = {layout: str(layout).removeprefix("torch.") for layout in FLIPPED}


def _each(members: _Members, function: Callable[[torch.Tensor], torch.Tensor]) -> _Members:
    one, other, values = members
    return function(one), function(other), function(values)


# -- factories --------------------------------------------------------------------------------------------------------
def _made(
    compressed_indices: torch.Tensor,
    plain_indices: torch.Tensor,
    values: torch.Tensor,
    size: Sequence[int] | None = None,
    *,
    layout: torch.layout | None = None,
    dtype: torch.dtype | None = None,
    **options: Value,
) -> _Compressed:
    if layout not in FLIPPED:
        raise RuntimeError(f"expected a layout of sparse compressed tensors, but got {layout}")
    check_devices("a sparse compressed tensor", (compressed_indices, plain_indices, values))
    if size is None:
        size = _estimated(compressed_indices, plain_indices, values, layout)
    if torch.sparse.check_sparse_tensor_invariants.is_enabled():
        torch._validate_sparse_compressed_tensor_args(
            compressed_indices, plain_indices, values, tuple(size), layout
        )
    # others of ours have the same memory, and no place in the autograd graph
    members = compressed_indices.detach(), plain_indices.detach(), values.detach().to(dtype or values.dtype)
    return compressed(layout, *members, size)


def _estimated(
    compressed_indices: torch.Tensor, plain_indices: torch.Tensor, values: torch.Tensor, layout: torch.layout
) -> Sequence[int]:
    """The smallest size that holds such members."""
    batch = compressed_indices.dim() - 1
    blocks = 2 if layout in IN_BLOCKS else 0
    if batch < 0 or plain_indices.dim() != batch + 1 or values.dim() < batch + blocks + 1:
        host = compressed_indices.detach().cpu(), plain_indices.detach().cpu(), values.detach().cpu()
        return torch.sparse_compressed_tensor(
            *host, layout=layout, check_invariants=False, device="cpu"
        ).shape  # raises
    high, wide = (max(1, n) for n in values.shape[batch + 1 : batch + 3]) if blocks else (1, 1)
    n = max(0, compressed_indices.shape[-1] - 1)
    m = int(plain_indices.max()) + 1 if plain_indices.numel() else 0
    rows, columns = (n, m) if layout in BY_ROWS else (m, n)
    return (*compressed_indices.shape[:-1], rows * high, columns * wide, *values.shape[batch + blocks + 1 :])


# The layout that the name of a factory says.
_NAMED = {f"aten::_{_kind}_tensor_unsafe": _layout for _layout, _kind in _KINDS.items()} | {
    f"aten::{_kind}_tensor": _layout for _layout, _kind in _KINDS.items()
}


@special(*[f"aten.{name}" for name in COMPRESSED_FACTORIES])
def _of_members(func: OpOverload) -> Launcher:
    layout = _NAMED.get(func._schema.name)

    def run(args: Arguments, kwargs: Keywords | None) -> _Compressed:
        options = kwargs or {}
        if layout is not None:
            if options.get("layout") not in (None, layout):
                raise RuntimeError(f"sparse compressed layout must be {layout} but got {options['layout']}")
            options = {**options, "layout": layout}
        return _made(*args, **options)

    return run


def _asked_first(func: OpOverload) -> Callable[..., Value]:
    """A factory that PyTorch takes apart into its own tensor, without asking a device, unless autograd's key has this."""
    make = _of_members(func)

    @uncompiled
    def run(*args: Value, **kwargs: Value) -> Value:
        return make(args, kwargs)

    return run


@uncompiled
def _with_dims(
    nnz: int,
    dense_dim: int,
    size: Sequence[int],
    blocksize: Sequence[int],
    index_dtype: torch.dtype,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    **options: Value,
) -> _Compressed:
    """Members of the right sizes, uninitialized, as PyTorch has them."""
    model = torch.ops.aten._sparse_compressed_tensor_with_dims.default(
        nnz, dense_dim, size, blocksize, index_dtype, dtype=dtype, layout=layout, device="meta"
    )
    assert layout is not None  # or PyTorch had refused
    made = _each(members_of(model), lambda t: torch.empty(t.shape, dtype=t.dtype, device=device()))
    return compressed(layout, *made, size)


@uncompiled
def _empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    **options: Value,
) -> _Compressed:
    if len(size) < 2:
        raise RuntimeError(
            f"torch.empty: Only batched sparse compressed (non-block) tensors are supported, but got size {list(size)}"
        )
    if layout in IN_BLOCKS:
        raise RuntimeError(
            f"empty_sparse_compressed expected sparse compressed (non-block) tensor layout but got {layout}"
        )
    made = _with_dims(0, 0, size, (), torch.int64, dtype=dtype or torch.get_default_dtype(), layout=layout)
    made._csx_compressed.zero_()  # PyTorch's would be none of a tensor
    return made


def register() -> None:
    """Makes PyTorch's factories with compressed layouts come here, and ``torch.load`` accept the class."""
    for name, make in (("empty.memory_format", _empty), ("_sparse_compressed_tensor_with_dims", _with_dims)):
        _library.impl(name, make, "SparseCsrPrivateUse1")
    for name in COMPRESSED_FACTORIES:
        operator_name, _, overload = name.partition(".")
        if operator_name != "sparse_compressed_tensor":  # which autograd knows
            func = getattr(getattr(torch.ops.aten, operator_name), overload)
            _library.impl(name.removesuffix(".default"), _asked_first(func), "AutogradPrivateUse1")
    torch.serialization.add_safe_globals([CompressedMacaTensor])


# -- accessors --------------------------------------------------------------------------------------------------------
@operator("prim::layout")
def _layout(t: _Compressed) -> torch.layout:
    return t._csx_layout


@operator("crow_indices")
def _crow_indices(t: _Compressed) -> torch.Tensor:
    return _indices(t, t._csx_compressed, "crow_indices", "row", t._csx_layout in BY_ROWS)


@operator("col_indices")
def _col_indices(t: _Compressed) -> torch.Tensor:
    return _indices(t, t._csx_plain, "col_indices", "row", t._csx_layout in BY_ROWS)


@operator("ccol_indices")
def _ccol_indices(t: _Compressed) -> torch.Tensor:
    return _indices(t, t._csx_compressed, "ccol_indices", "column", t._csx_layout not in BY_ROWS)


@operator("row_indices")
def _row_indices(t: _Compressed) -> torch.Tensor:
    return _indices(t, t._csx_plain, "row_indices", "column", t._csx_layout not in BY_ROWS)


def _indices(t: _Compressed, found: torch.Tensor, what: str, kind: str, has: bool) -> torch.Tensor:
    if not has:
        name = str(t._csx_layout).removeprefix("torch.sparse_").capitalize()
        raise RuntimeError(f"{what} expected sparse {kind} compressed tensor layout but got Sparse{name}")
    return found.detach()


@operator("values")
def _values(t: _Compressed) -> torch.Tensor:
    return t._csx_values.detach()


@operator("_nnz")
def _nnz(t: _Compressed) -> int:
    return t._csx_plain.shape[-1]


@operator("sparse_dim")
def _sparse_dim(t: _Compressed) -> int:
    return 2


@operator("dense_dim")
def _dense_dim(t: _Compressed) -> int:
    return len(geometry(t).dense)


# -- copies -----------------------------------------------------------------------------------------------------------
@operator("detach", "alias", "lift_fresh")
def _detach(t: _Compressed) -> _Compressed:
    return compressed(t._csx_layout, t._csx_compressed, t._csx_plain, t._csx_values, t.shape)


@operator("clone")
def _clone(t: _Compressed, *, memory_format: torch.memory_format | None = None) -> Value:
    return NotImplemented if memory_format is not None else like(t, t._csx_values.clone())


def _to_another_device(device: torch.device | None) -> bool:
    return device is not None and device.type != "maca"


@operator("_to_copy")
def _to_copy(
    t: _Compressed,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    **options: Value,
) -> Value:
    if layout not in (None, t._csx_layout) or options.get("memory_format") not in (
        None,
        torch.preserve_format,
    ):
        return NotImplemented
    copied = like(t, t._csx_values.to(dtype or t.dtype, copy=True))
    return copied.to_host().to(device) if _to_another_device(device) else copied


@operator("empty_like")
def _empty_like(t: _Compressed, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
                device: torch.device | None = None, **options: Value) -> Value:  # fmt: skip
    if layout not in (None, t._csx_layout) or options.get("memory_format") is not None:
        return NotImplemented
    made = like(t, torch.empty_like(t._csx_values, dtype=dtype))
    return made.to_host().to(device) if _to_another_device(device) else made


@operator("zeros_like")
def _zeros_like(t: _Compressed, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
                device: torch.device | None = None, **options: Value) -> Value:  # fmt: skip
    """Without elements, and with the blocks of ``t``."""
    if options.get("memory_format") not in (None, torch.preserve_format):
        return NotImplemented
    layout, g, kind = layout or t._csx_layout, geometry(t), dtype or t.dtype
    if layout is torch.sparse_coo:
        made: Value = structure.empty(t.shape, t.dim() - len(g.dense), kind)
    elif (layout in IN_BLOCKS) == bool(g.block) and layout in FLIPPED:
        made = _with_dims(0, len(g.dense), t.shape, g.block, t._csx_plain.dtype, dtype=kind, layout=layout)
        made._csx_compressed.zero_()
    else:
        return NotImplemented
    return made.to_host().to(device) if _to_another_device(device) else made


@operator("full_like")
def _full_like(t: _Compressed, value: Value, **options: Value) -> Value:
    made = _empty_like(t, **options)
    return made if made is NotImplemented else made.fill_(value)


@operator("ones_like")
def _ones_like(t: _Compressed, **options: Value) -> Value:
    return _full_like(t, 1, **options)


@operator("new_zeros", "new_empty", "new_ones", "new_full")
def _new(t: _Compressed, size: Sequence[int], *number: Value, dtype: torch.dtype | None = None,
         layout: torch.layout | None = None, device: torch.device | None = None, **options: Value) -> Value:  # fmt: skip
    """Without elements."""
    if layout not in (None, t._csx_layout) or _to_another_device(device):
        return NotImplemented
    return _empty(size, dtype=dtype or t.dtype, layout=t._csx_layout)


operator("unbind.int")(unbind)


@operator("zero_")
def _zero(t: _Compressed) -> _Compressed:
    t.hold(_zeros_like(t))
    return t


@operator("fill_.Scalar")
def _fill(t: _Compressed, value: Value) -> _Compressed:
    t._csx_values.fill_(value)
    return t


@operator("normal_")
def _normal(t: _Compressed, mean: float = 0, std: float = 1, *, generator: Value = None) -> _Compressed:
    t._csx_values.normal_(mean, std, generator=generator)
    return t


@operator("copy_")
def _copy(to: Value, source: Value, non_blocking: bool = False) -> Value:
    if not isinstance(to, _Compressed):
        return to.copy_(source.to_host()) if to.layout is source.layout else NotImplemented
    if not isinstance(source, torch.Tensor) or source.layout is not to._csx_layout:
        return NotImplemented
    if any(given.shape != member.shape for member, given in zip(own_members(to), members_of(source))):
        return NotImplemented
    if source.shape != to.shape:
        raise RuntimeError(
            f"copy_ got a tensor of {list(to.shape)} and the source {list(source.shape)}, whose indices may lie beyond its sides; "
            "accepted: two of the same sizes"
        )
    for member, given in zip(own_members(to), members_of(source)):
        member.copy_(given)
    return to


@operator("resize_as_")
def _resize_as(t: Value, template: Value, *, memory_format: torch.memory_format | None = None) -> Value:
    """Of the template PyTorch takes the sizes alone."""
    if memory_format is not None:
        return NotImplemented
    return _resize(t, template.shape) if isinstance(t, _Compressed) else t.resize_(template.shape)


@operator("resize_as_sparse_")
def _resize_as_sparse(to: Value, template: Value) -> Value:
    """The places of ``template``; with values of as many as before, and else of no numbers in particular."""
    if not isinstance(to, _Compressed) or not isinstance(template, _Compressed):
        return NotImplemented
    if to._csx_layout is not template._csx_layout:
        return NotImplemented
    at, plain = (t.to(to._csx_plain.dtype, copy=True) for t in own_members(template)[:2])
    values = to._csx_values
    if values.shape != template._csx_values.shape:
        values = torch.empty_like(template._csx_values, dtype=to.dtype)
    to.hold(compressed(to._csx_layout, at, plain, values, template.shape))
    return to


@operator("resize_")
def _resize(
    t: _Compressed, size: Sequence[int], *, memory_format: torch.memory_format | None = None
) -> Value:
    """In rows of the new size, which are empty where they are new; PyTorch makes rows of CSC, too, and numbers of blocks."""
    begins, plain, values = _each(own_members(t), lambda member: torch.empty_like(member, device="meta"))
    asked = torch.sparse_compressed_tensor(
        begins, plain, values, t.shape, layout=t._csx_layout, check_invariants=False, device="meta"
    )
    asked.resize_(size)  # refuses what PyTorch refuses
    are_square = t.shape[-2] == t.shape[-1] and size[-2] == size[-1]
    if t._csx_layout in IN_BLOCKS or geometry(t).dense or not (t._csx_layout in BY_ROWS or are_square):
        raise RuntimeError(
            f"resize_ got {_KINDS[t._csx_layout]} of {list(t.shape)} and the sizes {list(size)}, of which PyTorch makes a tensor "
            "whose indices are none of its; accepted: sparse_csr, and sparse_csc of as many rows as columns, of numbers. "
            "torch.sparse_compressed_tensor makes a new one"
        )
    pairs = zip(own_members(t), members_of(asked))
    begins, plain, values = (member.clone().resize_(wanted.shape) for member, wanted in pairs)
    before, count = t._csx_compressed.shape[-1], begins.shape[-1]
    if count >= before:
        begins.narrow(-1, before, count - before).fill_(t._csx_plain.shape[-1])
    else:
        begins.narrow(-1, count - 1, 1).fill_(plain.shape[-1])
    t.hold(compressed(t._csx_layout, begins, plain, values, asked.shape))
    return t


@operator("is_same_size")
def _is_same_size(t: torch.Tensor, other: torch.Tensor) -> bool:
    return t.shape == other.shape


@operator("is_pinned")
def _is_pinned(t: _Compressed, device: torch.device | None = None) -> bool:
    return False


# -- dimensions -------------------------------------------------------------------------------------------------------
@operator("transpose.int")
def _transpose(t: _Compressed, one: int, other: int) -> Value:
    rank, g = t.dim(), geometry(t)
    if g.dense or not all(-rank <= d < rank for d in (one, other)):
        return NotImplemented
    one, other = one % rank, other % rank
    batch = len(g.batch)
    if (one < batch) != (other < batch):
        return NotImplemented
    if one == other:
        return _clone(t)
    size = list(t.shape)
    size[one], size[other] = size[other], size[one]
    members = own_members(t)
    if one < batch:
        exchanged = _each(members, lambda m: m.transpose(one, other).contiguous())
        return compressed(t._csx_layout, *exchanged, size)
    values = members[2].transpose(-2, -1) if g.block else members[2]
    return compressed(FLIPPED[t._csx_layout], *members[:2], values, size)


@operator("t")
def _t(t: _Compressed) -> Value:
    return _transpose(t, 0, 1) if t.dim() == 2 else NotImplemented


@operator("select.int", "select_copy.int")
def _select(t: _Compressed, dim: int, index: int) -> Value:
    rank, g = t.dim(), geometry(t)
    if not -rank <= dim < rank:
        return NotImplemented
    dim %= rank
    if not -t.shape[dim] <= index < t.shape[dim]:
        return NotImplemented
    batch, index = len(g.batch), index % t.shape[dim]
    size = [*t.shape[:dim], *t.shape[dim + 1 :]]
    values = t._csx_values
    if dim < batch:
        return compressed(t._csx_layout, *_each(own_members(t), lambda m: m.select(dim, index)), size)
    if dim >= batch + 2:
        inner = values.select(dim - 1 + len(g.block), index)
        return compressed(t._csx_layout, t._csx_compressed, t._csx_plain, inner, size)
    if batch:
        return NotImplemented
    return _row_of(t, dim, index, size)


def _row_of(t: _Compressed, dim: int, index: int, size: Sequence[int]) -> Value:
    """A row (``dim`` 0) or a column of a matrix, in COO."""
    g = geometry(t)
    _, at, plain = coordinates(t)
    here, others = (at, plain) if (dim == 0) == g.by_rows else (plain, at)
    high = g.block[dim] if g.block else 1
    chosen = (here == index // max(1, high)).nonzero().squeeze(1)
    others, values = others.index_select(0, chosen), flat_values(t).index_select(0, chosen)
    if g.block:
        wide = g.block[1 - dim]
        values = values.select(1 + dim, index % high).flatten(0, 1)
        others = (others.unsqueeze(1) * wide + torch.arange(wide, device=device())).flatten()
    return coo(others.unsqueeze(0), values, size, is_coalesced=True)
