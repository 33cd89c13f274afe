"""Numbers rounded to a grid and left as floats, for training that a quantized model is to follow, and its gradients.

Each step is rounded as PyTorch's CPU rounds it, so the bits are the CPU's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from macatensor.dispatch.errors import scalar_type
from macatensor.operators.composites import Contradiction, composite

_EXACT = 1 << 24  # below it float32 holds all integers
_SMALL_SCALE = float(torch.tensor(6.1e-5, device="cpu"))  # observers choose none below it


def _computed_in(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)


def _check(x: Tensor, quant_min: int, quant_max: int) -> None:
    if not x.is_floating_point() or quant_min > quant_max:
        raise Contradiction


def _inside(q: Tensor, quant_min: int, quant_max: int) -> Tensor:
    return (q >= quant_min) & (q <= quant_max)


def _clamped(q: Tensor, quant_min: int, quant_max: int) -> Tensor:
    """NaN becomes ``quant_min``."""
    return q.nan_to_num(nan=float(quant_min)).clamp(quant_min, quant_max)


@composite
def fake_quantize(
    self: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """``self`` on the grid of ``scale``, and a mask of what lies in its range."""
    _check(self, quant_min, quant_max)
    if not quant_min <= zero_point <= quant_max:
        raise Contradiction
    step = torch.tensor(scale, dtype=torch.float32, device="cpu")
    q = (_computed_in(self) * float(step.reciprocal())).round() + zero_point
    mask = _inside(q, quant_min, quant_max)
    if max(abs(quant_min), abs(quant_max)) >= _EXACT:
        q = q.to(torch.float64)
    steps = _clamped(q, quant_min, quant_max) - zero_point
    return (steps.to(torch.float32) * float(step)).to(self.dtype), mask


@composite
def fake_quantize_by_tensors(
    self: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    fake_quant_enabled: Tensor,
    quant_min: int,
    quant_max: int,
) -> tuple[Tensor, Tensor]:
    """:func:`fake_quantize` with its numbers in tensors of one element, which are not read, and a switch: where it is 0, a
    copy of ``self``."""
    _check(self, quant_min, quant_max)
    if scale.numel() != 1 or zero_point.numel() != 1 or fake_quant_enabled.numel() != 1:
        raise Contradiction
    step, switch = scale.reshape(()).to(torch.float32), fake_quant_enabled.reshape(()).to(torch.bool)
    zero = zero_point.reshape(()).to(torch.int32)
    x = _computed_in(self)
    q = (x * step.reciprocal()).round() + zero.to(torch.float32)
    mask = _inside(q, quant_min, quant_max) | ~switch
    steps = _clamped(q.to(torch.float64), quant_min, quant_max) - zero
    return torch.where(switch, (steps.to(torch.float32) * step).to(self.dtype), self), mask


def _along(parameters: Tensor, x: Tensor, axis: int) -> Tensor:
    """A vector as a tensor that broadcasts along one dimension of ``x``."""
    return parameters.reshape([-1 if d == axis else 1 for d in range(x.dim())])


@composite
def fake_quantize_channels(
    self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """:func:`fake_quantize` with a scale and a zero point for each place along ``axis``."""
    _check(self, quant_min, quant_max)
    if scale.dim() != 1 or zero_point.shape != scale.shape or not 0 <= axis < self.dim():
        raise Contradiction
    if scale.numel() != self.shape[axis] or scale.dtype not in (torch.float32, torch.bfloat16):
        raise Contradiction
    if zero_point.dtype not in (torch.int32, torch.float32, torch.float16):
        raise Contradiction
    if not zero_point.is_floating_point():
        if not zero_point.numel():
            raise Contradiction
        lowest, highest = torch.stack(torch.aminmax(zero_point)).tolist()
        if lowest < quant_min or highest > quant_max:
            raise RuntimeError("`zero_point` must be between `quant_min` and `quant_max`.")
    step, zero = _along(scale, self, axis).to(torch.float32), _along(zero_point, self, axis)
    q = _computed_in(self) * step.reciprocal()
    # where zero points are no integers, they take part in the rounding
    q = (q + zero.to(torch.float32)).round() if zero.is_floating_point() else q.round() + zero
    q = q.to(torch.int64)
    steps = q.clamp(quant_min, quant_max).to(torch.float64) - zero
    return (steps * step).to(self.dtype), _inside(q, quant_min, quant_max)


def _zero_of(zero_point: Tensor, quant_min: int, quant_max: int, is_forward: bool) -> Tensor:
    """The zero point that was learnt as an integer of the grid: the nearest, in the backward cut off after adding a half."""
    first = zero_point[0].to(torch.float32)
    rounded = first.round() if is_forward else first + 0.5
    return rounded.clamp(quant_min, quant_max).to(torch.int64)


@composite
def learnable_fake_quantize(
    self: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Tensor:
    """:func:`fake_quantize` by parameters that are learnt."""
    if scale.dim() == 0 or zero_point.dim() == 0 or not (scale.numel() and zero_point.numel()):
        raise Contradiction
    zero = _zero_of(zero_point, quant_min, quant_max, is_forward=True)
    enabled = torch.ones((), dtype=torch.bool, device=self.device)
    by_tensors = torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
    result: Tensor = by_tensors(self, scale[0], zero, enabled, quant_min, quant_max)[0]
    return result


def _in_float32(grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor) -> list[Tensor]:
    """All of them; of bfloat16 ``x`` they may have been in other dtypes."""
    operands = [t.to(torch.float32) if x.dtype is torch.bfloat16 else t for t in (grad, x, scale, zero_point)]
    if any(t.dtype is not torch.float32 for t in operands):
        raise Contradiction
    return operands


def _gradients(
    grad: Tensor, x: Tensor, scale: Tensor, zero: Tensor, quant_min: int, quant_max: int, factor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each element: the gradients of x, of the scale and of the zero point. ``scale`` and ``zero`` are float32."""
    inverse = scale.reciprocal()
    q = (zero + x * inverse).round().to(torch.int64)
    inside = _inside(q, quant_min, quant_max)
    on_grid = (q.clamp(quant_min, quant_max).to(torch.float32) - zero) * scale
    beyond = torch.where(q < quant_min, grad * (quant_min - zero), grad * (quant_max - zero))
    of_scale = torch.where(inside, grad * (on_grid - x) * inverse, beyond) * factor
    of_zero = torch.where(inside, 0, grad * -1 * scale * factor)
    return grad * inside, of_scale, of_zero


