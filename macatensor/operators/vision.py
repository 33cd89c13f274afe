"""torchvision's operators of boxes on kernels of the library, and deformable convolution as a composite.

They are taken over on the autograd key and below it, so that they work beside torchvision's own library and without it.
Halves are computed in float32, as under torchvision's autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from macatensor.dispatch.errors import check_devices
from macatensor.dispatch.launcher import special
from macatensor.dispatch.named_kernels import launch
from macatensor.dispatch.rowless import with_a_next_way
from macatensor.dispatch.transfer import read_integer
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.double_backward import differentiated_once
from macatensor.runtime.meta import Meta, contiguous_meta

_HALVES = (torch.float16, torch.bfloat16)
_TWICE = "double backwards on {} not supported"


def _check_boxes(name: str, input: Tensor, rois: Tensor) -> None:
    if input.dim() != 4:
        raise RuntimeError(f"{name} expected a 4-D input; got {list(input.shape)}")
    if rois.dim() != 2 or rois.shape[1] != 5:
        raise RuntimeError(f"rois must have shape as Tensor[K, 5]; got {list(rois.shape)}")
    if input.dtype != rois.dtype:
        raise RuntimeError(
            f"Expected tensor for input to have the same type as tensor for rois; but type {input.dtype} does not equal "
            f"{rois.dtype}"
        )
    if not input.is_floating_point():
        raise NotImplementedError(f"\"{name}\" not implemented for '{input.dtype}'")


def _widened(*tensors: Tensor) -> list[Tensor]:
    return [t.float() if t.dtype in _HALVES else t for t in tensors]


def _in_float32(*tensors: Tensor) -> tuple[list[Tensor], torch.dtype]:
    """The operands in a dtype that the kernels have, and the dtype of the result."""
    return _widened(*tensors), tensors[0].dtype


def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Which boxes [N, 4] stay, int64, by falling scores [N]. Raises RuntimeError for other shapes or several dtypes."""
    if dets.dim() != 2:
        raise RuntimeError(f"boxes should be a 2d tensor, got {dets.dim()}D")
    if dets.shape[1] != 4:
        raise RuntimeError(f"boxes should have 4 elements in dimension 1, got {dets.shape[1]}")
    if scores.dim() != 1:
        raise RuntimeError(f"scores should be a 1d tensor, got {scores.dim()}D")
    if dets.shape[0] != scores.shape[0]:
        raise RuntimeError(
            "boxes and scores should have same number of elements in dimension 0, got "
            f"{dets.shape[0]} and {scores.shape[0]}"
        )
    if torch.is_autocast_enabled("maca"):
        dets, scores = _widened(dets, scores)
    if dets.dtype != scores.dtype:
        raise RuntimeError("dets should have the same type as scores")
    (boxes, values), _ = _in_float32(dets, scores)
    count = dets.shape[0]
    results: list[Meta | None] = [contiguous_meta((count,), torch.int64), contiguous_meta((1,), torch.int64)]
    kept, found = launch("vision_nms", [boxes, values], results, {"iou_threshold": float(iou_threshold)})
    return kept[: read_integer(found)]


def _launch_align(
    kernel: str, first: Tensor, rois: Tensor, size: Sequence[int],
    sensitive: bool, scale: float, ratio: int, aligned: bool,
) -> Tensor:  # fmt: skip
    """The result of the kernel, of this size and the dtype of ``first``, which is the input or its result's gradient."""
    operands, dtype = _in_float32(first, rois)
    attributes = {
        "spatial_scale": float(scale),
        "sampling_ratio": int(ratio),
        "aligned": bool(aligned),
        "position_sensitive": sensitive,
    }
    results: list[Meta | None] = [contiguous_meta(size, operands[0].dtype)]
    return launch(kernel, operands, results, attributes)[0].to(dtype)


