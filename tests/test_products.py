"""Errors of float32 products, convolutions and attention against float64, beside PyTorch's own.

As a program it prints the table of all depths, channels and lengths, or of the cases whose names contain one of some
words: `python tests/test_products.py --draws 20 attention "mm K"`. The long profile tests all of that table.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import macatensor  # noqa: F401 - registers the device where this is run as a program

EPS = torch.finfo(torch.float32).eps
DRAWS = 20
# the long suite tests the whole table, and draws cases that take long as often as the others
LONG = os.environ.get("HYPOTHESIS_PROFILE") in ("wide", "long")
DRAWS_OF_LARGE = DRAWS if LONG else 2
INPUTS: dict[str, Callable[..., torch.Tensor]] = {
    "rand": torch.rand,
    "randn": torch.randn,
    "0.1": lambda *size: torch.full(size, 0.1),
    "exp(3 randn)": lambda *size: torch.exp(3 * torch.randn(*size)),
}
TURNS: dict[str, Callable[..., torch.Tensor]] = {  # signs that change from pixel to pixel
    "stripes": lambda *size: torch.rand(*size) * (1 - torch.arange(size[-1]) % 2 * 2),
    "checkerboard": lambda *size: (
        torch.rand(*size) * (1 - (torch.arange(size[-1]) + torch.arange(size[-2])[:, None]) % 2 * 2)
    ),
}
DEPTHS = (64, 256, 384, 512, 2048, 8192, 16384)
CHANNELS = (64, 256, 512, 2048)
LENGTHS = (128, 512, 2048)
Compute = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    name: str
    compute: Compute
    sizes: tuple[tuple[int, ...], ...]
    magnitude: Compute | None = (
        None  # sums of the terms' magnitudes; None: `compute` of the operands' magnitudes
    )
    exponents: tuple[int, ...] = ()  # operands that stay normal where others are exp(3 randn)


@dataclass
class Error:
    """In eps of the sum of the terms' magnitudes."""

    squares: float = 0.0
    count: int = 0
    largest: float = 0.0

    def add(self, result: torch.Tensor, exact: torch.Tensor, magnitude: torch.Tensor) -> None:
        some = magnitude > 0  # a strided convolution may pass over pixels, whose gradient has no terms
        assert torch.equal(result[~some], torch.zeros_like(result[~some]))
        # float64's own rounding of the exact result is some 1e-9 of this unit
        error = ((result.double() - exact).abs() / (EPS * magnitude))[some].round(decimals=6)
        self.squares += error.square().sum().item()
        self.count += error.numel()
        self.largest = max(self.largest, error.max().item())

    @property
    def rms(self) -> float:
        return math.sqrt(self.squares / self.count)


def gradient(compute: Compute, of: int) -> Compute:
    """The gradient by operand `of`; the last operand is that of the result."""

    def run(*operands: torch.Tensor) -> torch.Tensor:
        leaves = [x.detach().requires_grad_() for x in operands[:-1]]
        return torch.autograd.grad(compute(*leaves), leaves[of], operands[-1])[0]

    return run


def products(depths: tuple[int, ...]) -> Iterator[Case]:
    for k in depths:
        yield Case(f"mm K {k}", torch.mm, ((96, k), (k, 80)))
        yield Case(f"mm of few rows K {k}", torch.mm, ((4, k), (k, 96)))
        yield Case(f"addmm K {k}", torch.addmm, ((80,), (40, k), (k, 80)))
        yield Case(f"bmm K {k}", torch.bmm, ((3, 40, k), (3, k, 40)))
        yield Case(f"baddbmm K {k}", torch.baddbmm, ((3, 1, 40), (3, 40, k), (3, k, 40)))
        yield Case(f"linear K {k}", F.linear, ((100, k), (72, k)))
        for rows in (2, 8):
            yield Case(f"linear of {rows} rows K {k}", F.linear, ((rows, k), (96, k)))
        yield Case(f"mv K {k}", torch.mv, ((300, k), (k,)))
        yield Case(f"dot K {k}", lambda x, y: torch.dot(x, y).reshape(1), ((k,), (k,)))
        yield Case(f"linear, weight's gradient K {k}", gradient(F.linear, 1), ((k, 72), (40, 72), (k, 40)))
    for k in [k for k in depths if 512 <= k <= 2048]:  # large enough for three parts of bfloat16
        yield Case(f"mm 300 K {k}", torch.mm, ((300, k), (k, 300)))


