"""An operator that meets the same operands again gives the same bits, though by then its weight may be packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import macatensor

HALVES = [torch.bfloat16, torch.float16]
DTYPES = [torch.float32, *HALVES]


def right_factors(k: int, n: int, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Of the same shape, in rows, in columns, and as windows of larger matrices."""
    yield torch.randn(k, n).to(dtype).maca()
    yield torch.randn(n, k).to(dtype).maca().t()
    for gap, offset in ((16, 0), (3, 0), (5, 1067)):
        numbers = torch.randn((k + 9) * (n + 9) + (k + n) * gap + offset).to(dtype).maca()
        yield numbers.as_strided((k, n), (n + gap, 1), offset)
        yield numbers.as_strided((k, n), (1, k + gap), offset)


def assert_repeats(compute: Callable[[], torch.Tensor]) -> None:
    with torch.inference_mode():
        first = compute()
        for _ in range(3):
            assert torch.equal(compute().cpu(), first.cpu())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("m, n, k", [(7, 200, 300), (100, 130, 512), (257, 177, 1025), (300, 1400, 1100)])
def test_products(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    bias = torch.randn(n).to(dtype).maca()
    lefts = torch.randn(m, k).to(dtype).maca(), torch.randn(k, m).to(dtype).maca().t()
    for right in right_factors(k, n, dtype):
        for left in lefts:
            assert_repeats(lambda x=left, y=right: x @ y)  # type: ignore[misc]
            assert_repeats(lambda x=left, y=right: torch.addmm(bias, x, y))  # type: ignore[misc]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "image, weight, how",
    [
        ((8, 256, 2, 2), (130, 256, 3, 3), {"padding": 1}),
        ((2, 320, 16, 15), (330, 320, 1, 1), {}),
        ((8, 640, 4, 4), (420, 640, 1, 1), {}),
        ((2, 64, 12, 13), (96, 64, 3, 3), {"padding": 1}),
        ((2, 64, 12, 13), (96, 64, 3, 3), {"stride": 2}),
        ((2, 64, 12, 13), (96, 32, 5, 3), {"groups": 2, "dilation": 2}),
    ],
    ids=str,
)
def test_convolutions(
    image: tuple[int, ...], weight: tuple[int, ...], how: dict[str, Any], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x, w, b = (torch.randn(*size).to(dtype) for size in (image, weight, weight[:1]))
    for kind in (torch.contiguous_format, torch.channels_last):
        ours = x.maca(), w.maca().contiguous(memory_format=kind), b.maca()
        assert_repeats(lambda operands=ours: F.conv2d(*operands, **how))  # type: ignore[misc]
    if not how.get("groups"):
        turned = w.transpose(0, 1).contiguous().maca()
        assert_repeats(lambda: F.conv_transpose2d(x.maca(), turned, b.maca(), **how))


def test_something_was_packed() -> None:
    macatensor.reset_counters()
    w = torch.randn(512, 128).maca()  # no deeper: without AVX2 BLAS adds deep products, and packs nothing
    x = torch.randn(16, 128).maca()
    assert_repeats(lambda: F.linear(x, w))
    assert macatensor.counters()["weight_packs"] == 1
