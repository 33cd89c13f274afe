"""Convolutions of many channels, whose windows are gathered in rows and multiplied with short chains: against float64,
with numbers that are not finite where PyTorch has them, and with the same bits whatever the threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from convolution_cases import Case, Compute, check_written_again, drawn, name
from running import threads_restored

EPSILON = torch.finfo(torch.float32).eps

# convolution, image, weight, how: widths that fill no vector, taps that leave the image, phases without a tap
CASES: list[Case] = [
    (F.conv2d, (3, 70, 13, 11), (37, 70, 3, 3), {"padding": 1, "stride": 2}),
    (F.conv2d, (2, 64, 30, 29), (96, 64, 3, 3), {"padding": (0, 2), "stride": (1, 3), "dilation": (2, 1)}),
    (F.conv2d, (2, 144, 10, 9), (90, 48, 2, 5), {"padding": (1, 4), "groups": 3}),
    (F.conv2d, (1, 300, 9, 9), (64, 300, 1, 1), {"stride": 3}),
    (F.conv2d, (1, 40, 5, 4), (5, 40, 5, 4), {}),  # one position
    (F.conv1d, (2, 130, 57), (70, 130, 5), {"padding": 2, "stride": 2}),
    (F.conv3d, (1, 33, 5, 6, 7), (34, 33, 3, 2, 3), {"padding": (1, 0, 2), "stride": (2, 1, 2)}),
    (
        F.conv_transpose2d,
        (2, 66, 7, 5),
        (66, 20, 4, 3),
        {"stride": (2, 3), "padding": 1, "output_padding": (1, 2)},
    ),
    (F.conv_transpose2d, (2, 96, 6, 6), (96, 24, 2, 2), {"stride": 3, "groups": 2}),
    (F.conv_transpose1d, (2, 160, 19), (160, 33, 3), {"stride": 4, "dilation": 2}),
]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    with threads_restored():
        yield


def computed(compute: Compute, operands: list[torch.Tensor], how: dict[str, Any]) -> list[torch.Tensor]:
    """The result and the gradient of the image."""
    image, weight, bias, gradient = operands
    leaf = image.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    result = compute(leaf, weight, bias, **how)
    return [result.detach(), *torch.autograd.grad(result, leaf, gradient)]


@pytest.mark.parametrize("case", CASES, ids=name)
def test_results_and_gradients(case: Case) -> None:
    compute, _, _, how = case
    operands = drawn(case)
    exact = computed(compute, [t.double() for t in operands], how)
    sizes = computed(compute, [t.double().abs() for t in operands], how)
    ours = [t.maca() for t in operands]
    weights = [ours[1], ours[1].contiguous()]
    if ours[1].dim() == 4:
        weights.append(ours[1].contiguous(memory_format=torch.channels_last))
    for weight in weights:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(computed(compute, [ours[0], weight, *ours[2:]], how))
            for got, want, size in zip(results[-1], exact, sizes, strict=True):
                # a chain of 64 terms, and the chains' sums in order; of random signs they grow with the root
                assert (got.cpu().double() - want).abs().le(4 * EPSILON * size).all()
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("case", CASES, ids=name)
def test_integers_are_exact(case: Case) -> None:
    compute, _, _, how = case
    operands = [t.mul(3).round() for t in drawn(case)]
    ours = computed(compute, [t.maca() for t in operands], how)
    for got, want in zip(ours, computed(compute, [t.double() for t in operands], how), strict=True):
        assert torch.equal(got.cpu().double(), want)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", [0, 3], ids=["image", "gradient"])
@pytest.mark.parametrize("case", [CASES[0], CASES[5]], ids=name)
def test_what_is_not_finite(case: Case, where: int, value: float) -> None:
    compute, _, _, how = case
    operands = drawn(case)
    operands[where].view(-1)[3] = value
    ours = computed(compute, [t.maca() for t in operands], how)
    for got, want in zip(ours, computed(compute, operands, how), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-3, equal_nan=True)


def test_a_weight_that_is_written_again() -> None:
    check_written_again(CASES[0])
