"""torchvision's operators on maca against plain C++ of torchvision's own algorithms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from macatensor.bench import plain_algorithms
from macatensor.bench.measure import Call
from macatensor.bench.plain_algorithms import Pair, against_plain
from macatensor.bench.result import Result

SIZE, RATIO, SCALE = 7, 2, 0.25  # of roi_align: bins each way, samples in each, elements over pixels


def boxes(count: int, extent: float) -> Tensor:
    """[count, 4] in a square image, each way up to a fifth of it."""
    corners, sizes = torch.rand(count, 2) * extent * 0.8, torch.rand(count, 2) * extent * 0.2
    return torch.cat((corners, corners + sizes), 1)


def nms(count: int) -> Callable[[bool], Pair]:
    """Boxes of an image of 400 pixels with random scores, of which those stay that share no half with a better one."""

    def make(quick: bool) -> Pair:
        from torchvision.ops import nms

        torch.manual_seed(0)
        found, scores = boxes(20 if quick else count, 400), torch.rand(20 if quick else count)
        return (
            partial(nms, found.to("maca"), scores.to("maca"), 0.5),
            partial(plain_algorithms.nms, found, scores, 0.5),
        )

    return make


def _images_and_boxes(quick: bool) -> tuple[Tensor, Tensor]:
    """2 x 256 x 50 x 50 features, and 200 boxes of the images that they are of."""
    torch.manual_seed(0)
    channels, count = (8, 5) if quick else (256, 200)
    image = torch.randint(2, (count, 1)).float()
    return torch.randn(2, channels, 50, 50), torch.cat((image, boxes(count, 50 / SCALE)), 1)


def _roi_align(images: Tensor, rois: Tensor) -> Tensor:
    from torchvision.ops import roi_align

    found: Tensor = roi_align(images, rois, SIZE, SCALE, RATIO, aligned=True)
    return found


def roi_align(quick: bool) -> Pair:
    """Bins of 7 x 7 with 2 x 2 samples each."""
    images, rois = _images_and_boxes(quick)
    return (
        _forward(_roi_align, images.to("maca"), rois.to("maca")),
        partial(plain_algorithms.roi_align, images, rois, SIZE, SCALE, RATIO),
    )


def roi_align_backward(quick: bool) -> Pair:
    """The gradient of the features."""
    images, rois = _images_and_boxes(quick)
    gradient = torch.randn(len(rois), images.shape[1], SIZE, SIZE)
    on_device = rois.to("maca")
    return (
        _gradient(lambda t: _roi_align(t, on_device), gradient, images),
        lambda: (plain_algorithms.roi_align_backward(gradient, rois, images.shape, SCALE, RATIO),),
    )


def _deformed(quick: bool) -> list[Tensor]:
    """Input 2 x 64 x 28 x 28, offsets, weight 64 x 64 x 3 x 3, bias and mask."""
    torch.manual_seed(0)
    channels, extent = (4, 7) if quick else (64, 28)
    return [
        torch.randn(2, channels, extent, extent),
        torch.randn(2, 18, extent, extent),
        torch.randn(channels, channels, 3, 3) / (3 * channels**0.5),
        torch.randn(channels),
        torch.rand(2, 9, extent, extent),
    ]


def _deform_conv2d(input: Tensor, offset: Tensor, weight: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    from torchvision.ops import deform_conv2d

    found: Tensor = deform_conv2d(input, offset, weight, bias, padding=1, mask=mask)
    return found


def deform_conv2d(quick: bool) -> Pair:
    """3 x 3 places, each moved by an offset and weighed by a mask."""
    operands = _deformed(quick)
    return (
        _forward(_deform_conv2d, *(t.to("maca") for t in operands)),
        partial(plain_algorithms.deform_conv2d, *operands),
    )


def deform_conv2d_backward(quick: bool) -> Pair:
    """The gradients of input, offsets, weight, bias and mask."""
    operands = _deformed(quick)
    input, offset, weight, _, mask = operands
    gradient = torch.randn_like(input)
    return (
        _gradient(_deform_conv2d, gradient, *operands),
        partial(plain_algorithms.deform_conv2d_backward, gradient, input, offset, weight, mask),
    )


def _forward(function: Callable[..., Tensor], *operands: Tensor) -> Call:
    def call() -> Tensor:
        with torch.inference_mode():
            return function(*operands)

    return call


def _gradient(function: Callable[..., Tensor], gradient: Tensor, *operands: Tensor) -> Call:
    leaves = [t.to("maca").requires_grad_() for t in operands]
    result, given = function(*leaves), gradient.to("maca")
    return lambda: torch.autograd.grad(result, leaves, given, retain_graph=True)


MAKERS: dict[str, Callable[[bool], Pair]] = {
    "vision.nms.1000": nms(1000),
    "vision.nms.4000": nms(4000),
    "vision.roi_align": roi_align,
    "vision.roi_align.backward": roi_align_backward,
    "vision.deform_conv2d": deform_conv2d,
    "vision.deform_conv2d.backward": deform_conv2d_backward,
}
CASES: dict[str, Callable[[int, bool], list[Result]]] = {
    name: against_plain(name, make) for name, make in MAKERS.items()
}
