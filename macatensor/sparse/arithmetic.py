"""Elementwise operators of COO tensors. Those of one operand that keep zeros compute on the values alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch._ops import OpOverload

from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import MacaTensor
from macatensor.sparse.calls import is_one_number, put, written
from macatensor.sparse.structure import (
    coalesce,
    empty,
    found_in,
    like,
    linear,
    sparse_dim,
    to_dense,
    values_at,
)
from macatensor.sparse.tensor import SparseMacaTensor, coo, operator
from op_table.sparse import FALSE_OF_ZEROS, KEEP_ZEROS

_Sparse = SparseMacaTensor


# PyTorch applies them to the sums of what lies in one place
def _of_values(func: OpOverload) -> Callable[..., Value]:
    def compute(t: _Sparse, *args: Value, **kwargs: Value) -> _Sparse:
        whole = coalesce(t)
        return like(whole, func(whole._coo_values, *args, **kwargs))

    return compute


def _of_values_in_place(func: OpOverload, adds_up: bool) -> Callable[..., Value]:
    """``adds_up``: is what it makes of a sum the sum of what it makes of its terms?"""

    def compute(t: _Sparse, *args: Value, **kwargs: Value) -> Value:
        if not (t._coo_is_coalesced or adds_up):
            return NotImplemented  # "requires coalesced input"
        func(t._coo_values, *args, **kwargs)
        return t

    return compute


for _name in KEEP_ZEROS | FALSE_OF_ZEROS | {"_conj_physical"}:
    operator(_name)(_of_values(getattr(torch.ops.aten, _name).default))
for _name in KEEP_ZEROS:
    _adds_up = _name in ("neg", "conj_physical")
    operator(f"{_name}_")(_of_values_in_place(getattr(torch.ops.aten, f"{_name}_").default, _adds_up))


@operator("threshold_backward")
def _threshold_backward(grad: Value, t: Value, threshold: Value) -> Value:
    if not isinstance(grad, _Sparse) or not isinstance(t, _Sparse) or sparse_dim(grad) != sparse_dim(t):
        return NotImplemented
    whole = coalesce(t)
    above = values_at(grad, whole)
    return like(whole, torch.ops.aten.threshold_backward(above, whole._coo_values, threshold))


@operator("pow.Tensor_Scalar")
def _pow(t: _Sparse, exponent: Value) -> Value:
    if isinstance(exponent, complex) or exponent == 0:
        return NotImplemented
    whole = coalesce(t)
    if t.dtype is torch.bool:
        return like(whole, whole._coo_values.clone()) if exponent is True else NotImplemented
    powers = whole._coo_values.pow(exponent)
    return like(whole, powers) if torch.can_cast(powers.dtype, t.dtype) else NotImplemented


@operator("div.Tensor", "div.Scalar")
def _div(t: Value, other: Value) -> Value:
    if not (isinstance(t, _Sparse) and is_one_number(other)):
        return NotImplemented
    return like(t, t._coo_values / other)


@operator("div.Tensor_mode", "div.Scalar_mode")
def _div_rounded(t: Value, other: Value, *, rounding_mode: str | None) -> Value:
    if not (isinstance(t, _Sparse) and is_one_number(other)):
        return NotImplemented
    whole = t if rounding_mode is None else coalesce(t)
    return like(whole, torch.div(whole._coo_values, other, rounding_mode=rounding_mode))


@operator("floor_divide", "floor_divide.Scalar")
def _floor_divide(t: Value, other: Value) -> Value:
    return _div_rounded(t, other, rounding_mode="floor")


@operator("mul.Tensor", "mul.Scalar")
def _mul(t: Value, other: Value) -> Value:
    if isinstance(t, _Sparse) and is_one_number(other):
        return _times(t, other)
    if is_one_number(t):
        return _mul(other, t)
    if isinstance(t, _Sparse) and isinstance(other, _Sparse):
        numbers = [p for p in ((other, t), (t, other)) if p[0].dim() == 0]
        if numbers:
            number, others = max(numbers, key=lambda p: (p[0]._nnz() > 0, p[0]._coo_is_coalesced))
            # zero where there is none
            return _times(others, coalesce(number)._coo_values.sum(dtype=number.dtype))
        if t.shape != other.shape:
            return NotImplemented
        if not (t._coo_values.shape[0] and other._coo_values.shape[0]):
            return empty(t.shape, sparse_dim(t), torch.promote_types(t.dtype, other.dtype))
        return _at_common_places(t, other) if sparse_dim(t) == sparse_dim(other) else NotImplemented
    sparse, dense = (t, other) if isinstance(t, _Sparse) else (other, t)
    return _times_dense(sparse, dense) if isinstance(dense, MacaTensor) else NotImplemented


def _times_dense(t: _Sparse, dense: torch.Tensor) -> Value:
    try:
        size = torch.broadcast_shapes(t.shape, dense.shape)
    except RuntimeError:
        return NotImplemented
    if not math.prod(size):
        return empty(size, sparse_dim(t) + len(size) - t.dim(), torch.promote_types(t.dtype, dense.dtype))
    whole = coalesce(t)
    if size != t.shape:
        whole = torch.ops.aten._sparse_broadcast_to(whole, size)
    return like(whole, whole._coo_values * dense.expand(size)[tuple(whole._coo_indices)])


def _times(t: _Sparse, number: Value) -> _Sparse:
    values = t._coo_values
    if not t.numel():
        return empty(t.shape, sparse_dim(t), torch.result_type(values, number))
    if t.dim() == 0 and isinstance(number, torch.Tensor):  # the dtypes of two numbers count alike
        values = values.to(torch.promote_types(t.dtype, number.dtype))
    return like(t, values * number)


def _at_common_places(a: _Sparse, b: _Sparse) -> _Sparse:
    a, b = coalesce(a), coalesce(b)
    at, is_there = found_in(linear(b), linear(a))
    in_a = is_there.nonzero().squeeze(1)
    in_b = at.index_select(0, in_a)
    product = a._coo_values.index_select(0, in_a) * b._coo_values.index_select(0, in_b)
    return coo(a._coo_indices.index_select(1, in_a), product, a.shape, is_coalesced=True)


@operator("add.Tensor")
def _add(t: Value, other: Value, *, alpha: Value = 1) -> Value:
    if not isinstance(other, _Sparse):
        return NotImplemented  # "Use add(dense, sparse) instead"
    if isinstance(t, MacaTensor):
        if t.shape != other.shape:
            return NotImplemented
        dtype = torch.result_type(t, other._coo_values)
        return _add_into(t.to(dtype, copy=True), other, alpha)
    if not isinstance(t, _Sparse) or t.shape != other.shape:
        return NotImplemented
    dtype = torch.promote_types(t.dtype, other.dtype)
    if alpha != 1:  # of which PyTorch refuses some kinds
        torch.add(
            torch.empty(0, dtype=dtype, device="cpu"), torch.empty(0, dtype=dtype, device="cpu"), alpha=alpha
        )
    values = [t._coo_values.to(dtype), (other._coo_values * alpha).to(dtype)]
    if not other._coo_values.shape[0]:  # elements of one place stay apart
        return like(t, values[0].clone())
    if not t._coo_values.shape[0]:
        return like(other, values[1])
    if sparse_dim(t) != sparse_dim(other):
        return NotImplemented
    both = coo(torch.cat([t._coo_indices, other._coo_indices], 1), torch.cat(values), t.shape)
    # or sums of many terms would hold more elements than there are places
    return coalesce(both) if both._coo_values.numel() > both.numel() else both


@operator("sub.Tensor")
def _sub(t: Value, other: Value, *, alpha: Value = 1) -> Value:
    if not isinstance(other, _Sparse) or torch.bool in (t.dtype, other.dtype):
        return NotImplemented
    return _add(t, other, alpha=-alpha)


def _add_into(dense: torch.Tensor, sparse: _Sparse, alpha: Value) -> torch.Tensor:
    scaled = sparse._coo_values if alpha == 1 else sparse._coo_values * alpha
    return dense.index_put_(tuple(sparse._coo_indices), scaled.to(dense.dtype), accumulate=True)


@operator("add_.Tensor")
def _add_in_place(t: Value, other: Value, *, alpha: Value = 1) -> Value:
    if not isinstance(other, _Sparse) or t.shape != other.shape:
        return NotImplemented
    if not torch.can_cast(torch.promote_types(t.dtype, other.dtype), t.dtype):
        return NotImplemented
    if isinstance(t, MacaTensor):
        return _add_into(t, other, alpha)
    return written(t, _add(t, other, alpha=alpha))


@operator("sub_.Tensor")
def _sub_in_place(t: Value, other: Value, *, alpha: Value = 1) -> Value:
    if not isinstance(other, _Sparse) or torch.bool in (t.dtype, other.dtype):
        return NotImplemented
    return _add_in_place(t, other, alpha=-alpha)


@operator("mul_.Tensor", "mul_.Scalar")
def _mul_in_place(t: Value, other: Value) -> Value:
    if isinstance(t, _Sparse) and not (t._coo_values.shape[0] and t.numel()) and is_one_number(other):
        return t.zero_()  # of whatever dtype the number is
    product = _mul(t, other)
    return put(
        t, to_dense(product) if isinstance(t, MacaTensor) and product is not NotImplemented else product
    )


@operator("div_.Tensor", "div_.Scalar")
def _div_in_place(t: Value, other: Value) -> Value:
    return written(t, _div(t, other))


@operator("div_.Tensor_mode", "div_.Scalar_mode")
def _div_rounded_in_place(t: Value, other: Value, *, rounding_mode: str | None) -> Value:
    return written(t, _div_rounded(t, other, rounding_mode=rounding_mode))


@operator("floor_divide_.Tensor", "floor_divide_.Scalar")
def _floor_divide_in_place(t: Value, other: Value) -> Value:
    return written(t, _floor_divide(t, other))


@operator("is_same_size")
def _is_same_size(t: torch.Tensor, other: torch.Tensor) -> bool:
    return t.shape == other.shape
