"""Convolutions that go as products of matrices, those of few positions with a large weight and those of single pixels:
against float64, with numbers that are not finite where PyTorch has them, and with the same bits whatever the threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from running import level_is_at_least, multiplies_zeros_below, threads_restored

import macatensor

EPSILON = torch.finfo(torch.float32).eps

# images, input channels, output channels, height, width, weight's height and width; how
SHAPES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((8, 256, 130, 2, 2, 3, 3), {"padding": 1}),
    ((8, 200, 160, 4, 4, 3, 3), {"padding": 1, "stride": 2}),
    ((1, 192, 160, 8, 8, 3, 3), {"padding": 1}),
    ((3, 300, 90, 5, 4, 5, 3), {"padding": (2, 0), "dilation": (1, 1)}),
    ((2, 256, 120, 7, 6, 3, 3), {"padding": (2, 1), "dilation": 2, "stride": (1, 2)}),
    ((16, 640, 420, 2, 2, 1, 1), {}),
    ((5, 640, 420, 3, 5, 1, 1), {"stride": 2}),
    ((1, 300, 100, 3, 3, 3, 3), {}),  # one position
    ((2, 300, 100, 1, 1, 3, 3), {"padding": 1}),  # windows that are mostly outside
]
# of single pixels: of result and image's gradient one, the other, or both are large enough for the processor's tiles
PIXELS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 320, 330, 16, 15, 1, 1), {}),
    ((3, 70, 260, 13, 11, 1, 1), {}),
    ((1, 300, 96, 21, 25, 1, 1), {}),
    ((8, 640, 420, 4, 4, 1, 1), {}),
]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    with threads_restored():
        yield


def drawn(shape: tuple[int, ...]) -> list[torch.Tensor]:
    n, into, out, height, width, *kernel = shape
    torch.manual_seed(0)
    return [torch.randn(n, into, height, width), torch.randn(out, into, *kernel), torch.randn(out)]


def with_gradients(
    operands: list[torch.Tensor], gradient: torch.Tensor | None, how: dict[str, Any]
) -> list[torch.Tensor]:
    """The result, and the gradients of image, weight and bias."""
    leaves = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in operands]
    y = F.conv2d(*leaves, **how)
    y.backward(torch.ones_like(y) if gradient is None else gradient)
    return [y.detach(), *(t.grad for t in leaves if t.grad is not None)]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape, how", SHAPES + PIXELS, ids=str)
def test_results_and_gradients(shape: tuple[int, ...], how: dict[str, Any], threads: int) -> None:
    torch.set_num_threads(threads)
    operands = drawn(shape)
    gradient = torch.randn_like(F.conv2d(*operands, **how))
    exact = with_gradients([t.double() for t in operands], gradient.double(), how)
    sizes = with_gradients([t.double().abs() for t in operands], gradient.double().abs(), how)
    for weight_format in (torch.contiguous_format, torch.channels_last):
        ours = [t.maca() for t in operands]
        ours[1] = ours[1].contiguous(memory_format=weight_format)
        for got, want, size in zip(with_gradients(ours, gradient.maca(), how), exact, sizes, strict=True):
            # multiply-adds one after the other; of random terms they grow with the root of their number
            assert (got.cpu().double() - want).abs().le(4 * EPSILON * size).all()
        assert ours[0].is_contiguous(memory_format=torch.channels_last) or 1 in ours[0].shape


@pytest.mark.parametrize("shape, how", SHAPES[:5] + PIXELS, ids=str)
def test_integers_are_exact(shape: tuple[int, ...], how: dict[str, Any]) -> None:
    operands = [t.mul(3).round() for t in drawn(shape)]
    for got, want in zip(
        with_gradients([t.maca() for t in operands], None, how), with_gradients(operands, None, how)
    ):
        assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["image", "weight", "bias", "gradient"])
@pytest.mark.parametrize("shape, how", [SHAPES[0], PIXELS[0]], ids=str)
def test_what_is_not_finite(
    shape: tuple[int, ...], how: dict[str, Any], value: float, where: str, request: pytest.FixtureRequest
) -> None:
    """Windows leave the image, and zeros that stand for what is not there meet no NaN and no Inf."""
    if how == SHAPES[0][1]:
        multiplies_zeros_below({"gradient": "avx512", "weight": "avx2"}.get(where, "baseline"), request)
    operands = dict(zip(("image", "weight", "bias"), (t.abs() + 0.1 for t in drawn(shape))))
    operands["gradient"] = F.conv2d(*operands.values(), **how).abs()
    spoilt = operands[where].view(-1)
    spoilt[3] = value
    image, weight, bias, gradient = operands.values()
    ours = with_gradients([t.maca() for t in (image, weight, bias)], gradient.maca(), how)
    host = with_gradients([image, weight, bias], gradient, how)
    for got, want in zip(ours, host, strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-3, equal_nan=True)


def test_the_same_bits_for_any_number_of_threads() -> None:
    """Of products, for which AVX-512 is needed; oneDNN's convolutions for AVX2 are cut by the number of threads, and so
    are its weights' gradients of single pixels."""
    tolerance = 0.0 if level_is_at_least("avx512") else 1e-3
    for shape, how in SHAPES + PIXELS:
        operands = [t.maca() for t in drawn(shape)]
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(with_gradients(operands, None, how)[: 2 if (shape, how) in PIXELS else None])
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape, how", [SHAPES[0], PIXELS[0]], ids=str)
def test_a_weight_that_is_written_again(shape: tuple[int, ...], how: dict[str, Any]) -> None:
    x, w, b = (t.maca() for t in drawn(shape))
    with torch.inference_mode():
        first = F.conv2d(x, w, b, **how)
        macatensor.reset_counters()
        for _ in range(3):
            assert torch.equal(F.conv2d(x, w, b, **how), first)
        assert macatensor.counters()["weight_packs"] <= 1
        w.mul_(2)
        torch.testing.assert_close(
            F.conv2d(x, w, **how), 2 * (first - b[:, None, None]), rtol=1e-4, atol=1e-2
        )