def _bins_of(name: str, input: Tensor, height: int, width: int) -> int:
    if height < 1 or width < 1 or input.shape[1] % (height * width):
        raise RuntimeError(
            f"{name}: input channels must be a multiple of pooling height * pooling width; got {input.shape[1]}, "
            f"{height} and {width}"
        )
    return int(input.shape[1]) // (height * width)


def _mapping(rois: Tensor, channels: int, height: int, width: int) -> Tensor:
    """[K, C, h, w] in int32: which channel of the input each result is of."""
    every = torch.arange(channels * height * width, dtype=torch.int32, device=rois.device)
    return every.view(1, channels, height, width).repeat(rois.shape[0], 1, 1, 1)


def roi_align(
    input: Tensor, rois: Tensor, scale: float, height: int, width: int, ratio: int, aligned: bool
) -> Tensor:
    """[K, C, height, width] of input [N, C, H, W] and rois [K, 5]."""
    _check_boxes("roi_align", input, rois)
    size = rois.shape[0], input.shape[1], height, width
    return _launch_align("vision_roi_align", input, rois, size, False, scale, ratio, aligned)


def roi_align_backward(
    grad: Tensor, rois: Tensor, scale: float, height: int, width: int,
    n: int, c: int, h: int, w: int, ratio: int, aligned: bool,
) -> Tensor:  # fmt: skip
    """[N, C, H, W] of grad [K, C, height, width] and rois [K, 5]."""
    return _launch_align("vision_roi_align_backward", grad, rois, (n, c, h, w), False, scale, ratio, aligned)


def ps_roi_align(
    input: Tensor, rois: Tensor, scale: float, height: int, width: int, ratio: int
) -> tuple[Tensor, Tensor]:
    """[K, C / (height width), height, width] of input [N, C, H, W], each bin of channels of its own, and which."""
    _check_boxes("ps_roi_align", input, rois)
    channels = _bins_of("ps_roi_align", input, height, width)
    size = rois.shape[0], channels, height, width
    pooled = _launch_align("vision_roi_align", input, rois, size, True, scale, ratio, True)
    return pooled, _mapping(rois, channels, height, width)


def ps_roi_align_backward(
    grad: Tensor, rois: Tensor, mapping: Tensor, scale: float, height: int, width: int, ratio: int,
    n: int, c: int, h: int, w: int,
) -> Tensor:  # fmt: skip
    """[N, C, H, W] of grad [K, C / (height width), height, width]."""
    return _launch_align("vision_roi_align_backward", grad, rois, (n, c, h, w), True, scale, ratio, True)


def roi_pool(input: Tensor, rois: Tensor, scale: float, height: int, width: int) -> tuple[Tensor, Tensor]:
    """The largest of each bin [K, C, height, width] of input [N, C, H, W], and its place in the plane, int32, or -1."""
    _check_boxes("roi_pool", input, rois)
    operands, dtype = _in_float32(input, rois)
    size = rois.shape[0], input.shape[1], height, width
    results: list[Meta | None] = [
        contiguous_meta(size, operands[0].dtype),
        contiguous_meta(size, torch.int32),
    ]
    pooled, places = launch("vision_roi_pool", operands, results, {"spatial_scale": float(scale)})
    return pooled.to(dtype), places


def roi_pool_backward(
    grad: Tensor, rois: Tensor, argmax: Tensor, scale: float, height: int, width: int,
    n: int, c: int, h: int, w: int,
) -> Tensor:  # fmt: skip
    """[N, C, H, W] of grad [K, C, height, width] and the places of :func:`roi_pool`."""
    operands, dtype = _in_float32(grad, rois)
    results: list[Meta | None] = [contiguous_meta((n, c, h, w), operands[0].dtype)]
    return launch("vision_roi_pool_backward", [*operands, argmax], results, {})[0].to(dtype)


