"""Losses of targets that are no floating point, which PyTorch promotes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import macatensor
from macatensor import maca

Loss = Callable[..., torch.Tensor]


def loss_and_gradient(
    loss: Loss, x: torch.Tensor, target: torch.Tensor, reduction: str
) -> list[torch.Tensor]:
    x = x.detach().requires_grad_()
    value = loss(x, target, reduction=reduction)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    return [value.detach().cpu(), gradient.cpu()]


@pytest.mark.parametrize(
    "target", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.l1_loss, F.soft_margin_loss])
def test_targets_of_whole_numbers(loss: Loss, dtype: torch.dtype, target: torch.dtype) -> None:
    if loss is F.soft_margin_loss and target in (torch.uint8, torch.bool):
        return  # the host negates them as they are: of 1 that makes 255, and an error
    if loss is F.l1_loss and target is torch.bool:
        with pytest.raises(RuntimeError, match="with a bool tensor is not supported"):
            loss(torch.ones(3, dtype=dtype).maca(), torch.ones(3, dtype=target).maca())
        return
    x = torch.randn(3, 40, dtype=dtype)
    most = 2 if loss is F.soft_margin_loss else 20  # the host's mean of halves is infinite for what is larger
    numbers = torch.randint(0, most, (3, 40)).to(target)
    for reduction in ("none", "mean", "sum"):
        with macatensor.fallback("error"):
            ours = loss_and_gradient(loss, maca(x), maca(numbers), reduction)
        theirs = loss_and_gradient(loss, x, numbers, reduction)
        for got, want in zip(ours, theirs):
            assert got.dtype == want.dtype
            torch.testing.assert_close(
                got, want, rtol=8 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps
            )


def test_whole_numbers_that_a_half_rounds() -> None:
    """301 is none of bfloat16's numbers: PyTorch's difference from 300 is 0."""
    x, target = torch.tensor([300.0, 300.0]), torch.tensor([301, 300])
    for dtype, want in ((torch.bfloat16, 0.0), (torch.float16, 1.0)):
        assert F.mse_loss(maca(x.to(dtype)), maca(target), reduction="none").tolist() == [want, 0.0]
        assert F.mse_loss(x.to(dtype), target, reduction="none").tolist() == [want, 0.0]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(
    "sizes", [((), ()), ((), (1,)), ((1,), ()), ((4,), ()), ((4,), (1,)), ((1, 4), ()), ((2, 4), (2,))]
)
def test_margin_losses_of_one_sample(sizes: tuple[tuple[int, ...], tuple[int, ...]], reduction: str) -> None:
    """A class in one dimension gives its loss one, though the scores have none for samples."""
    x, target = torch.randn(sizes[0]), torch.zeros(sizes[1], dtype=torch.int64)
    with macatensor.fallback("error"):
        ours = loss_and_gradient(F.multi_margin_loss, maca(x), maca(target), reduction)
    theirs = loss_and_gradient(F.multi_margin_loss, x, target, reduction)
    for got, want in zip(ours, theirs):
        torch.testing.assert_close(got, want)
