"""Convolutions in which each channel meets filters of its own ("depthwise") or of a group of few channels, and those of
single pixels of images in planes: results and gradients against float64 in every layout, numbers that are not finite
where PyTorch has them, and the same bits whatever the threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from running import level_is_at_least, multiplies_zeros_below, threads_restored

EPSILON = torch.finfo(torch.float32).eps

# image, weight, how: widths that fill no vector, taps that leave the image, phases without a tap, one place
CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((3, 19, 13, 11), (19, 1, 3, 3), {"padding": 1, "groups": 19}),
    ((2, 64, 9, 30), (64, 1, 3, 3), {"padding": 1, "stride": 2, "groups": 64}),
    ((2, 33, 17, 8), (33, 1, 5, 2), {"padding": (0, 2), "stride": (3, 1), "dilation": (1, 2), "groups": 33}),
    ((1, 40, 7, 7), (40, 1, 7, 7), {"padding": 3, "groups": 40}),
    ((2, 24, 2, 2), (24, 1, 3, 3), {"padding": 1, "groups": 24}),
    # strips of every length, of which some results are made again
    ((2, 35, 6, 30), (35, 1, 5, 5), {"padding": 2, "groups": 35}),
    ((2, 20, 9, 33), (20, 1, 7, 7), {"padding": (5, 3), "stride": (1, 2), "groups": 20}),
    ((1, 16, 4, 47), (16, 1, 3, 7), {"padding": (1, 9), "groups": 16}),
    ((1, 48, 23, 23), (48, 1, 5, 5), {"padding": 2, "stride": 2, "groups": 48}),
    ((2, 32, 8, 8), (32, 1, 5, 5), {"padding": 4, "groups": 32}),
    ((2, 16, 5, 4), (16, 1, 2, 2), {"stride": 3, "groups": 16}),
    ((2, 17, 80, 70), (17, 1, 3, 3), {"groups": 17}),
    (
        (1, 16, 9, 31),
        (16, 1, 3, 2),
        {"padding": (400, 2), "dilation": (401, 9), "groups": 16},
    ),  # mostly zeros
    ((2, 18, 57), (18, 1, 5), {"padding": 2, "stride": 2, "groups": 18}),
    ((2, 68, 9, 30), (68, 4, 3, 3), {"padding": 1, "stride": 2, "groups": 17}),
    ((2, 36, 17, 8), (36, 4, 5, 2), {"padding": (0, 2), "stride": (3, 1), "dilation": (1, 2), "groups": 9}),
    ((2, 34, 7, 11), (34, 2, 3, 3), {"padding": 1, "groups": 17}),
    ((2, 20, 57), (20, 4, 5), {"padding": 2, "stride": 2, "groups": 5}),
    ((3, 58, 5, 6), (37, 58, 1, 1), {}),
    ((2, 20, 17, 19), (70, 20, 1, 1), {}),
    ((2, 300, 4, 4), (130, 300, 1, 1), {}),
]
Operands = list[torch.Tensor]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    with threads_restored():
        yield


def drawn(case: tuple[Any, ...]) -> Operands:
    """Image, weight, bias and the result's gradient."""
    x, w, how = case
    torch.manual_seed(0)
    image, weight = torch.randn(x), torch.randn(w)
    return [image, weight, torch.randn(w[0]), torch.randn_like(convolution(image, weight, None, how))]


def convolution(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, how: dict[str, Any]
) -> Any:
    """By the image's rank."""
    return (F.conv1d if image.dim() == 3 else F.conv2d)(image, weight, bias, **how)


