"""Convolutions of one dimension, computed as signals lie: against float64, by name where another way is the better one,
with numbers that are not finite where PyTorch has them, and with the same bits whatever the threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from convolution_cases import Case, Compute, check_written_again, drawn, name
from running import asked_of, threads_restored

import macatensor
from macatensor import maca
from macatensor.tuning import measuring

EPSILON = torch.finfo(torch.float32).eps

# long and of many channels, so that they are computed so by rule
LONG: list[Case] = [
    (F.conv1d, (3, 70, 2100), (133, 70, 5), {"padding": 2}),
    (F.conv1d, (2, 130, 2063), (190, 65, 3), {"padding": 9, "dilation": 8, "groups": 2}),
    (F.conv1d, (1, 2, 9001), (180, 2, 7), {"padding": 6}),
    (F.conv_transpose1d, (2, 150, 2050), (150, 140, 4), {"padding": 1}),
]
# a result narrower than a vector, one place, taps beyond both ends, channels that fill no block of rows
SHORT: list[Case] = [
    (F.conv1d, (2, 17, 33), (13, 17, 3), {"padding": 1}),
    (F.conv1d, (3, 5, 40), (9, 5, 4), {"padding": 2, "stride": 3}),
    (F.conv1d, (1, 20, 7), (1, 20, 7), {}),
    (F.conv1d, (2, 48, 50), (66, 16, 9), {"padding": 40, "dilation": 9, "groups": 3}),
    (F.conv1d, (2, 3, 300), (40, 3, 1), {}),
    (F.conv_transpose1d, (2, 24, 19), (24, 33, 3), {"dilation": 2}),
    (F.conv_transpose1d, (2, 8, 19), (8, 7, 5), {"stride": 2, "padding": 3, "output_padding": 1}),
]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    with threads_restored():
        yield


def computed(compute: Compute, operands: list[torch.Tensor], how: dict[str, Any]) -> list[torch.Tensor]:
    """The result and the gradients of image, weight and bias."""
    leaves = [t.detach().requires_grad_() for t in operands[:3]]
    result = compute(*leaves, **how)
    return [result.detach(), *torch.autograd.grad(result, leaves, operands[3])]


def in_halves(t: torch.Tensor) -> torch.Tensor:
    """Every other channel, from the second place on, of a larger signal."""
    n, c, places = t.shape
    whole = maca(torch.zeros(n, 2 * c, places + 5))
    return whole[:, ::2, 1 : places + 1].copy_(maca(t))


@pytest.mark.parametrize("case", LONG, ids=name)
def test_results_and_gradients(case: Case) -> None:
    compute, _, _, how = case
    operands = drawn(case)
    exact = computed(compute, [t.double() for t in operands], how)
    sizes = computed(compute, [t.double().abs() for t in operands], how)
    ours = [maca(t) for t in operands]
    image, weight, bias, gradient = ours
    strided = [in_halves(operands[0]), weight, bias, in_halves(operands[3])]
    turned = [image, weight.transpose(0, 1).contiguous().transpose(0, 1), bias, gradient]
    for given in (ours, strided, turned):
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(computed(compute, given, how))
            for got, want, size in zip(results[-1], exact, sizes, strict=True):
                # a chain of 64 terms, and the chains' sums in order; of random signs they grow with the root
                assert (got.cpu().double() - want).abs().le(4 * EPSILON * size).all()
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("case", SHORT, ids=name)
def test_by_name(case: Case) -> None:
    compute, _, _, how = case
    operands = [maca(t) for t in drawn(case)]
    for asked in asked_of(lambda: computed(compute, operands, how)):
        tried = measuring.trial(asked)
        assert tried is not None and not tried.wrong
        ways = [c.way for c in tried.contenders]
        leaps = how.get("stride", 1) > 1
        spreads = leaps and (compute is F.conv_transpose1d) != (asked.kernel == "convolution_backward")
        wanted = "weight signals" if asked.kernel == "convolution_backward" else "signals"
        assert any(wanted in way for way in ways) or (spreads and wanted == "signals"), ways


@pytest.mark.parametrize("case", LONG, ids=name)
def test_integers_are_exact(case: Case) -> None:
    compute, _, _, how = case
    operands = [t.mul(3).round() for t in drawn(case)]
    ours = computed(compute, [maca(t) for t in operands], how)
    for got, want in zip(ours, computed(compute, [t.double() for t in operands], how), strict=True):
        assert torch.equal(got.cpu().double(), want)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", [0, 1, 3], ids=["image", "weight", "gradient"])
def test_what_is_not_finite(where: int, value: float) -> None:
    compute, x, w, how = LONG[0]
    if where == 1 and macatensor.device.library_info()["simd"] == "baseline":
        how = {}  # oneDNN multiplies the edge's zeros there, as PyTorch does on such a processor: 0 * NaN
    operands = drawn((compute, x, w, how))
    operands[where].view(-1)[3] = value
    ours = computed(compute, [maca(t) for t in operands], how)
    for got, want in zip(ours, computed(compute, operands, how), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=2e-3, equal_nan=True)


def test_a_weight_that_is_written_again() -> None:
    check_written_again(LONG[0])
