"""Dynamic rows: operators whose result size depends on data. They count, synchronize, then fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload

from macatensor.dispatch.errors import check_devices, scalar_type
from macatensor.dispatch.forms import in_form
from macatensor.dispatch.request import Attribute
from macatensor.dispatch.rowless import with_a_next_way
from macatensor.dispatch.signature import Form
from macatensor.dispatch.transfer import read_integer
from macatensor.runtime.boxed import Launcher, Value
from macatensor.runtime.ffi import kernels
from op_table import Row

_Function = TypeVar("_Function", bound=Callable[..., Value])

FUNCTIONS: dict[str, Callable[..., Value]] = {}


def dynamic(function: _Function) -> _Function:
    """Makes a function available to rows as ``via="<its name>"``."""
    FUNCTIONS[function.__name__] = function
    return function


def launcher(func: OpOverload, row: Row, form: Form, twin: OpOverload) -> Launcher:
    """Calls of an overload that a dynamic row serves."""
    body = FUNCTIONS[row.via]

    def run(*args: Value, **kwargs: Value) -> Value:
        check_devices(str(func), [*args, *kwargs.values()])
        return body(*args, **kwargs)

    return in_form(func, form, twin, with_a_next_way(twin, run))


def launch_kernel(
    name: str,
    inputs: list[Tensor],
    size: tuple[int, ...],
    dtype: torch.dtype,
    stride: tuple[int, ...] | None = None,
    attributes: Mapping[str, Attribute | None] = MappingProxyType({}),
) -> Tensor:
    """Launches a kernel that no aten operator names; one new result, row-major without ``stride``."""
    from macatensor.dispatch.named_kernels import launch
    from macatensor.runtime.meta import contiguous_meta, meta_of

    meta = contiguous_meta(size, dtype) if stride is None else meta_of(size, stride, dtype)
    return launch(name, inputs, [meta], attributes)[0]


@dynamic
def nonzero(self: Tensor) -> Tensor:
    """Indices of nonzero elements, int64 ``[count, rank]``."""
    count = read_integer(launch_kernel("nonzero_count", [self], (), torch.int64))
    # the transpose of a row-major [rank, count], as PyTorch's kernels give: columns are what indexing takes
    return launch_kernel("nonzero_fill", [self], (count, self.dim()), torch.int64, (1, count))


@dynamic
def masked_select(self: Tensor, mask: Tensor) -> Tensor:
    """Elements of ``self`` where ``mask``, both broadcast, as a 1-D tensor."""
    if mask.dtype != torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    self, mask = torch.broadcast_tensors(self, mask)
    indices = nonzero(mask)
    if self.dim() == 0:
        return self.reshape(1)[: indices.shape[0]].clone()
    return self[tuple(indices.unbind(1))]


@dynamic
def repeat_interleave(repeats: Tensor, output_size: int | None = None) -> Tensor:
    """Position ``i`` ``repeats[i]`` times, as a 1-D tensor of ``repeats``' dtype.

    Raises RuntimeError for other dtypes than int32 and int64, other ranks than 1 and negative numbers.
    """
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int32, torch.int64):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if repeats.numel() == 0:
        return torch.empty_like(repeats)
    ends = repeats.cumsum(0)
    if bool((repeats < 0).any()):
        raise RuntimeError("repeats can not be negative")
    count = int(ends[-1])
    if output_size is not None and output_size != count:
        raise RuntimeError("allocated size does not match required size")
    places = torch.arange(count, device=repeats.device)
    return torch.searchsorted(ends, places, right=True).to(repeats.dtype)


@dynamic
def nonzero_static(self: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The first ``size`` rows of ``nonzero``, filled up with ``fill_value``."""
    if size < 0:
        raise RuntimeError("nonzero_static: 'size' must be an non-negative integer")
    found = torch.nonzero(self)[:size]
    result = torch.full((size, self.dim()), fill_value, dtype=torch.int64, device=self.device)
    result[: found.shape[0]] = found
    return result


def _size_of_bincount(self: Tensor) -> int:
    """One more than the greatest of some integers, or below 0 where one of them is."""
    if "bincount_size" in kernels():
        return read_integer(launch_kernel("bincount_size", [self], (), torch.int64))
    return int(self.max()) + 1 if int(self.min()) >= 0 else -1