def convolutions(channels: tuple[int, ...]) -> Iterator[Case]:
    def of(name: str, x: tuple[int, ...], w: tuple[int, ...], compute: Compute) -> Iterator[Case]:
        y = tuple(compute(torch.empty(x, device="meta"), torch.empty(w, device="meta")).shape)
        yield Case(name, compute, (x, w))
        yield Case(f"{name}, input's gradient", gradient(compute, 0), (x, w, y))
        yield Case(f"{name}, weight's gradient", gradient(compute, 1), (x, w, y))

    def conv(function: Compute, **how: Any) -> Compute:
        return lambda x, w: function(x, w, **how)

    for c in channels:
        yield from of(f"1 x 1, C {c}", (1, c, 14, 14), (64, c, 1, 1), conv(F.conv2d))
        yield from of(f"1 x 1 of many pixels, C {c}", (4, c, 28, 28), (64, c, 1, 1), conv(F.conv2d))
        yield from of(f"3 x 3, C {c}", (2, c, 14, 14), (64, c, 3, 3), conv(F.conv2d, padding=1))
        yield from of(f"3 x 3 stride 2, C {c}", (1, c, 14, 13), (64, c, 3, 3), conv(F.conv2d, stride=2))
        yield from of(f"1-D, C {c}", (1, c, 100), (64, c, 5), conv(F.conv1d))
        yield from of(f"transposed, C {c}", (1, c, 7, 7), (c, 64, 4, 4), conv(F.conv_transpose2d, stride=2))
    yield from of("columns, C 512", (4, 512, 2, 2), (96, 512, 3, 3), conv(F.conv2d, padding=1))
    yield from of("3-D, C 64", (2, 64, 4, 7, 7), (32, 64, 3, 3, 3), conv(F.conv3d, padding=1))
    yield from of(
        "3-D stride 2, C 96", (1, 96, 5, 8, 7), (40, 96, 3, 2, 3), conv(F.conv3d, stride=2, padding=1)
    )
    yield from of("dilated, C 256", (1, 256, 12, 11), (48, 256, 3, 3), conv(F.conv2d, padding=2, dilation=2))
    yield from of("4 groups of 128", (1, 512, 9, 10), (256, 128, 3, 3), conv(F.conv2d, padding=1, groups=4))
    yield from of("7 x 7 of 3 channels", (1, 3, 42, 40), (64, 3, 7, 7), conv(F.conv2d, stride=2, padding=3))
    yield from of("to 3 channels, C 128", (1, 128, 16, 16), (3, 128, 3, 3), conv(F.conv2d, padding=1))
    yield from of("depthwise", (2, 64, 28, 28), (64, 1, 3, 3), conv(F.conv2d, padding=1, groups=64))


def magnitude_of_attention(of: int | None) -> Compute:
    """Of the result's terms, or of those of a gradient.

    The terms are those of the last product: probabilities times values, and for the gradients of query and key
    probabilities times differences of gradients, both sides of which count. What a probability's own error adds, its
    score's, is in our error and in PyTorch's alike.
    """

    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *grad: torch.Tensor) -> torch.Tensor:
        scale = query.size(-1) ** -0.5
        probability = torch.softmax(scale * query @ key.mT, -1)
        if of is None:
            return probability @ value.abs()
        if of == 2:
            return probability.mT @ grad[0].abs()
        gradient_of_probability = grad[0].abs() @ value.abs().mT
        mean = (probability * gradient_of_probability).sum(-1, keepdim=True)
        scores = scale * probability * (gradient_of_probability + mean)
        return scores @ key.abs() if of == 0 else scores.mT @ query.abs()

    return run


def attentions(lengths: tuple[int, ...]) -> Iterator[Case]:
    sdpa = F.scaled_dot_product_attention
    for t in lengths:
        for heads in (2, 1):  # of few heads keys are computed in pieces
            size = (heads, 2, t, 64)
            name = f"attention T {t}, {2 * heads} heads"
            yield Case(name, sdpa, (size,) * 3, magnitude_of_attention(None), (0, 1))
            for of, operand in enumerate(("query", "key", "value")):
                yield Case(
                    f"{name}, {operand}'s gradient",
                    gradient(sdpa, of),
                    (size,) * 4,
                    magnitude_of_attention(of),
                    (0, 1),
                )


