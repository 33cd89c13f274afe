"""Rules that stand for a meta kernel of PyTorch's say what it says."""

from __future__ import annotations

import random

import pytest
import torch

from macatensor.dispatch.meta_rules import META_RULES


def _operand(size: list[int], draw: random.Random) -> torch.Tensor:
    """A meta tensor of ``size``: row-major, transposed, channels_last, or with odd strides where a size is 1."""
    order = draw.choice([list(range(len(size))), draw.sample(range(len(size)), len(size))])
    tensor = torch.empty([size[i] for i in order], device="meta").permute(
        [order.index(i) for i in range(len(size))]
    )
    if len(size) in (4, 5) and draw.random() < 0.3:
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        tensor = tensor.contiguous(memory_format=formats[len(size)])
    strides = [
        draw.choice([1, s, 7]) if n == 1 and draw.random() < 0.3 else s for n, s in zip(size, tensor.stride())
    ]
    return torch.empty_strided(
        size, strides, device="meta", dtype=draw.choice([torch.float32] * 9 + [torch.float16])
    )


def test_cat_joins_as_pytorch_does():
    draw = random.Random(0)
    for _ in range(3000):
        rank = draw.randint(1, 5)
        dim = draw.randrange(-rank, rank)
        shared = [draw.choice([0, 1, 1, 2, 3, 3]) for _ in range(rank)]
        sizes = [[*shared] for _ in range(draw.randint(1, 3))]
        for size in sizes:
            size[dim] = draw.choice([0, 1, 2, 3, 3])
        tensors = [_operand(size, draw) for size in sizes]
        got, expected = META_RULES["cat"](tensors, dim), torch.cat(tensors, dim)
        on_host = torch.cat([torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in tensors], dim)
        told = [(t.shape, t.stride(), t.dtype) for t in tensors], dim
        assert got.shape == expected.shape == on_host.shape, told
        assert got.stride() == expected.stride() and got.dtype == expected.dtype == on_host.dtype, told


def test_cat_refuses_as_pytorch_does():
    a, b = torch.empty(2, 3, device="meta"), torch.empty(3, 3, device="meta")
    for tensors, dim in (([a, b], 1), ([a, b[0]], 0), ([a, a], 2), ([a, a], -3)):
        with pytest.raises((RuntimeError, IndexError)) as expected:
            torch.cat(tensors, dim)
        with pytest.raises(type(expected.value)) as got:
            META_RULES["cat"](tensors, dim)
        assert str(got.value) == str(expected.value)


def test_nansum_over_no_dimension_is_over_all() -> None:
    x = torch.tensor([[1.0, torch.nan], [2.0, 3.0]])
    for options in ({}, {"keepdim": True}, {"dtype": torch.float64}):
        got, want = torch.nansum(x.maca(), [], **options), torch.nansum(x, [], **options)
        assert torch.equal(got.cpu(), want) and got.dtype is want.dtype