@dynamic
def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each number from 0 on occurs, or the sum of its weights."""
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if self.dtype not in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        raise NotImplementedError(f"\"bincount_cpu\" not implemented for '{scalar_type(self.dtype)}'")
    if self.dim() == 1 and self.numel() == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=self.device)
    size = _size_of_bincount(self) if self.dim() == 1 else -1
    if size < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    size = max(size, minlength)
    if weights is None:
        if "bincount" in kernels():
            return launch_kernel("bincount", [self], (size,), torch.int64)
        terms = torch.ones_like(self, dtype=torch.int64)
    elif weights.dim() != 1 or weights.shape != self.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    else:
        terms = weights if weights.dtype is torch.float32 else weights.double()
    result = torch.zeros(size, dtype=terms.dtype, device=self.device)
    return result.index_add_(0, self.long(), terms)


def _unique_rows(
    rows: Tensor, consecutive: bool, shape: tuple[int, ...] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Groups of equal rows of a row-major matrix: a row of each, the group of each row, the sizes of the groups.

    ``shape``: of what one column was made from; the first result is a vector then, and the second of that shape.
    """
    from macatensor.dispatch.named_kernels import launch
    from macatensor.runtime.meta import Meta, contiguous_meta, meta_of

    if rows.is_complex():
        kind = "ComplexFloat" if rows.dtype is torch.complex64 else "ComplexDouble"
        raise NotImplementedError(f"\"unique\" not implemented for '{kind}'")
    each = meta_of((rows.shape[0],), (1,), torch.int64)
    order, groups, number = launch(
        "unique_group", [rows], [each, each, meta_of((), (), torch.int64)], {"consecutive": consecutive}
    )
    count = read_integer(number)
    size = (count, rows.shape[1]) if shape is None else (count,)
    metas: list[Meta | None] = [
        contiguous_meta(size, rows.dtype),
        each if shape is None else contiguous_meta(shape, torch.int64),
        meta_of((count,), (1,), torch.int64),
    ]
    values, inverse, counts = launch("unique_fill", [rows, order, groups], metas, {})
    return values, inverse, counts


def _unique_flat(
    self: Tensor, consecutive: bool, return_inverse: bool, return_counts: bool
) -> tuple[Tensor, Tensor, Tensor]:
    def none() -> Tensor:
        return torch.empty(0, dtype=torch.int64, device=self.device)

    if self.numel() == 0:
        places = torch.empty(self.shape, dtype=torch.int64, device=self.device) if return_inverse else none()
        return torch.empty(0, dtype=self.dtype, device=self.device), places, none()
    dense = self if self.is_contiguous() else self.contiguous()
    values, inverse, counts = _unique_rows(dense.view(-1, 1), consecutive, tuple(self.shape))
    return values, inverse if return_inverse else none(), counts if return_counts else none()


def _unique_along(self: Tensor, dim: int, consecutive: bool) -> tuple[Tensor, Tensor, Tensor]:
    none = torch.empty(0, dtype=torch.int64, device=self.device)
    empty = sum(n == 0 for n in self.shape)
    if self.dim() == 0:
        raise IndexError("unique_dim: a number has no dimension to look along")
    if self.shape[dim] == 0:
        if empty != 1:
            raise RuntimeError(
                "Number of zero sized dimensions is more than one, so unique cannot be applied "
            )
        return torch.empty(self.shape, dtype=self.dtype, device=self.device), none, none.clone()
    if empty:
        raise RuntimeError(
            "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied"
        )
    moved = self.movedim(dim, 0).contiguous()
    values, inverse, counts = _unique_rows(moved.reshape(moved.shape[0], -1), consecutive)
    return values.reshape(-1, *moved.shape[1:]).movedim(0, dim), inverse, counts


@dynamic
def _unique(self: Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:
    """Distinct elements in order, and which of them each element is."""
    return _unique_flat(self, False, return_inverse, True)[:2]  # no third result, and none to make


@dynamic
def _unique2(
    self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct elements in order, which of them each element is, and how often each occurs."""
    return _unique_flat(self, False, return_inverse, return_counts)


@dynamic
def unique_dim(
    self: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The same of slices along ``dim``, in lexicographic order. PyTorch's gives all three whatever is asked."""
    return _unique_along(self, dim, False)


@dynamic
def unique_consecutive(
    self: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs of equal elements (slices along ``dim``), in their order."""
    if dim is None or (dim == 0 and self.dim() == 1):  # PyTorch's gives what is asked of these alone
        return _unique_flat(self, True, return_inverse, return_counts)
    return _unique_along(self, dim, True)


@dynamic
def unique_dim_consecutive(
    self: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs of equal slices along ``dim``, in their order."""
    return _unique_along(self, dim, True)