def measure(case: Case, inputs: str, draws: int) -> tuple[Error, Error]:
    """Ours and PyTorch's, of `draws` draws."""
    torch.manual_seed(0)
    ours, theirs = Error(), Error()
    if len(case.sizes[0]) == 1:  # of two vectors, whose product is a single number
        draws *= 50
    for _ in range(1 if inputs == "0.1" else draws):
        operands = [
            (torch.randn if inputs == "exp(3 randn)" and i in case.exponents else (INPUTS | TURNS)[inputs])(
                *size
            )
            for i, size in enumerate(case.sizes)
        ]
        exact = case.compute(*(x.double() for x in operands))
        if not case.magnitude and all(bool((x >= 0).all()) for x in operands):
            magnitude = exact
        elif case.magnitude:
            magnitude = case.magnitude(*(x.double() for x in operands))
        else:
            magnitude = case.compute(*(x.double().abs() for x in operands))
        theirs.add(case.compute(*operands), exact, magnitude)
        ours.add(case.compute(*(x.maca() for x in operands)).cpu(), exact, magnitude)
    return ours, theirs


def meets_bar(ours: Error, theirs: Error, inputs: str) -> bool:
    # the rms of values that are all alike is one rounding that may fall either way
    least = 0.5 if inputs == "0.1" else 0.0
    return ours.rms <= max(1.5 * theirs.rms, least) and ours.largest <= 1.5 * theirs.largest + 2


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("case", products(DEPTHS if LONG else DEPTHS[:-1]), ids=lambda case: case.name)
def test_products_are_as_exact_as_pytorchs(case: Case, inputs: str) -> None:
    ours, theirs = measure(case, inputs, DRAWS if case.sizes[0][-1] <= 512 else DRAWS_OF_LARGE)
    assert meets_bar(ours, theirs, inputs), (
        f"rms {ours.rms:.2f} against {theirs.rms:.2f}, {ours.largest} {theirs.largest}"
    )


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("case", convolutions(CHANNELS if LONG else (64, 512)), ids=lambda case: case.name)
def test_convolutions_are_as_exact_as_pytorchs(case: Case, inputs: str) -> None:
    ours, theirs = measure(case, inputs, DRAWS_OF_LARGE)
    assert meets_bar(ours, theirs, inputs), (
        f"rms {ours.rms:.2f} against {theirs.rms:.2f}, {ours.largest} {theirs.largest}"
    )


@pytest.mark.parametrize("inputs", TURNS)
@pytest.mark.parametrize(
    "case", [c for c in convolutions((64, 128)) if c.name.startswith("3 x 3, C")], ids=lambda case: case.name
)
def test_signs_that_take_turns_are_as_exact(case: Case, inputs: str) -> None:
    # by minimal filtering all of the sum is at one point, as with one sign, but at another one
    ours, theirs = measure(case, inputs, DRAWS_OF_LARGE)
    assert meets_bar(ours, theirs, inputs), (
        f"rms {ours.rms:.2f} against {theirs.rms:.2f}, {ours.largest} {theirs.largest}"
    )


def test_few_large_pixels_do_not_hide_the_others() -> None:
    case = next(c for c in convolutions((64,)) if c.name == "3 x 3, C 64")
    ours, _ = measure(case, "exp(3 randn)", 1)
    assert ours.largest < 100  # by minimal filtering it was 10^6


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("case", attentions(LENGTHS if LONG else LENGTHS[:-1]), ids=lambda case: case.name)
def test_attention_is_as_exact_as_pytorchs(case: Case, inputs: str) -> None:
    ours, theirs = measure(case, inputs, DRAWS_OF_LARGE)
    assert meets_bar(ours, theirs, inputs), (
        f"rms {ours.rms:.2f} against {theirs.rms:.2f}, {ours.largest} {theirs.largest}"
    )


