"""Random convolutions of one to three dimensions and their gradients, against the plain loops of float64.

    .venv/bin/python tests/fuzz/convolutions.py --programs 3000 --first 0
    .venv/bin/python tests/fuzz/convolutions.py --seed 17

Windows that reach far beyond the edge, or leap over most of an image, are where the kernels of libraries were wrong, PyTorch's
among them: it is not asked.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import programs
import torch
from programs import Line

from macatensor import maca

ROUNDINGS = (
    8  # that a result may be off, of its terms' magnitudes: chains of 64 terms, and the chains' sums in order
)
LARGEST = 1 << 18  # numbers of a result
CHANNELS = (1, 2, 3, 5, 7, 8, 13, 16, 17, 32, 40)  # of a group
GROUPS = (8, 16, 17, 33, 40)  # where each has few channels
SIDES = {1: (150,), 2: (24, 24), 3: (6, 9, 9)}  # at most, by dimensions
LONG = (100, 5, 5)  # the last one and the others of images that are mostly wide


@dataclass(frozen=True)
class Convolution:
    """Arguments of aten::convolution, drawn with a seed."""

    image: Sequence[int]
    weight: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int
    dtype: torch.dtype
    channels_last: bool
    threads: int

    @staticmethod
    def draw(seed: int) -> Convolution:
        draw = random.Random(seed)
        dims = draw.choice((1, 2, 2, 3))
        groups = draw.choice((1, 1, 1, 2, 3))
        into, out = draw.choice(CHANNELS), draw.choice(CHANNELS)
        if draw.random() < 0.2:
            groups, into = draw.choice(GROUPS), draw.choice((1, 1, 1, 2, 4))
            out = into
        most = SIDES[dims] if draw.random() < 0.6 else (*LONG[1:dims], LONG[0])
        kernel = [draw.choice((1, 2, 3, 5, 7) if most[d] > 4 else (1, 2, 3)) for d in range(dims)]
        stride = [draw.choice((1, 1, 2, 3, 5)) for _ in range(dims)]
        dilation = [draw.choice((1, 1, 2, 3, 7)) for _ in range(dims)]
        padding = [
            draw.choice((0, 1, 3, k // 2 * d, (k - 1) * d, k * d))
            for k, d in zip(kernel, dilation, strict=True)
        ]
        transposed = draw.random() < 0.3
        more = transposed and draw.random() < 0.3
        output_padding = [
            draw.randrange(max(s, d)) if more else 0 for s, d in zip(stride, dilation, strict=True)
        ]
        ends = (groups * into, out) if transposed else (groups * out, into)
        image = [draw.randint(1, 3), groups * into, *(draw.randint(1, side) for side in most)]
        dtype = draw.choice((*[torch.float32] * 6, torch.bfloat16, torch.float16))
        return Convolution(image, [*ends, *kernel], stride, padding, dilation, transposed, output_padding, groups, dtype,
                           draw.random() < 0.5, draw.randint(1, 3))  # fmt: skip

    @property
    def rest(self) -> tuple[object, ...]:
        return self.stride, self.padding, self.dilation, self.transposed, self.output_padding, self.groups

    def call(self) -> str:
        return f"results(image, weight, gradient, {', '.join(map(str, self.rest))})"

    def operand(self, sizes: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        t = maca(torch.randn(sizes, generator=generator).to(self.dtype))
        return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 and self.channels_last else t


def results(
    image: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor | None, *rest: object
) -> list[torch.Tensor]:
    """The convolution; with a gradient of it those of image, weight and bias."""
    if gradient is None:
        return [torch.ops.aten.convolution(image, weight, None, *rest)]
    bias = [weight.shape[1] * rest[-1] if rest[3] else weight.shape[0]]  # type: ignore[operator]
    wanted = [True, True, True]
    return list(torch.ops.aten.convolution_backward(gradient, image, weight, bias, *rest, wanted))


def run(seed: int, lines: list[Line] | None = None, mark: object = None) -> tuple[list[Line], str]:
    """The convolution of a seed, and in what it differs."""
    c = Convolution.draw(seed)
    line = Line("result", c.call())
    image, weight = torch.empty(c.image, device="meta"), torch.empty(c.weight, device="meta")
    try:
        sizes = torch.ops.aten.convolution(image, weight, None, *c.rest).shape
    except RuntimeError:  # nothing is left of so small an image
        return [line], ""
    if not 0 < sizes.numel() <= LARGEST:
        return [line], ""
    if mark is not None:
        mark(True, [line])  # type: ignore[operator]
    torch.set_num_threads(c.threads)
    generator = torch.Generator().manual_seed(seed)
    operands = [c.operand(of, generator) for of in (c.image, c.weight, sizes)]
    call = partial(_call, rest=c.rest)
    exact, sums = call([t.double() for t in operands]), call([t.double().abs() for t in operands])
    for name, got, want, total in zip(("the result", "the image's gradient", "the weight's", "the bias's"),
                                      call(operands), exact, sums, strict=True):  # fmt: skip
        info = torch.finfo(c.dtype)
        off = (got.cpu().double() - want.cpu()).abs()
        if not off.le(info.eps * (ROUNDINGS * total.cpu() + info.smallest_normal)).all():
            return [line], f"{name} is off by {off.max():.3g} of {c.dtype} on {c.threads} threads"
    return [line], ""


def _call(operands: Sequence[torch.Tensor], rest: Sequence[object]) -> list[torch.Tensor]:
    image, weight, gradient = operands
    return results(image, weight, None, *rest) + results(image, weight, gradient, *rest)


if __name__ == "__main__":
    sys.exit(programs.main(__doc__, __file__, run, programs.source_of("convolutions", "Convolution")))
