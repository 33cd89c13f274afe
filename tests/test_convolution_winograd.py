"""3 x 3 convolutions at stride 1, which go by minimal filtering: against float64, and NaN and Inf as PyTorch has them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from running import multiplies_zeros_below, run_python, threads_restored

import macatensor

HALF_ULP = torch.finfo(torch.float32).eps / 2

# images, input channels, output channels, height, width, padding
SHAPES = [
    (1, 64, 64, 28, 28, 1),
    (8, 64, 32, 8, 8, 1),  # images of whole tiles
    (2, 17, 19, 15, 13, 1),  # channels that fill no vector, tiles over the edge
    (2, 20, 35, 11, 30, 0),
    (3, 16, 16, 9, 9, (2, 0)),
    (3, 33, 16, 9, 9, (5, 3)),  # tiles that see nothing but padding
    (1, 16, 16, 3, 200, 0),  # one row of results
    (40, 16, 24, 1, 1, 1),  # one pixel
    (1, 16, 16, 80, 80, 1),  # more tiles than the weight's gradient takes at once
]


@pytest.fixture(autouse=True, params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    with threads_restored(request.param):
        yield request.param


def leaf(t: torch.Tensor) -> torch.Tensor:
    return t.detach().clone(memory_format=torch.preserve_format).requires_grad_()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("weight_format", [torch.contiguous_format, torch.channels_last])
def test_results_and_gradients(shape: tuple, weight_format: torch.memory_format) -> None:
    n, into, out, height, width, padding = shape
    torch.manual_seed(0)
    operands = [
        torch.randn(n, into, height, width),
        torch.randn(out, into, 3, 3).to(memory_format=weight_format),
        torch.randn(out),
    ]
    ours = [leaf(t.maca()) for t in operands]
    exact = [leaf(t.double()) for t in operands]
    sizes = [leaf(t.double().abs()) for t in operands]  # their result: the sum of the terms' magnitudes
    y, y_exact, y_size = (F.conv2d(*t, padding=padding) for t in (ours, exact, sizes))
    gradient = torch.randn(y_exact.shape)
    y.backward(gradient.maca())
    y_exact.backward(gradient.double())
    y_size.backward(gradient.double().abs())
    assert y.is_contiguous(memory_format=torch.channels_last)

    # Each transform of an operand adds four values and each of a result nine: some roundings of the terms, and one for
    # each addition, whose mean magnitude grows with the root of the terms.
    def check(
        name: str, got: torch.Tensor, reference: torch.Tensor, magnitude: torch.Tensor, terms: int
    ) -> None:
        error = (
            (got.detach().cpu().double() - reference).abs() / magnitude.clamp_min(1e-30)
        ).max() / HALF_ULP
        assert error <= 8 + terms**0.5 / 4, (name, float(error))

    check("result", y, y_exact.detach(), y_size.detach(), into)
    names = ("image", "weight", "bias")
    for name, a, b, c, terms in zip(names, ours, exact, sizes, (out, n * height * width // 4, 1)):
        assert a.grad is not None and b.grad is not None and c.grad is not None
        check(name, a.grad, b.grad, c.grad, terms)


def test_integers_are_exact() -> None:
    torch.manual_seed(0)
    x = torch.randint(-8, 8, (2, 32, 17, 16)).float()
    w = torch.randint(-4, 5, (48, 32, 3, 3)).float()
    g = torch.randint(-4, 5, (2, 48, 17, 16)).float()
    ours, host = [leaf(t.maca()) for t in (x, w)], [leaf(t) for t in (x, w)]
    F.conv2d(*ours, padding=1).backward(g.maca())
    F.conv2d(*host, padding=1).backward(g)
    assert torch.equal(F.conv2d(*ours, padding=1).cpu(), F.conv2d(*host, padding=1))
    for a, b in zip(ours, host):
        assert a.grad is not None and b.grad is not None
        assert torch.equal(a.grad.cpu(), b.grad)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["image", "weight", "bias", "gradient"])
def test_what_is_not_finite(value: float, where: str, request: pytest.FixtureRequest) -> None:
    if where == "gradient":
        multiplies_zeros_below("avx2", request)
    torch.manual_seed(0)
    operands = {
        "image": torch.rand(2, 16, 12, 12),  # no zeros, so that Inf stays Inf
        "weight": torch.rand(16, 16, 3, 3),
        "bias": torch.rand(16),
        "gradient": torch.rand(2, 16, 12, 12),
    }
    t = operands[where]
    t.view(-1)[t.numel() // 2 + 3] = value
    ours, host = [leaf(operands[k].maca()) for k in operands], [leaf(operands[k]) for k in operands]
    results = []
    for image, weight, bias, gradient in (ours, host):
        y = F.conv2d(image, weight, bias, padding=1)
        y.backward(gradient.detach())
        results.append([y.detach(), image.grad, weight.grad, bias.grad])
    for a, b in zip(*results):
        assert a is not None and b is not None
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_sums_that_overflow() -> None:
    x, w = torch.full((1, 16, 12, 12), 1e38), torch.ones(16, 16, 3, 3)
    w[1::2] = -1
    w[2] = 1e-3
    torch.testing.assert_close(F.conv2d(x.maca(), w.maca()).cpu(), F.conv2d(x, w), rtol=1e-5, atol=0)


IDENTITY = """
import torch, macatensor
x, w = torch.rand(1, 16, 32, 32), torch.nn.init.dirac_(torch.empty(16, 16, 3, 3))
y = torch.nn.functional.conv2d(x.maca(), w.maca(), padding=1).cpu()
print(torch.equal(x, y), float((x - y).abs().max()) < 1e-6)
"""


def test_it_can_be_refused() -> None:
    assert run_python(IDENTITY, MACA_WINOGRAD="0").stdout == "True True\n"
    assert run_python(IDENTITY, MACA_WINOGRAD="1").stdout == "False True\n"


def test_a_written_weight_is_packed_anew() -> None:
    x, w = torch.randn(1, 32, 20, 20).maca(), torch.randn(32, 32, 3, 3).maca()
    with torch.inference_mode():
        F.conv2d(x, w, padding=1)
        macatensor.reset_counters()
        first = F.conv2d(x, w, padding=1).cpu()
        assert torch.equal(F.conv2d(x, w, padding=1).cpu(), first)
        assert macatensor.counters()["weight_packs"] == 1
        w.mul_(2)
        for _ in range(2):
            assert torch.equal(F.conv2d(x, w, padding=1).cpu(), 2 * first)


def test_of_a_window_and_an_expanded_image() -> None:
    big, w = torch.randn(2, 32, 40, 40), torch.randn(24, 32, 3, 3)
    ours = big.maca()
    for x, y in (
        (big[:, :, 3:29:2, 1:30], ours[:, :, 3:29:2, 1:30]),
        (big[:1].expand(3, -1, -1, -1), ours[:1].expand(3, -1, -1, -1)),
        (big[:, :, 5, None].expand(-1, -1, 12, -1), ours[:, :, 5, None].expand(-1, -1, 12, -1)),
    ):
        torch.testing.assert_close(F.conv2d(y, w.maca()).cpu(), F.conv2d(x, w), rtol=1e-5, atol=1e-4)


def test_corners_are_as_exact_as_sums() -> None:
    # 4/9 of the sum that one point holds, and two thirds of what its neighbours do
    torch.manual_seed(0)
    image, weight = torch.rand(16, 64, 14, 14), torch.rand(64, 64, 3, 3)
    exact = F.conv2d(image.double(), weight.double(), padding=1)[:, :, ::13, ::13]
    got = F.conv2d(image.maca(), weight.maca(), padding=1).cpu()[:, :, ::13, ::13]
    error = (got - exact) / exact / torch.finfo(torch.float32).eps
    assert error.square().mean().sqrt() < 1.5
