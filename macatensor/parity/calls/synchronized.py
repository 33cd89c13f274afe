"""Calls of the operators of ``nn.SyncBatchNorm``, and what they compute: PyTorch has them on CUDA alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from macatensor.parity.draw import Call, Draw, calls
from macatensor.parity.formulas import formula

_CHANNELS = 3


def _statistics(draw: Draw, *parts: int) -> tuple[Tensor, Tensor]:
    """Means and inverse deviations, in the type that CUDA gives."""
    wide = torch.promote_types(draw.dtype, torch.float32)
    shape = (*parts, _CHANNELS)
    return draw.values(shape, wide, -1, 1), draw.values(shape, wide, 0.5, 2)


@calls("batch_norm_stats", "batch_norm_update_stats")
def _parts(draw: Draw) -> Iterator[Call]:
    for shape in ((4, _CHANNELS, 5, 5), (7, _CHANNELS)):
        x = draw.tensor(*shape, low=-2, high=2)
        if draw.row.operator == "batch_norm_stats":
            yield Call((x, 1e-5))
        else:
            yield Call((x, *_statistics(draw), 0.1))


@calls("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts")
def _whole(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(2, _CHANNELS, 4, low=-2, high=2)
    wide = torch.promote_types(draw.dtype, torch.float32)
    with_counts = draw.row.operator.endswith("counts")
    count = torch.tensor([8.0, 12.0], dtype=wide) if with_counts else 8
    yield Call((x, *_statistics(draw, 2), *_statistics(draw), 0.1, 1e-5, count))
    yield Call((x, *_statistics(draw, 2), None, None, 0.1, 1e-5, count))


@calls("batch_norm_elemt")
def _normalized(draw: Draw) -> Iterator[Call]:
    for shape in ((4, _CHANNELS, 5, 5), (7, _CHANNELS)):
        x, affine = draw.tensor(*shape, low=-2, high=2), _statistics(draw)
        yield Call((x, *affine, *_statistics(draw), 1e-5))
        yield Call((x, None, None, *_statistics(draw), 1e-5))


@calls("batch_norm_backward_reduce", "batch_norm_backward_elemt")
def _backward(draw: Draw) -> Iterator[Call]:
    for shape in ((4, _CHANNELS, 5, 5), (7, _CHANNELS)):
        x, grad = draw.tensor(*shape, low=-2, high=2), draw.tensor(*shape, low=-2, high=2)
        for weight in (_statistics(draw)[0], None):
            if draw.row.operator.endswith("reduce"):
                yield Call((grad, x, *_statistics(draw), weight, True, True, True))
            else:
                count = torch.tensor([50, 50], dtype=torch.int32)
                yield Call((grad, x, *_statistics(draw), weight, *_statistics(draw), count))


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = x.transpose(0, 1).flatten(1)
    mean = rows.mean(1)
    return mean, (rows - mean.unsqueeze(1)).square().mean(1)


def _keep(running: Tensor | None, now: Tensor, momentum: float) -> None:
    if running is not None:
        running.copy_((1 - momentum) * running + momentum * now)


@formula
def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    mean, variance = _moments(x)
    return mean, 1 / (variance + eps).sqrt()


@formula
def batch_norm_update_stats(x: Tensor, mean: Tensor, variance: Tensor, momentum: float) -> tuple[Tensor, ...]:
    now, spread = _moments(x)
    n = x.numel() // x.shape[1]
    _keep(mean, now, momentum)
    _keep(variance, spread * n / (n - 1), momentum)
    return now, spread


@formula
def batch_norm_gather_stats_with_counts(
    x: Tensor, mean: Tensor, invstd: Tensor, old: Tensor | None, old_variance: Tensor | None, momentum: float,
    eps: float, counts: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    share = (counts / counts.sum()).unsqueeze(1)
    second = ((invstd.pow(-2) - eps + mean.square()) * share).sum(0)  # E[x^2]
    whole = (mean * share).sum(0)
    n = counts.sum()
    _keep(old, whole, momentum)
    _keep(old_variance, (second - whole.square()) * n / (n - 1), momentum)
    return whole, 1 / (second - whole.square() + eps).sqrt()


@formula
def batch_norm_gather_stats(
    x: Tensor, mean: Tensor, invstd: Tensor, old: Tensor | None, old_variance: Tensor | None, momentum: float,
    eps: float, count: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    counts = torch.full((mean.shape[0],), float(count), dtype=mean.dtype)
    return batch_norm_gather_stats_with_counts(x, mean, invstd, old, old_variance, momentum, eps, counts)


@formula
def batch_norm_elemt(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    rows = (x.transpose(0, 1).flatten(1) - mean.unsqueeze(1)) * invstd.unsqueeze(1)
    if weight is not None and bias is not None:
        rows = rows * weight.unsqueeze(1) + bias.unsqueeze(1)
    return rows.view(x.transpose(0, 1).shape).transpose(0, 1)


@formula
def batch_norm_backward_reduce(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, *wanted: bool
) -> tuple[Tensor | None, ...]:
    grads, rows = (t.transpose(0, 1).flatten(1) for t in (grad, x))
    total, product = grads.sum(1), (grads * (rows - mean.unsqueeze(1))).sum(1)
    return total, product, None if weight is None else product * invstd, None if weight is None else total


@formula
def batch_norm_backward_elemt(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, total: Tensor, product: Tensor,
    count: Tensor,
) -> Tensor:  # fmt: skip
    grads, rows = (t.transpose(0, 1).flatten(1) for t in (grad, x))
    n = count.sum()
    scale = (invstd if weight is None else invstd * weight).unsqueeze(1)
    inner = (rows - mean.unsqueeze(1)) * (invstd.square() * product / n).unsqueeze(1)
    return ((grads - (total / n).unsqueeze(1) - inner) * scale).view(x.transpose(0, 1).shape).transpose(0, 1)
