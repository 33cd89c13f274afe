"""What the results are of batch and group norm, as :mod:`macatensor.dispatch.meta_rules` has it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._ops import OpOverload

from macatensor.dispatch.meta_rules import meta_rule, row_major
from macatensor.runtime.boxed import Arguments, Value


# PyTorch's divide by the elements of a channel less one, in Python.
@meta_rule
def _native_batch_norm_legit_functional(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, training: bool, *rest: float
) -> tuple[Tensor, ...]:  # fmt: skip
    if not training or input.numel() != input.shape[1]:
        function = torch.ops.aten._native_batch_norm_legit_functional.default
        return tuple(function(input, weight, bias, mean, var, training, *rest))
    made = torch.ops.aten._native_batch_norm_legit.no_stats(input, weight, bias, training, *rest)
    return *made, torch.empty_like(mean), torch.empty_like(var)


@meta_rule
def _native_group_norm(
    input: Tensor, weight: Value, bias: Value, N: int, C: int, HxW: int, *rest: Value
) -> Value:
    if input.numel() != N * C * HxW:
        raise RuntimeError(
            f"group norm got {input.numel()} elements for {N} samples of {C} channels of {HxW} elements"
        )
    return torch.ops.aten.native_group_norm.default(input, weight, bias, N, C, HxW, *rest)


@meta_rule
def _native_group_norm_backward(
    grad: Tensor, input: Tensor, mean: Tensor, rstd: Tensor, weight: Value, N: int, C: int, HxW: int, group: int, mask: list[bool]
) -> tuple[Tensor | None, ...]:  # fmt: skip
    if C * HxW or N * C * HxW != input.numel():
        function = torch.ops.aten.native_group_norm_backward.default
        return tuple(function(grad, input, mean, rstd, weight, N, C, HxW, group, mask))
    made = torch.empty_like(input), row_major(input, C), row_major(input, C)
    return tuple(t if wanted else None for t, wanted in zip(made, mask))


def _untrained(input: Tensor, training: bool, function: OpOverload, args: Arguments) -> tuple[Tensor, ...]:
    """In evaluation PyTorch's CPU kernels save no statistics."""
    if training and input.dim() > 1 and input.numel() == input.shape[1]:
        args = (
            *args[:2],
            None,
            None,
            *args[4:],
        )  # statistics of one element a channel, which PyTorch's divide by 0
    out, mean, invstd = function(input, *args)
    if not training:
        mean, invstd = mean.new_empty(0), invstd.new_empty(0)
    return out, mean, invstd


@meta_rule
def _native_batch_norm(input: Tensor, *args: Value) -> tuple[Tensor, ...]:
    return _untrained(input, args[4], torch.ops.aten.native_batch_norm.default, args)


@meta_rule
def _native_batch_norm_backward(grad: Tensor, input: Tensor, *rest: Value) -> Value:
    if input.numel() == 0:
        raise RuntimeError(
            f"input tensor must have at least one element, but got input_sizes = {list(input.shape)}"
        )
    return torch.ops.aten.native_batch_norm_backward.default(grad, input, *rest)


@meta_rule
def _native_batch_norm_legit(input: Tensor, *args: Value) -> Value:
    return _untrained(input, args[4], torch.ops.aten._native_batch_norm_legit.default, args)