def ps_roi_pool(input: Tensor, rois: Tensor, scale: float, height: int, width: int) -> tuple[Tensor, Tensor]:
    """The mean of each bin [K, C / (height width), height, width], each of channels of its own, and which."""
    _check_boxes("ps_roi_pool", input, rois)
    channels = _bins_of("ps_roi_pool", input, height, width)
    operands, dtype = _in_float32(input, rois)
    results: list[Meta | None] = [
        contiguous_meta((rois.shape[0], channels, height, width), operands[0].dtype)
    ]
    pooled = launch("vision_ps_roi_pool", operands, results, {"spatial_scale": float(scale)})[0]
    return pooled.to(dtype), _mapping(rois, channels, height, width)


def ps_roi_pool_backward(
    grad: Tensor, rois: Tensor, mapping: Tensor, scale: float, height: int, width: int,
    n: int, c: int, h: int, w: int,
) -> Tensor:  # fmt: skip
    """[N, C, H, W] of grad [K, C / (height width), height, width]."""
    operands, dtype = _in_float32(grad, rois)
    results: list[Meta | None] = [contiguous_meta((n, c, h, w), operands[0].dtype)]
    attributes = {"spatial_scale": float(scale)}
    return launch("vision_ps_roi_pool_backward", operands, results, attributes)[0].to(dtype)