@composite
def learnable_fake_quantize_backward(
    grad: Tensor,
    self: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``self``, the scale and the zero point, in float32."""
    operands = _in_float32(grad, self, scale, zero_point)
    if (
        grad.shape != self.shape
        or not quant_min <= 0 <= quant_max
        or scale.dim() == 0
        or zero_point.dim() == 0
    ):
        raise Contradiction
    if not (scale.numel() and zero_point.numel()):
        raise Contradiction
    if not self.numel():
        return self, scale, zero_point
    g, x, step, zero = operands
    zero = _zero_of(zero, quant_min, quant_max, is_forward=False).to(torch.float32)
    of_x, of_scale, of_zero = _gradients(g, x, step[0], zero, quant_min, quant_max, grad_factor)
    return of_x, of_scale.sum().unsqueeze(0), of_zero.sum().unsqueeze(0)


@composite
def learnable_fake_quantize_channels(
    self: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Tensor:
    """:func:`fake_quantize_channels` by parameters that are learnt."""
    if quant_min > quant_max:
        raise Contradiction
    zero = zero_point.round().clamp(quant_min, quant_max).to(torch.int32)
    by_channels = torch.ops.aten.fake_quantize_per_channel_affine_cachemask.default
    result: Tensor = by_channels(self, scale, zero, axis, quant_min, quant_max)[0]
    return result


@composite
def learnable_fake_quantize_channels_backward(
    grad: Tensor,
    self: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``self``, the scales and the zero points, in float32."""
    g, x, step, zero = _in_float32(grad, self, scale, zero_point)
    if g.shape != x.shape or not quant_min <= 0 <= quant_max or not 0 <= axis < x.dim():
        raise Contradiction
    if step.dim() != 1 or zero.shape != step.shape or step.numel() != x.shape[axis] or not step.numel():
        raise Contradiction
    if not x.numel():
        return self, scale, zero_point
    zero = zero.round().clamp(quant_min, quant_max)
    step, zero = _along(step, x, axis), _along(zero, x, axis)
    of_x, of_scale, of_zero = _gradients(g, x, step, zero, quant_min, quant_max, grad_factor)
    others = [d for d in range(x.dim()) if d != axis]
    return of_x, of_scale.sum(others), of_zero.sum(others)


def _average(observed: Tensor, running: Tensor, part: float) -> Tensor:
    """``running`` a part of the way to what was observed; there where nothing was before."""
    return torch.where(running.isinf(), observed, running + part * (observed - running))


def _grid(
    low: Tensor, high: Tensor, quant_min: int, quant_max: int, is_symmetric: bool
) -> tuple[Tensor, Tensor]:
    """Scales, in float32, and zero points of grids that hold 0 and what lies between ``low`` and ``high``; FBGEMM's."""
    steps = quant_max - quant_min
    if is_symmetric:
        crosses = (low < 0) & (high > 0)
        least, most = -(steps // 2 + 1), steps // 2
        step = torch.maximum((low / least).abs(), (high / most).abs())
        low, high = torch.where(crosses, step * least, low), torch.where(crosses, step * most, high)
    low, high = low.clamp(max=0), high.clamp(min=0)
    scale = ((high.to(torch.float64) - low) / steps).to(torch.float32)
    scale = torch.where((scale == 0) | scale.reciprocal().isinf(), 0.1, scale)
    amplifier = torch.where(scale < _SMALL_SCALE, _SMALL_SCALE / scale, 1.0)
    low, high = (
        torch.where((scale < _SMALL_SCALE) & (other == 0), sign * _SMALL_SCALE * steps, end * amplifier)
        for end, other, sign in ((low, high, -1), (high, low, 1))
    )
    scale = scale.clamp(min=_SMALL_SCALE)
    below, above = (end.to(torch.float64) / scale for end in (low, high))
    is_nearer_below = abs(quant_min) + below.abs() < abs(quant_max) + above.abs()
    zero = torch.where(is_nearer_below, quant_min - below, quant_max - above)
    if is_symmetric:
        zero = torch.where((low < 0) & (high > 0), (quant_min + quant_max) / 2, zero)
    return scale, zero.clamp(quant_min, quant_max).round()


@composite
def observed_fake_quantize(
    self: Tensor,
    observer_on: Tensor,
    fake_quant_on: Tensor,
    running_min: Tensor,
    running_max: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[Tensor, Tensor]:
    """:func:`fake_quantize` by a grid of the averages, over calls, of the least and the largest element, of all or along
    dimension 0. Both switches stay on the device; each call writes averages, ``scale`` and ``zero_point`` where they are on."""
    _check(self, quant_min, quant_max)
    written = running_min, running_max, scale
    for t in (self, *written):
        if t.dtype is not torch.float32:
            raise RuntimeError(f"expected scalar type Float but found {scalar_type(t.dtype)}")
    if observer_on.numel() != 1 or fake_quant_on.numel() != 1 or not self.numel():
        raise Contradiction
    if per_row_fake_quant and ch_axis != 0:
        raise RuntimeError(
            "Per-channel FakeQuant in fused_moving_avg_obs_fake_quant is only supported on axis == 0"
        )
    rows = self.flatten(1) if per_row_fake_quant else self.reshape(1, -1)
    if per_row_fake_quant and not running_min.numel():  # as modules begin
        for t, start in ((running_min, math.inf), (running_max, -math.inf), (scale, 1.0), (zero_point, 0)):
            t.resize_(len(rows)).fill_(start)
    if any(t.numel() != len(rows) for t in (*written, zero_point)):
        raise Contradiction
    observes, quantizes = (t.reshape(()).to(torch.bool) for t in (observer_on, fake_quant_on))
    for running, found in zip((running_min, running_max), torch.aminmax(rows, dim=1)):
        observed = _average(found.reshape(running.shape), running, averaging_const)
        running.copy_(torch.where(observes, observed, running))
    step, zero = _grid(running_min, running_max, quant_min, quant_max, symmetric_quant)
    for held, made in ((scale, step), (zero_point, zero)):
        held.copy_(torch.where(quantizes, made.to(held.dtype).reshape(held.shape), held))
    aten = torch.ops.aten
    if per_row_fake_quant:
        by_rows = aten.fake_quantize_per_channel_affine_cachemask.default
        result, mask = by_rows(self, scale, zero_point, ch_axis, quant_min, quant_max)
        return torch.where(quantizes, result, self), mask | ~quantizes
    by_tensors = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
    result, mask = by_tensors(self, scale, zero_point, quantizes, quant_min, quant_max)
    return result, mask


@composite
def dequantized_float(self: Tensor) -> Tensor:
    """Of a tensor that is not quantized: its numbers in float32."""
    return self.to(torch.float32)
