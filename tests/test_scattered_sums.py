"""scatter_add and scatter_reduce of few and many lines: threads take lines, images of the target, or parts of it."""

from __future__ import annotations

import math

import pytest
import torch
from running import threads_restored

# sizes of the target, of the index, and the dimension
SHAPES = {
    "images": ((20,), (40_000,), 0),
    "images of two lines": ((2, 30), (2, 30_000), 1),
    "images across lines": ((30, 3), (20_000, 3), 0),
    "parts of the target": ((20_000,), (40_000,), 0),
    "many lines": ((64, 50), (64, 900), 1),
    "few terms": ((7,), (30,), 0),
    "nothing": ((7,), (0,), 0),
    "0-dim": ((), (), 0),
}  # fmt: skip
REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8)


def operands(shape: str, dtype: torch.dtype) -> tuple[torch.Tensor, int, torch.Tensor, torch.Tensor]:
    """The target, the dimension, the index, and what goes there: near 1, so that products of thousands stay finite."""
    size, terms, dim = SHAPES[shape]
    index = torch.randint(0, size[dim] if size else 1, terms)
    if dtype.is_floating_point:
        spread = 2.0 ** -(math.log2(max(index.numel(), 2)) / 2)
        return (
            (1 + torch.randn(size) * spread).to(dtype),
            dim,
            index,
            (1 + torch.randn(terms) * spread).to(dtype),
        )
    return torch.randint(0, 100, size).to(dtype), dim, index, torch.randint(0, 100, terms).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_reductions_of_few_and_many(shape: str, dtype: torch.dtype) -> None:
    target, dim, index, terms = operands(shape, dtype)
    for reduce in REDUCTIONS:
        for keeps in (True, False):
            ours = target.maca().scatter_reduce(dim, index.maca(), terms.maca(), reduce, include_self=keeps)
            exact = target.double() if dtype.is_floating_point else target
            wide = terms.to(exact.dtype)
            want = exact.scatter_reduce(dim, index, wide, reduce, include_self=keeps)
            # every term rounds once: the number of them in a place times the unit of the type sums are kept in
            most = max(1, index.numel() // max(1, target.numel())) * 4
            unit = last = 0.0
            if dtype.is_floating_point:
                unit = torch.finfo(torch.float32 if dtype is torch.bfloat16 else dtype).eps
                last = torch.finfo(dtype).eps
            torch.testing.assert_close(ours.cpu().to(exact.dtype), want, rtol=most * unit + last, atol=0)
    added = target.maca().scatter_add(dim, index.maca(), terms.maca())
    assert torch.equal(
        added.cpu(), target.maca().scatter_reduce(dim, index.maca(), terms.maca(), "sum").cpu()
    )


@pytest.mark.parametrize("shape", ["images", "parts of the target", "images across lines"])
def test_any_thread_count_gives_equal_bits(shape: str) -> None:
    target, dim, index, terms = operands(shape, torch.float32)
    for reduce in REDUCTIONS:
        given = []
        for count in (1, 2, 3):
            with threads_restored(count):
                given.append(target.maca().scatter_reduce(dim, index.maca(), terms.maca(), reduce).cpu())
        assert torch.equal(given[0], given[1]) and torch.equal(given[0], given[2]), reduce


def test_deterministic_sums_keep_the_index_order() -> None:
    generator = torch.Generator().manual_seed(5)
    index = torch.randint(0, 2000, (50_000,), generator=generator)
    terms = torch.rand(50_000, generator=generator) * 1e6
    torch.use_deterministic_algorithms(True)
    try:
        expected, found = (
            torch.zeros(2000, device=d).scatter_add(0, index.to(d), terms.to(d)) for d in ("cpu", "maca")
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("shape", ["images", "parts of the target"])
def test_zeros_keep_signs_where_nothing_goes(shape: str) -> None:
    target, dim, index, terms = operands(shape, torch.float32)
    index.clamp_(max=target.numel() - 3)
    target[-2], target[-1], terms[5], terms[70] = -0.0, math.inf, math.nan, -math.inf
    for reduce in REDUCTIONS:
        ours = target.maca().scatter_reduce(dim, index.maca(), terms.maca(), reduce).cpu()
        want = target.scatter_reduce(dim, index, terms, reduce)
        assert torch.equal(torch.signbit(ours[-2]), torch.tensor(True)) and ours[-1] == math.inf
        assert torch.equal(ours.isnan(), want.isnan()) and torch.equal(ours.isinf(), want.isinf()), reduce


def test_strided_targets_and_terms() -> None:
    for size, step in ((20, 3), (20_000, 2)):
        wide, index = torch.randn(size, step), torch.randint(0, size, (40_000,))
        terms = torch.randn(40_000, 2)[:, 1]
        ours, theirs = wide.maca(), wide.double()
        ours[:, 1].scatter_add_(0, index.maca(), terms.maca())
        theirs[:, 1].scatter_add_(0, index, terms.double())
        torch.testing.assert_close(ours.cpu().double(), theirs, rtol=0, atol=2e-3)
        assert torch.equal(ours[:, 0].cpu(), wide[:, 0]), "the columns beside it"


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool, torch.float16, torch.int32], ids=str)
def test_other_dtypes_in_images(dtype: torch.dtype) -> None:
    index = torch.randint(0, 20, (40_000,))
    target, terms = torch.randn(20).to(dtype), (torch.randn(40_000) * 2).to(dtype)
    for reduce in ("sum", "prod"):
        if reduce == "prod" and dtype is torch.complex64:
            terms = torch.polar(torch.ones(40_000), torch.randn(40_000))
        ours = target.maca().scatter_reduce(0, index.maca(), terms.maca(), reduce).cpu()
        if dtype is torch.float16:
            want = target.double().scatter_reduce(0, index, terms.double(), reduce).to(dtype)
        else:
            want = target.scatter_reduce(0, index, terms, reduce)
        close = 1e-3 if dtype.is_complex or dtype is torch.float16 else 0
        torch.testing.assert_close(ours, want, rtol=close, atol=close * 10)


@pytest.mark.parametrize("bad", [-1, 20])
def test_an_index_out_of_range(bad: int) -> None:
    for size in (20, 0):
        index = torch.randint(0, 20, (40_000,))
        index[39_000] = bad
        for reduce in REDUCTIONS:
            with pytest.raises(RuntimeError, match=r"out of bounds"):
                torch.zeros(size).scatter_reduce(0, index, torch.ones(40_000), reduce)
            with pytest.raises(RuntimeError, match=r"out of bounds"):
                torch.zeros(size).maca().scatter_reduce(0, index.maca(), torch.ones(40_000).maca(), reduce)
                torch.maca.synchronize()
