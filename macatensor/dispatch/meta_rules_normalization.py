"""What the results are of batch, layer and group norm, as :mod:`macatensor.dispatch.meta_rules` has it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._ops import OpOverload

from macatensor.dispatch.errors import scalar_type
from macatensor.dispatch.meta_rules import meta_rule, row_major
from macatensor.runtime.boxed import Arguments, Value


def _check_dtypes(input: Tensor, *parameters: Tensor | None) -> None:
    """Raises what PyTorch's CPU kernels say of parameters of other dtypes, at which its meta kernels do not look: those of
    halves may be float32."""
    others = [p.dtype for p in parameters if p is not None and p.dtype != input.dtype]
    halves = input.dtype in (torch.float16, torch.bfloat16)
    if not others or (halves and set(others) == {torch.float32}):
        return
    first = next(p.dtype for p in parameters if p is not None)
    if first == input.dtype:
        raise RuntimeError(
            f"expected scalar type {scalar_type(input.dtype)} but found {scalar_type(others[0])}"
        )
    if set(others) != {torch.float32}:
        raise RuntimeError("mixed dtype (CPU): expect parameter to have scalar type of Float")
    raise RuntimeError("mixed dtype (CPU): all inputs must share same datatype.")


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
    _check_dtypes(input, weight, bias)
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
    """In evaluation PyTorch's CPU kernels save no statistics, and they refuse one running statistic without the other, at
    which its meta kernels do not look."""
    if (args[2] is None) != (args[3] is None):
        raise ValueError("running_mean and running_var must either both be None or neither be None")
    _check_dtypes(input, *args[:4])
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
def _native_layer_norm(
    input: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    _check_dtypes(input, weight, bias)
    made: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_layer_norm.default(
        input, shape, weight, bias, eps
    )
    return made


@meta_rule
def _native_batch_norm_legit(input: Tensor, *args: Value) -> Value:
    return _untrained(input, args[4], torch.ops.aten._native_batch_norm_legit.default, args)
