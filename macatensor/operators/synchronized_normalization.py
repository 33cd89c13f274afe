"""What ``nn.SyncBatchNorm`` is made of: a batch's statistics in parts, which ranks put together. Channels are dimension 1."""

from __future__ import annotations

import torch
from torch import Tensor

from macatensor.operators.composites import Contradiction, composite


def _others(x: Tensor) -> list[int]:
    return [i for i in range(x.dim()) if i != 1]


def _of_channels(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (x.dim() - 2))


def _summed(x: Tensor) -> Tensor:
    """In the type in which CUDA takes statistics: float32 for halves."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@composite
def batch_norm_stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1 / standard deviation of each channel."""
    variance, mean = torch.var_mean(_summed(input), _others(input), correction=0)
    return mean, (variance + eps).rsqrt()


@composite
def batch_norm_update_stats(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float
) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel; the running ones move."""
    # a mean of its own: that of var_mean is NaN where it should be infinite
    x, others = _summed(input), _others(input)
    variance, mean = torch.var(x, others, correction=0), x.mean(others)
    n = input.numel() // input.shape[1]
    _move(running_mean, mean, momentum)
    _move(running_var, variance * (n / max(n - 1, 1)), momentum)
    return mean, variance


@composite
def batch_norm_gather_stats_with_counts(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Mean and 1 / standard deviation of the batch whose parts, of ``counts`` values, have those of the rows."""
    weights = counts.to(mean.dtype).unsqueeze(-1)
    n = weights.sum()
    whole = (mean * weights).sum(0) / n
    # of each part's values around the whole's mean
    squares = ((invstd.pow(-2) - eps + (mean - whole).square()) * weights).sum(0)
    _move(running_mean, whole, momentum)
    _move(running_var, squares / (n - 1), momentum)
    return whole, (squares / n + eps).rsqrt()


@composite
def batch_norm_gather_stats(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[Tensor, Tensor]:
    """The same of parts of one size."""
    counts = torch.full((mean.shape[0],), float(count), dtype=mean.dtype, device=mean.device)
    return batch_norm_gather_stats_with_counts(
        input, mean, invstd, running_mean, running_var, momentum, eps, counts
    )


def _move(running: Tensor | None, now: Tensor, momentum: float) -> None:
    if running is not None:
        if running.shape != now.shape:
            raise Contradiction
        # not lerp_(), whose difference of infinite numbers is NaN
        running.mul_(1 - momentum).add_(now.to(running.dtype), alpha=momentum)


@composite
def batch_norm_elemt(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    """The normalized input."""
    result: Tensor = torch.ops.aten.native_batch_norm.default(
        input, weight, bias, mean, invstd.pow(-2), False, 0.0, 0.0
    )[0]
    return result


@composite
def batch_norm_backward_reduce(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor | None, ...]:
    """Each channel's sum of the gradient and of the gradient times (input - mean); gradients of weight and bias."""
    grad = _summed(grad_out)
    total = grad.sum(_others(input))
    product = (grad * (_summed(input) - _of_channels(mean, input))).sum(_others(input))
    of_weight = (product * invstd).to(weight.dtype) if weight is not None and weight_g else None
    of_bias = total.to(weight.dtype) if weight is not None and bias_g else None
    return total if input_g else None, product if input_g else None, of_weight, of_bias


@composite
def batch_norm_backward_elemt(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """The input's gradient, from sums over all ranks' values, of which there are ``count``."""
    n = count.sum().to(mean.dtype)
    scale = invstd if weight is None else invstd * weight
    along = _of_channels(sum_dy_xmu / n * invstd.square(), input)
    rest = _summed(grad_out) - _of_channels(sum_dy / n, input)
    rest = rest - (_summed(input) - _of_channels(mean, input)) * along
    return (rest * _of_channels(scale, input)).to(input.dtype)
