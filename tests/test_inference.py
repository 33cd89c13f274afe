"""Operators that arrive whole under inference_mode: one launch where they are plain, PyTorch's results everywhere."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import macatensor
from macatensor import maca


def _launches(call):
    with torch.inference_mode():
        call()  # builds the plan
        before = macatensor.counters()["launches"]
        result = call()
        return result, macatensor.counters()["launches"] - before


def _agree(function, *operands, launches=None):
    """The same call on both devices: sizes, strides, dtype and values."""
    moved = [maca(x) if isinstance(x, torch.Tensor) else x for x in operands]
    with torch.inference_mode():
        expected = function(*operands)
    got, count = _launches(lambda: function(*moved))
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got.cpu(), expected, equal_nan=True)
    if launches is not None:
        assert count == launches


@pytest.mark.parametrize("lead", [(5,), (2, 3), (2, 1, 3), (1,)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_linear_is_one_launch(lead, bias, dtype):
    x, weight = torch.randn(*lead, 6, dtype=dtype), torch.randn(4, 6, dtype=dtype)
    _agree(F.linear, x, weight, torch.randn(4, dtype=dtype) if bias else None, launches=1)


def test_linear_of_special_values():
    x = torch.randn(3, 6)
    x[0, 1], x[1, 2] = torch.nan, torch.inf
    _agree(F.linear, x, torch.randn(4, 6), torch.randn(4), launches=1)


@pytest.mark.parametrize(
    "x",
    [torch.randn(6), torch.randn(3, 0, 6), torch.randn(3, 2, 6).transpose(0, 1), torch.randn(6, 5).t()],
    ids=["vector", "empty", "strided", "transposed"],
)
def test_linear_that_is_not_plain(x):
    _agree(F.linear, x, torch.randn(4, 6), torch.randn(4))
    _agree(F.linear, x, torch.randn(6, 4).t(), torch.randn(1))


def test_linear_of_packed_and_changed_weights():
    weight, x = maca(torch.randn(128, 256)), maca(torch.randn(3, 256))
    with torch.inference_mode():
        for _ in range(3):
            F.linear(x, weight)
        weight.mul_(2)
        # sums of 256 products
        torch.testing.assert_close(
            F.linear(x, weight).cpu(), F.linear(x.cpu(), weight.cpu()), rtol=1e-4, atol=1e-4
        )


def test_linear_refuses_as_pytorch_does():
    with torch.inference_mode():
        for weight in (torch.randn(4, 5), torch.randn(4, 6, dtype=torch.float64)):
            with pytest.raises(RuntimeError) as expected:
                F.linear(torch.randn(3, 6), weight)
            with pytest.raises(RuntimeError) as got:
                F.linear(maca(torch.randn(3, 6)), maca(weight))
            assert str(got.value).splitlines()[0] == str(expected.value).splitlines()[0]


@pytest.mark.parametrize("shape", [(5, 4), (2, 4, 3), (2, 4, 3, 5), (1, 4, 1, 1), (0, 4)])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm(shape, affine):
    kind = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}[len(shape)]
    norm = kind(4, affine=affine).eval()
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    x = torch.randn(shape)
    if x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        expected = norm(x)
    norm = norm.to("maca")
    got, count = _launches(lambda: norm(maca(x)))
    torch.testing.assert_close(got.cpu(), expected)
    assert got.stride() == expected.stride()
    assert count == 1 or not affine or x.numel() == 0


def test_convolution():
    x = torch.randn(2, 4, 6, 6).contiguous(memory_format=torch.channels_last)
    _agree(F.conv2d, x, torch.randn(3, 4, 3, 3), torch.randn(3))
    _agree(lambda x, w: F.conv2d(x, w, None, 2, 1, 2, 2), x, torch.randn(6, 2, 3, 3))
    _agree(lambda x, w: F.conv2d(x, w, padding="same"), x, torch.randn(3, 4, 3, 3))
    with torch.inference_mode():
        x, weight = torch.randn(4, 6, 6), torch.randn(3, 4, 3, 3)
        torch.testing.assert_close(F.conv2d(maca(x), maca(weight)).cpu(), F.conv2d(x, weight))


def test_reshape():
    for size in ((6, 4), (-1,), (3, -1), (2, 3, 4)):
        _agree(lambda x, size=size: x.reshape(size), torch.randn(2, 3, 4), launches=0)
        _agree(lambda x, size=size: x.reshape(size), torch.randn(4, 3, 2).transpose(0, 2))
    with torch.inference_mode():
        x = maca(torch.zeros(2, 3))
        x.reshape(6)[0] = 1  # a view
        assert x[0, 0].item() == 1
        with pytest.raises(RuntimeError, match="invalid for input of size 6"):
            x.reshape(4)
