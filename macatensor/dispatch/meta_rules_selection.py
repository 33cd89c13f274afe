"""What the results are of operators that pick, place and order elements, as :mod:`macatensor.dispatch.meta_rules` has it.

PyTorch's meta kernels of these let pass what its others refuse.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._ops import OpOverload

from macatensor.dispatch.meta_rules import META_RULES, meta_rule, refuse_if
from macatensor.dispatch.request import Scalar
from macatensor.runtime.boxed import Value


def _along_some(func: OpOverload) -> None:
    """The rule of an operator that finds one element along a dimension: where there is none it is refused."""

    def rule(self: Tensor, dim: int, keepdim: bool = False) -> Value:
        refuse_if(self.dim() > 0 and self.shape[dim] == 0)
        return func(self, dim, keepdim)

    META_RULES[f"{func._schema.name.partition('::')[2]}_along_some"] = rule


_along_some(torch.ops.aten.max.dim)
_along_some(torch.ops.aten.min.dim)
_along_some(torch.ops.aten.mode.default)


@meta_rule
def _searchsorted(
    sorted_sequence: Tensor,
    self: Tensor | Scalar,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    refuse_if(side not in (None, "left", "right"))
    kind = torch.ops.aten.searchsorted
    make = kind.Tensor if isinstance(self, Tensor) else kind.Scalar
    made: Tensor = make(sorted_sequence, self, out_int32=out_int32, right=right, side=side, sorter=sorter)
    return made


@meta_rule
def _cummax(self: Tensor, dim: int) -> Value:
    refuse_if(self.dim() == 0 and dim not in (0, -1))
    return torch.ops.aten.cummax.default(self, dim)


@meta_rule
def _select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> Value:
    refuse_if(torch.ops.aten.select.int(self, dim, index).shape != src.shape)
    return torch.ops.aten.select_scatter.default(self, src, dim, index)


@meta_rule
def _slice_scatter(self: Tensor, src: Tensor, *place: Value) -> Value:
    refuse_if(torch.ops.aten.slice.Tensor(self, *place).shape != src.shape)
    return torch.ops.aten.slice_scatter.default(self, src, *place)


@meta_rule
def _diagonal_scatter(self: Tensor, src: Tensor, *place: int) -> Value:
    refuse_if(torch.ops.aten.diagonal.default(self, *place).shape != src.shape)
    return torch.ops.aten.diagonal_scatter.default(self, src, *place)


@meta_rule
def _bucketize(self: Tensor, boundaries: Tensor, out_int32: bool, right: bool) -> Tensor:
    refuse_if(boundaries.dim() != 1)
    result: Tensor = torch.ops.aten.bucketize.Tensor(self, boundaries, out_int32=out_int32, right=right)
    return result


# PyTorch's speak for CUDA's kernel, which is not deterministic.
@meta_rule
def _median_dim(self: Tensor, dim: int, keepdim: bool = False) -> Value:
    return torch.ops.aten.kthvalue.default(self, 1, dim, keepdim)


@meta_rule
def _index_select(self: Tensor, dim: int, index: Tensor) -> Tensor:
    refuse_if(index.dim() > 1)
    result: Tensor = torch.ops.aten.index_select.default(self, dim, index)
    return result


def _index_fill(overload: OpOverload) -> Callable[..., Tensor]:
    def rule(self: Tensor, dim: int, index: Tensor, value: Value) -> Tensor:
        refuse_if(index.dtype is not torch.int64 or isinstance(value, Tensor) and value.dim() > 0)
        result: Tensor = overload(self, dim, index, value)
        return result

    return rule


META_RULES["index_fill_scalar"] = _index_fill(torch.ops.aten.index_fill.int_Scalar)
META_RULES["index_fill_tensor"] = _index_fill(torch.ops.aten.index_fill.int_Tensor)


@meta_rule
def _index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    refuse_if(index.dtype is not torch.int64)
    result: Tensor = torch.ops.aten.index_copy.default(self, dim, index, source)
    return result


@meta_rule
def _index_reduce(self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include: bool) -> Value:
    refuse_if(reduce not in ("prod", "mean", "amax", "amin") or index.dim() > 1)
    along = dim % max(self.dim(), 1)
    rest = [[n for d, n in enumerate(t.shape) if d != along] for t in (self, source)]
    refuse_if(source.dim() != self.dim() or rest[0] != rest[1])
    refuse_if(index.numel() != (source.shape[along] if source.dim() else 1))
    return torch.ops.aten.index_reduce.default(self, dim, index, source, reduce, include_self=include)
