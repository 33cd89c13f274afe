"""Numbers rounded to a grid and left as floats, for training that a quantized model is to follow, and its gradients.

Each step is rounded as PyTorch's CPU rounds it, so the bits are the CPU's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from macatensor.operators.composites import Contradiction, composite

_EXACT = 1 << 24  # below it float32 holds all integers


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
    step = torch.tensor(scale, dtype=torch.float32)
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
    """Gradients of ``self``, the scale and the zero point."""
    if any(t.dtype is not torch.float32 for t in (grad, self, scale, zero_point)):
        raise Contradiction
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
    zero = _zero_of(zero_point, quant_min, quant_max, is_forward=False).to(torch.float32)
    of_x, of_scale, of_zero = _gradients(grad, self, scale[0], zero, quant_min, quant_max, grad_factor)
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
    operands = [
        t.to(torch.float32) if self.dtype is torch.bfloat16 else t for t in (grad, self, scale, zero_point)
    ]
    g, x, step, zero = operands
    if any(t.dtype is not torch.float32 for t in operands):
        raise Contradiction
    if g.shape != x.shape or not quant_min <= 0 <= quant_max or not 0 <= axis < x.dim():
        raise Contradiction
    if step.dim() != 1 or zero.shape != step.shape or step.numel() != x.shape[axis]:
        raise Contradiction
    if not x.numel():
        return self, scale, zero_point
    zero = zero.round().clamp(quant_min, quant_max)
    step, zero = _along(step, x, axis), _along(zero, x, axis)
    of_x, of_scale, of_zero = _gradients(g, x, step, zero, quant_min, quant_max, grad_factor)
    others = [d for d in range(x.dim()) if d != axis]
    return of_x, of_scale.sum(others), of_zero.sum(others)
