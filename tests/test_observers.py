"""Grids that are chosen from what was seen, on the device against those of the host, bit by bit."""

from __future__ import annotations

import pytest
import torch
from torch.ao.quantization import FusedMovingAvgObsFakeQuantize, MovingAveragePerChannelMinMaxObserver

SIZE = 1.0, 1e-3, 1e-6, 1e-38, 0.0  # small ranges have the smallest step


def _calls(
    device: str, by_rows: bool, is_symmetric: bool, quant_min: int, quant_max: int
) -> list[torch.Tensor]:
    """What three calls of each size give and write: both signs, then one; the switches off and on."""
    drawn = torch.Generator().manual_seed(1)
    rows = 4 if by_rows else 1
    low, high = torch.full((rows,), torch.inf, device=device), torch.full((rows,), -torch.inf, device=device)
    scale, zero = torch.ones(rows, device=device), torch.zeros(rows, dtype=torch.int32, device=device)
    observes, quantizes = torch.tensor([1], device=device), torch.tensor([1], device=device)
    made = []
    for size in SIZE:
        for call, shift in enumerate((0.0, 0.5, -0.5)):
            x = ((torch.rand(4, 6, generator=drawn) - 0.5 + shift) * size).to(device).requires_grad_()
            result = torch.fused_moving_avg_obs_fake_quant(
                x,
                observes,
                quantizes,
                low,
                high,
                scale,
                zero,
                0.01,
                quant_min,
                quant_max,
                0,
                by_rows,
                is_symmetric,
            )
            result.sum().backward()
            assert x.grad is not None
            made += [t.clone().cpu() for t in (result.detach(), x.grad, low, high, scale, zero)]
            observes.fill_(call != 1)
            quantizes.fill_(call != 0)
        for end, start in ((low, torch.inf), (high, -torch.inf)):
            end.fill_(start)
    return made


@pytest.mark.parametrize("grid", [(0, 255), (-128, 127), (-8, 7), (0, 127)])
@pytest.mark.parametrize("is_symmetric", [False, True])
@pytest.mark.parametrize("by_rows", [False, True])
def test_observers_choose_the_hosts_grids(by_rows: bool, is_symmetric: bool, grid: tuple[int, int]) -> None:
    host, ours = (_calls(device, by_rows, is_symmetric, *grid) for device in ("cpu", "maca"))
    for want, got in zip(host, ours, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_rows_without_a_zero_point_are_refused() -> None:
    """A grid of one step has none where a range crosses zero."""
    for device in ("cpu", "maca"):
        with pytest.raises(RuntimeError, match="`zero_point` must be between"):
            _calls(device, True, True, 0, 1)


def test_fused_modules_observe_on_the_device() -> None:
    made = []
    for device in ("cpu", "maca"):
        torch.manual_seed(0)
        quantizes = FusedMovingAvgObsFakeQuantize(quant_min=0, quant_max=127)
        of_weight = FusedMovingAvgObsFakeQuantize(
            observer=MovingAveragePerChannelMinMaxObserver, quant_min=-128, quant_max=127, dtype=torch.qint8,
            qscheme=torch.per_channel_symmetric, ch_axis=0,
        )  # fmt: skip
        layer = torch.nn.Linear(6, 4)
        data = torch.randn(8, 6)
        quantizes, of_weight, layer = quantizes.to(device), of_weight.to(device), layer.to(device)
        result = torch.nn.functional.linear(quantizes(data.to(device)), of_weight(layer.weight), layer.bias)
        result.square().sum().backward()
        assert layer.weight.grad is not None
        made.append([t.detach().cpu() for t in (result, layer.weight.grad, quantizes.scale, of_weight.scale)])
    for want, got in zip(*made, strict=True):
        torch.testing.assert_close(got, want)  # their products differ in the last bits


def test_gradients_of_bfloat16_with_wide_parameters() -> None:
    made = []
    for device in ("cpu", "maca"):
        x = torch.linspace(-2, 2, 9).bfloat16().to(device).requires_grad_()
        scale, zero = (torch.tensor([n], device=device, requires_grad=True) for n in (0.1, 0.0))
        torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero, -10, 10, 1.0).sum().backward()
        made.append([t.grad.cpu() for t in (x, scale, zero) if t.grad is not None])
    for want, got in zip(*made, strict=True):
        torch.testing.assert_close(got, want)


def test_what_is_not_quantized_dequantizes_to_float32() -> None:
    for dtype in (torch.float16, torch.int64, torch.float32):
        x = torch.arange(3, device="maca").to(dtype)
        got = x.dequantize()
        assert got.dtype is torch.float32 and got.tolist() == [0.0, 1.0, 2.0]
