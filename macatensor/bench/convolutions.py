"""Convolutions of every kind, forward and with the gradients of image and weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F

from macatensor.bench.case import Case, Operands


@dataclass(frozen=True)
class Kind:
    """A convolution of an image (N, C, spatial...) with a weight (output, C / groups, kernel...), or transposed with one of
    (C, output, kernel...)."""

    image: tuple[int, ...]
    weight: tuple[int, ...]
    options: Mapping[str, int]  # of the function of torch.nn.functional
    is_transposed: bool = False

    def case(self, name: str, quick: bool, is_backward: bool) -> Case:
        image = self.image
        if quick:  # one image, a fourth of each side
            image = (1, image[1], *(max(side // 4, 7) for side in image[2:]))
        name_of = f"conv{'_transpose' if self.is_transposed else ''}{len(image) - 2}d"
        function = partial(_of_two, function=getattr(F, name_of), options=self.options)
        operands = _made(image, self.weight)
        with torch.device("meta"):
            result = function(torch.empty(image), torch.empty(self.weight))
        # each element of the transposed one's image, of the other's result, meets a whole filter
        met = math.prod(image) if self.is_transposed else result.numel()
        flops = 2 * met * math.prod(self.weight[1:])
        way = ".backward" if is_backward else ""
        return Case(f"conv.{name}{way}", function, operands, 0.9, flops=flops * (2 if is_backward else 1),
                    is_backward=is_backward)  # fmt: skip


def _of_two(
    image: torch.Tensor,
    weight: torch.Tensor,
    function: Callable[..., torch.Tensor],
    options: Mapping[str, int],
) -> torch.Tensor:
    return function(image, weight, **options)


def _made(image: tuple[int, ...], weight: tuple[int, ...]) -> Callable[[], Operands]:
    return lambda: (torch.rand(image), torch.rand(weight))


KINDS = {
    "stem7x7": Kind((4, 3, 224, 224), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "depthwise3x3": Kind((8, 128, 28, 28), (128, 1, 3, 3), {"padding": 1, "groups": 128}),
    "depthwise3x3stride2": Kind((8, 96, 56, 56), (96, 1, 3, 3), {"stride": 2, "padding": 1, "groups": 96}),
    "depthwise5x5": Kind((8, 240, 14, 14), (240, 1, 5, 5), {"padding": 2, "groups": 240}),
    "depthwise7x7": Kind((4, 192, 28, 28), (192, 1, 7, 7), {"padding": 3, "groups": 192}),
    "grouped3x3": Kind((8, 128, 28, 28), (128, 4, 3, 3), {"padding": 1, "groups": 32}),
    "dilated3x3": Kind((8, 128, 28, 28), (128, 128, 3, 3), {"padding": 2, "dilation": 2}),
    "3d3x3x3": Kind((2, 32, 8, 28, 28), (32, 32, 3, 3, 3), {"padding": 1}),
    "1d5": Kind((8, 128, 1024), (128, 128, 5), {"padding": 2}),
    "transposed4x4": Kind((8, 128, 14, 14), (128, 64, 4, 4), {"stride": 2, "padding": 1}, is_transposed=True),
    "transposed2x2": Kind((8, 128, 28, 28), (128, 64, 2, 2), {"stride": 2}, is_transposed=True),
}


def of_resnets(quick: bool) -> Iterator[Case]:
    """Those of a ResNet, weights unchanged, NHWC on maca and either layout for native PyTorch."""
    for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7)):
        width, batch = (channels // 16, 1) if quick else (channels, 8)
        for side in (1, 3):
            kind = Kind((batch, width, size, size), (width, width, side, side), {"padding": side // 2})
            yield replace(kind.case(f"{channels}x{side}x{side}", False, False), bar=1.0)


def conv(quick: bool) -> Iterator[Case]:
    """A ResNet's, and of the other kinds each forward and both gradients."""
    yield from of_resnets(quick)
    for name, kind in KINDS.items():
        for is_backward in (False, True):
            yield kind.case(name, quick, is_backward)