@pytest.mark.parametrize("kernel, size", [(3, 12), (1, 36)])
def test_an_image_that_is_a_window_or_expanded(kernel: int, size: int) -> None:
    w = torch.randn(100, 300, kernel, kernel)
    big = torch.randn(2, 300, size, size)
    ours = big.maca()
    for x, y in (
        (big[:, :, 3 : size - 4 : 2, 1:6], ours[:, :, 3 : size - 4 : 2, 1:6]),
        (big[:, :, 1:-1], ours[:, :, 1:-1]),
        (big[:1, :, :-8, :4].expand(3, -1, -1, -1), ours[:1, :, :-8, :4].expand(3, -1, -1, -1)),
        (big[:, :, 5, None, :5].expand(-1, -1, 4, -1), ours[:, :, 5, None, :5].expand(-1, -1, 4, -1)),
    ):
        got = F.conv2d(y, w.maca(), padding=kernel // 2).cpu()
        torch.testing.assert_close(got, F.conv2d(x, w, padding=kernel // 2), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(
    ("channels", "kernel", "is_transposed"),
    [(80, 2, False), (40, 4, False), (16, 2, False), (64, 2, True), (72, 4, True)],
)
def test_bfloat16_in_tiles_filled_in_part(channels: int, kernel: int, is_transposed: bool) -> None:
    """A kernel of oneDNN's for AMX is wrong throughout where rows of the weight end inside of a tile."""
    x = torch.randn(2, channels, 12, 12).bfloat16()
    weight = (
        torch.randn(*((channels, 48) if is_transposed else (48, channels)), kernel, kernel).bfloat16() / 16
    )
    function = F.conv_transpose2d if is_transposed else F.conv2d

    def run(*operands: torch.Tensor) -> list[torch.Tensor]:
        leaves = [t.detach().requires_grad_() for t in operands]
        result = function(*leaves, stride=kernel)
        return [result, *torch.autograd.grad(result, leaves, torch.ones_like(result))]

    for got, wanted in zip(run(x.maca(), weight.maca()), run(x.double(), weight.double())):
        assert (
            float((got.detach().cpu().double() - wanted.detach()).norm() / wanted.detach().norm()) < 0.005
        )  # bfloat16's own rounding: 0.0017