def by_definition(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, how: dict[str, Any]
) -> torch.Tensor:
    """One of two dimensions, tap by tap, in which nothing is multiplied that is outside of the image."""
    if weight.shape[-1] == 1:
        return convolution(image, weight, bias, how)
    step, padding, size = how.get("stride", 1), how.get("padding", 0), image.shape[2:]
    result = convolution(torch.zeros_like(image), torch.zeros_like(weight), None, how)
    for y in range(weight.shape[2]):
        for x in range(weight.shape[3]):
            first = [max(0, -((t - padding) // step)) for t in (y, x)]
            last = [
                min((n - 1 - t + padding) // step + 1, r)
                for n, t, r in zip(size, (y, x), result.shape[2:], strict=True)
            ]
            to = tuple(slice(a, b) for a, b in zip(first, last, strict=True))
            at = tuple(
                slice(a * step + t - padding, (b - 1) * step + t - padding + 1, step)
                for a, b, t in zip(first, last, (y, x), strict=True)
            )
            read, filters = (
                t.unflatten(d, (how["groups"], -1))
                for t, d in ((image[(..., *at)], 1), (weight[..., y, x], 0))
            )
            part = torch.einsum("ngihw,goi->ngohw", read, filters).flatten(1, 2)
            down, along = to
            beside = [along.start, result.shape[3] - along.stop, down.start, result.shape[2] - down.stop]
            result = result + F.pad(part, beside)
    return result + bias[:, None, None]


def computed(operands: Operands, how: dict[str, Any], compute: Any = convolution) -> Operands:
    """The result and the three gradients."""
    leaves = [t.detach().requires_grad_() for t in operands[:3]]
    result = compute(*leaves, how)
    return [result.detach(), *torch.autograd.grad(result, leaves, operands[3])]


def in_planes(t: torch.Tensor) -> torch.Tensor:
    """As a script that knows no other layout has it."""
    return t.maca().contiguous()


def in_halves(t: torch.Tensor) -> torch.Tensor:
    """The second half of the channels of an image in planes."""
    return torch.cat([torch.full_like(t, torch.nan), t], 1).maca().contiguous()[:, t.shape[1] :]


LAYOUTS = {"channels last": torch.Tensor.maca, "planes": in_planes, "halves": in_halves}


def _name(case: tuple[Any, ...]) -> str:
    return " ".join(map(str, case))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_results_and_gradients(case: tuple[Any, ...], layout: str) -> None:
    how, operands, place = case[2], drawn(case), LAYOUTS[layout]
    exact = computed([t.double() for t in operands], how)
    sizes = computed([t.double().abs() for t in operands], how)
    image, weight, bias, gradient = operands
    ours = [place(image), weight.maca(), bias.maca(), place(gradient)]
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(computed(ours, how))
        for got, want, size in zip(results[-1], exact, sizes, strict=True):
            # a chain of 64 terms, and the chains' sums in order; of random signs they grow with the root
            assert (got.cpu().double() - want).abs().le(4 * EPSILON * size).all()
    # weights' gradients below, and of groups, are oneDNN's, which cuts sums by the threads
    is_own = level_is_at_least("avx2") and how.get("groups", 1) in (1, operands[0].shape[1])
    steady = 4 if is_own else 2
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0][:steady], other[:steady], strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", [0, 1, 3], ids=["image", "weight", "gradient"])
@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[9], CASES[11], CASES[14]], ids=_name)
def test_what_is_not_finite(
    case: tuple[Any, ...], where: int, value: float, layout: str, request: pytest.FixtureRequest
) -> None:
    """As the definition has it."""
    multiplies_zeros_below("avx2", request)
    operands, place = drawn(case), LAYOUTS[layout]
    operands[where].view(-1)[3] = value
    image, weight, bias, gradient = operands
    ours = computed([place(image), weight.maca(), bias.maca(), place(gradient)], case[2])
    wanted = computed([t.double() for t in operands], case[2], by_definition)
    for got, want in zip(ours, wanted, strict=True):
        torch.testing.assert_close(got.cpu(), want.float(), rtol=1e-4, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("case", [CASES[0], CASES[9], CASES[13]], ids=_name)
def test_layouts_of_both_kinds(case: tuple[Any, ...]) -> None:
    """An image in planes and a gradient in channels-last, and the reverse."""
    operands = drawn(case)
    exact = computed([t.double() for t in operands], case[2])
    weight, bias = operands[1].maca(), operands[2].maca()
    for first, second in ((in_planes, torch.Tensor.maca), (torch.Tensor.maca, in_planes)):
        ours = computed([first(operands[0]), weight, bias, second(operands[3])], case[2])
        for got, want in zip(ours, exact, strict=True):
            torch.testing.assert_close(got.cpu().double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("sizes", [(3, 5, 70), (2, 19, 9, 11), (2, 16, 4, 5, 6)], ids=str)
@pytest.mark.parametrize("expanded", [False, True], ids=["dense", "expanded"])
def test_gradient_of_the_bias_alone(sizes: tuple[int, ...], dtype: torch.dtype, expanded: bool) -> None:
    dims = len(sizes) - 2
    convolve = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    image, weight = (
        torch.randn(sizes[0], 4, *sizes[2:]).to(dtype),
        torch.randn(sizes[1], 4, *[1] * dims).to(dtype),
    )
    bias = torch.zeros(sizes[1], dtype=dtype).maca().requires_grad_()
    gradient = torch.randn(()).expand(sizes).to(dtype) if expanded else torch.randn(sizes).to(dtype)
    convolve(image.maca(), weight.maca(), bias).backward(gradient.maca())
    others = [d for d in range(len(sizes)) if d != 1]
    expected, terms = gradient.double().sum(others), gradient.double().abs().sum(others)
    roundings = 17 if dtype is torch.float32 else 1  # blocks of 32 are added up in float32, then in double
    bound = roundings * torch.finfo(dtype).eps * terms
    assert ((bias.grad.cpu().double() - expected).abs() <= bound).all()