def test_gradients_of_long_attention_are_as_exact() -> None:
    # 21 blocks of query rows add up to a value's gradient
    case = next(c for c in attentions((2048,)) if c.name == "attention T 2048, 2 heads, value's gradient")
    ours, theirs = measure(case, "rand", 1)
    assert meets_bar(ours, theirs, "rand"), f"rms {ours.rms:.2f} against {theirs.rms:.2f}"


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batch"])
def test_any_threads_give_products_the_same_bits(batch: tuple[int, ...], layout: str) -> None:
    before = torch.get_num_threads()
    sizes = (
        *((300, 2048, 300), (270, 867, 516), (13, 5000, 17), (1, 5000, 333), (5, 546, 2129), (2129, 546, 5)),
        *((436, 231, 230), (31, 481, 178), (72, 8192, 40), (384, 384, 384), (3, 300, 200), (8, 2100, 90)),
        (37, 600, 2500),  # of panels that no second-level cache holds
    )
    try:
        for m, k, n in sizes:
            left, right = torch.randn(*batch, m, k).maca(), torch.randn(*batch, k, n)
            b = right.maca() if layout == "rows" else right.mT.contiguous().maca().mT
            results = []
            for threads in (1, 2, 3, 5):
                torch.set_num_threads(threads)
                results.append((left @ b).cpu())
            assert all(torch.equal(results[0], other) for other in results), (m, k, n)
            x, y = left.cpu().double(), right.double()
            exact, magnitude = x @ y, x.abs() @ y.abs()
            assert float(((results[0] - exact).abs() / magnitude).max()) < 4 * EPS
    finally:
        torch.set_num_threads(before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="of the names of cases; none: all")
    parser.add_argument("--draws", type=int, default=2)
    arguments = parser.parse_args()
    print(f"{'':44} {'rms ours':>9} {'torch':>9} {'max ours':>9} {'torch':>9}   eps of the sum of magnitudes")
    short = 0
    for case in (*products(DEPTHS), *convolutions(CHANNELS), *attentions(LENGTHS)):
        if arguments.words and not any(word in case.name for word in arguments.words):
            continue
        for inputs in (*INPUTS, *(TURNS if case.name.startswith("3 x 3, C") else ())):
            ours, theirs = measure(case, inputs, arguments.draws)
            meets = meets_bar(ours, theirs, inputs)
            short += not meets
            label = f"{case.name}, {inputs}"
            print(
                f"{label:44} {ours.rms:9.2f} {theirs.rms:9.2f} {ours.largest:9.2f} {theirs.largest:9.2f}"
                f"{'' if meets else '  short of the bar'}",
                flush=True,
            )
    print(f"{short} short of the bar")
    return 1 if short else 0


if __name__ == "__main__":
    assert torch.maca.is_available()
    sys.exit(main())


@pytest.mark.parametrize(
    "sizes",
    [
        ((2, 3, 4), (4, 5)), ((2, 3, 4), (4,)), ((3, 4), (2, 4, 5)), ((0, 3, 4), (4, 5)), ((3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (1, 4, 1)), ((3, 1, 2, 4), (2, 4, 5)),
    ],
)  # fmt: skip
def test_folded_and_batched_products_into_a_given_result(
    sizes: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    a, b = (torch.randn(size) for size in sizes)
    expected = torch.matmul(a, b)
    for given in (torch.empty_like(expected), torch.empty(0), torch.empty(*expected.shape, 2)[..., 0]):
        for call in (torch.matmul, torch.linalg.matmul):
            host, ours = given.clone(), torch.empty_strided(given.size(), given.stride(), device="maca")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of a resized result
                call(a, b, out=host)
                assert call(a.maca(), b.maca(), out=ours) is ours
            torch.testing.assert_close(ours.cpu(), expected)
            if given.numel():
                assert ours.stride() == given.stride()
    for bad in (torch.empty_like(expected, dtype=torch.float64), torch.empty_like(expected).requires_grad_()):
        with pytest.raises(RuntimeError) as host_error:
            torch.matmul(a, b, out=bad)
        with pytest.raises(RuntimeError) as our_error:
            torch.matmul(a.maca(), b.maca(), out=bad.detach().maca().requires_grad_(bad.requires_grad))
        assert str(our_error.value).split("\n")[0] == str(host_error.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "strides",
    [
        ((0, 20, 1), (2, 65, 1)),
        ((2, 20, 1), (0, 65, 1)),
        ((3, 1, 129), (65, 65, 1)),
        ((20, 100, 1), (1, 5, 100)),
    ],
)
def test_batches_whose_members_share_elements(
    dtype: torch.dtype, strides: tuple[tuple[int, ...], ...]
) -> None:
    values = torch.arange(20000).remainder(7).sub(3).to(dtype)  # whole numbers: sums are exact
    a, b = (values.as_strided(n, s) for n, s in zip(((5, 129, 20), (5, 20, 65)), strides, strict=True))
    ours = (values.maca().as_strided(n.shape, n.stride()) for n in (a, b))
    assert torch.equal(torch.bmm(*ours).cpu(), torch.bmm(a.double(), b.double()).to(dtype))


def test_a_number_and_a_product_without_rows() -> None:
    number, matrix, vector = torch.full((1,), 3.0), torch.ones(0, 200), torch.ones(200)
    expected = torch.addmv(number, matrix, vector, beta=2)
    assert torch.equal(torch.addmv(number.maca(), matrix.maca(), vector.maca(), beta=2).cpu(), expected)
