"""What the results are of pointwise operators, as :mod:`macatensor.dispatch.meta_rules` has it: dtypes that PyTorch's meta
kernels of these let pass, or do not, and its kernels for the CPU refuse, or do not.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._ops import OpOverload

from macatensor.dispatch.meta_rules import META_RULES, meta_rule, refuse_if
from macatensor.dispatch.request import Scalar
from macatensor.runtime.boxed import Value


def _difference(overload: OpOverload) -> Callable[..., Tensor]:
    def rule(self: Tensor, other: Tensor | Scalar, alpha: Scalar = 1) -> Tensor:
        is_bool = other.dtype is torch.bool if isinstance(other, Tensor) else isinstance(other, bool)
        refuse_if(is_bool or self.dtype is torch.bool)
        result: Tensor = overload(self, other, alpha=alpha)
        return result

    return rule


META_RULES["sub_tensor"] = _difference(torch.ops.aten.sub.Tensor)
META_RULES["sub_scalar"] = _difference(torch.ops.aten.sub.Scalar)
META_RULES["rsub_tensor"] = _difference(torch.ops.aten.rsub.Tensor)
META_RULES["rsub_scalar"] = _difference(torch.ops.aten.rsub.Scalar)


# PyTorch's look at the factor alone, and at one that is 1 not at all.
def _list_sum(overload: OpOverload) -> Callable[..., Value]:
    def rule(self: list[Tensor], other: list[Tensor] | Tensor, alpha: Scalar = 1) -> Value:
        for x, y in zip(self, other if isinstance(other, (list, tuple)) else [other] * len(self)):
            sum_ = torch.result_type(x, y)
            is_whole = not (sum_.is_floating_point or sum_.is_complex)
            refuse_if(
                (isinstance(alpha, bool) and sum_ is not torch.bool)
                or (isinstance(alpha, float) and is_whole)
                or (isinstance(alpha, complex) and not sum_.is_complex)
            )
        return overload(self, other, alpha=alpha)

    return rule


META_RULES["foreach_add_list"] = _list_sum(torch.ops.aten._foreach_add.List)
META_RULES["foreach_add_tensor"] = _list_sum(torch.ops.aten._foreach_add.Tensor)
META_RULES["foreach_sub_list"] = _list_sum(torch.ops.aten._foreach_sub.List)


# PyTorch's make integers of bool, which its kernels for the CPU keep where the exponent is one as well.
def _keeps_bool(self: Tensor, exponent: Value) -> bool:
    return self.dtype is torch.bool and isinstance(exponent, bool)


@meta_rule
def _pow_scalar(self: Tensor, exponent: Scalar) -> Tensor:
    if _keeps_bool(self, exponent):
        return torch.logical_not(self)
    return torch.pow(self, exponent)


def _list_pow(overload: OpOverload) -> Callable[..., Value]:
    def rule(self: list[Tensor], exponent: Scalar | list[Scalar]) -> list[Tensor]:
        made = overload(self, exponent)
        each = exponent if isinstance(exponent, (list, tuple)) else [exponent] * len(self)
        return [torch.logical_not(t) if _keeps_bool(t, e) else m for t, e, m in zip(self, each, made)]

    return rule


META_RULES["foreach_pow_scalar"] = _list_pow(torch.ops.aten._foreach_pow.Scalar)
META_RULES["foreach_pow_scalars"] = _list_pow(torch.ops.aten._foreach_pow.ScalarList)


@meta_rule
def _heaviside(self: Tensor, values: Tensor) -> Value:
    refuse_if(self.dtype != values.dtype)
    return torch.ops.aten.heaviside.default(self, values)


@meta_rule
def _relu(self: Tensor) -> Tensor:
    refuse_if(self.dtype is torch.bool)
    result: Tensor = torch.ops.aten.relu.default(self)
    return result


# PyTorch's refuses complex numbers in place.
@meta_rule
def _nan_to_num(self: Tensor, nan: float | None, posinf: float | None, neginf: float | None) -> Tensor:
    return torch.empty_like(self)


def _refuse_quotient_of_integers(tensor1: Tensor, tensor2: Tensor) -> None:
    refuse_if(not any(t.is_floating_point() or t.is_complex() for t in (tensor1, tensor2)))


@meta_rule
def _addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Scalar = 1) -> Tensor:
    _refuse_quotient_of_integers(tensor1, tensor2)
    return torch.addcdiv(self, tensor1, tensor2, value=value)


# PyTorch's meta kernels of these refuse integers, and let bool pass.
def _list_addcdiv(overload: OpOverload) -> Callable[..., Value]:
    def rule(self: list[Tensor], tensor1: list[Tensor], tensor2: list[Tensor], *scalars: Value) -> Value:
        for pair in zip(tensor1, tensor2):
            _refuse_quotient_of_integers(*pair)
        return overload(self, tensor1, tensor2, *scalars)

    return rule


META_RULES["foreach_addcdiv_scalar"] = _list_addcdiv(torch.ops.aten._foreach_addcdiv.Scalar)
META_RULES["foreach_addcdiv_scalars"] = _list_addcdiv(torch.ops.aten._foreach_addcdiv.ScalarList)