def deform_conv2d(
    input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor,
    stride_h: int, stride_w: int, pad_h: int, pad_w: int, dilation_h: int, dilation_w: int,
    groups: int, offset_groups: int, use_mask: bool,
) -> Tensor:  # fmt: skip
    """[N, C', H', W'] of input [N, C, H, W], weight [C', C / groups, kh, kw], offset [N, 2 G kh kw, H', W'] and mask
    [N, G kh kw, H', W']: bilinear samples beside the places of the kernel, then a matrix product. Raises RuntimeError for
    shapes that do not match."""
    batch, channels, height, width = input.shape
    outputs, _, kernel_h, kernel_w = weight.shape
    rows = (height + 2 * pad_h - dilation_h * (kernel_h - 1) - 1) // stride_h + 1
    columns = (width + 2 * pad_w - dilation_w * (kernel_w - 1) - 1) // stride_w + 1
    taps = kernel_h * kernel_w
    expected = (batch, 2 * offset_groups * taps, rows, columns)
    if tuple(offset.shape) != expected or channels % offset_groups or weight.shape[1] * groups != channels:
        raise RuntimeError(
            f"deform_conv2d got an offset of {list(offset.shape)} and a weight of {list(weight.shape)} for an input of "
            f"{list(input.shape)}; expected an offset of {list(expected)} and {groups} groups of its channels"
        )
    if batch == 0:
        return input.new_zeros(0, outputs, rows, columns)
    places = offset.view(batch, offset_groups, taps, 2, rows, columns)
    like: Any = {"device": input.device, "dtype": input.dtype}
    row = (torch.arange(kernel_h, **like) * dilation_h).view(-1, 1, 1, 1) + (
        torch.arange(rows, **like) * stride_h - pad_h
    ).view(1, 1, -1, 1)
    column = (torch.arange(kernel_w, **like) * dilation_w).view(1, -1, 1, 1) + (
        torch.arange(columns, **like) * stride_w - pad_w
    ).view(1, 1, 1, -1)
    y = row.expand(kernel_h, kernel_w, rows, columns).reshape(taps, rows, columns) + places[:, :, :, 0]
    x = column.expand(kernel_h, kernel_w, rows, columns).reshape(taps, rows, columns) + places[:, :, :, 1]
    # grid_sample counts from -1 to 1 between the outer edges of the image
    grid = torch.stack(((2 * x + 1) / width - 1, (2 * y + 1) / height - 1), -1)
    images = input.reshape(batch * offset_groups, channels // offset_groups, height, width)
    sampled = functional.grid_sample(
        images,
        grid.view(batch * offset_groups, taps * rows, columns, 2),
        "bilinear",
        "zeros",
        align_corners=False,
    ).reshape(batch, offset_groups, channels // offset_groups, taps, rows * columns)
    if use_mask:
        sampled = sampled * mask.reshape(batch, offset_groups, 1, taps, rows * columns)
    patches = sampled.reshape(batch, groups, channels // groups * taps, rows * columns)
    result = weight.reshape(groups, outputs // groups, -1) @ patches
    return result.reshape(batch, outputs, rows, columns) + bias.view(1, -1, 1, 1)


class _Context(FunctionCtx):
    saved_tensors: tuple[Tensor, ...]
    rest: tuple[Any, ...]


def _differentiable(name: str, ordered: Callable[..., tuple[Any, ...]]) -> Callable[..., Value]:
    """The operator with its gradient for the input. ``ordered(size of the input, *rest)``: what the backward operator is
    given after the gradient, the boxes and the second result."""
    operator = getattr(torch.ops.torchvision, name)
    backward_operator = getattr(torch.ops.torchvision, f"_{name}_backward")

    class _BoxesOnce(torch.autograd.Function):
        @staticmethod
        def forward(ctx: _Context, input: Tensor, rois: Tensor, *rest: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                result = operator(input, rois, *rest)
            ctx.rest = tuple(input.shape), rest
            if not isinstance(result, tuple):
                ctx.save_for_backward(rois)
                return result
            ctx.save_for_backward(rois, result[1])
            ctx.mark_non_differentiable(result[1])
            return result

        @staticmethod
        def backward(ctx: _Context, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
            rois, *mapping = ctx.saved_tensors
            size, rest = ctx.rest
            with torch._C._AutoDispatchBelowAutograd():
                found = backward_operator(grad, rois, *mapping, *ordered(size, *rest))
            (found_once,) = differentiated_once([found], [grad], _TWICE.format(name))
            return (found_once, None, *[None] * len(rest))

    apply: Callable[..., Any] = _BoxesOnce.apply

    def call(input: Tensor, rois: Tensor, *rest: Any) -> Any:
        if not torch.is_autocast_enabled("maca"):
            return apply(input, rois, *rest)
        with torch.amp.autocast("maca", enabled=False):
            result = apply(*_widened(input, rois), *rest)
        if isinstance(result, tuple):
            return (result[0].to(input.dtype), *result[1:])
        return result.to(input.dtype)

    return call


_OPERATORS: dict[str, Callable[..., Value]] = {
    "nms": nms,
    "roi_align": roi_align,
    "_roi_align_backward": roi_align_backward,
    "roi_pool": roi_pool,
    "_roi_pool_backward": roi_pool_backward,
    "ps_roi_align": ps_roi_align,
    "_ps_roi_align_backward": ps_roi_align_backward,
    "ps_roi_pool": ps_roi_pool,
    "_ps_roi_pool_backward": ps_roi_pool_backward,
    "deform_conv2d": deform_conv2d,
}


@special(*(f"torchvision.{name}.default" for name in _OPERATORS))
def _below_autograd(func: OpOverload) -> Launcher:
    # a device library of somebody else's may be without these kernels
    function = with_a_next_way(func, _OPERATORS[func._schema.name.partition("::")[2]])

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        check_devices(str(func), [*args, *(kwargs or {}).values()])
        return function(*args, **(kwargs or {}))

    return run


_library: torch.library.Library | None = None


def register() -> None:
    """Takes the gradients over, once torchvision's operators have their schemas."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("torchvision", "IMPL")
    orders: dict[str, Callable[..., tuple[Any, ...]]] = {
        "roi_align": lambda size, scale, h, w, ratio, aligned: (scale, h, w, *size, ratio, aligned),
        "roi_pool": lambda size, scale, h, w: (scale, h, w, *size),
        "ps_roi_align": lambda size, scale, h, w, ratio: (scale, h, w, ratio, *size),
        "ps_roi_pool": lambda size, scale, h, w: (scale, h, w, *size),
    }
    for name, ordered in orders.items():
        _library.impl(name, _differentiable(name, ordered), "AutogradPrivateUse1")
    _library.impl("deform_conv2d", deform_conv2d, "AutogradPrivateUse1")
