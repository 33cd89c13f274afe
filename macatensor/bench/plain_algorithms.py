"""``plain_algorithms.cpp`` on tensors of the host: PyTorch's and torchvision's own algorithms, compiled where they run."""

from __future__ import annotations

import ctypes
import functools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from macatensor.bench.measure import Call, counting_fallbacks, interleave
from macatensor.bench.result import Result
from macatensor.cpp_extension.compiling import Build, compile_into

BAR = 1.0
Pair = tuple[Call, Call]  # a call on maca and the plain one, which give the same


def against_plain(case: str, make: Callable[[bool], Pair]) -> Callable[[int, bool], list[Result]]:
    """Measures the pair that ``make`` makes, of tiny operands if asked; nothing but a remark where it cannot be made: without
    a C++ compiler or a package. Raises AssertionError where both do not give the same values."""

    def run(rounds: int, quick: bool) -> list[Result]:
        try:
            compiled()
            ours, plain = make(quick)
        except (_NoCompiler, ModuleNotFoundError) as error:
            print(f"{case}: not measured: {error}", file=sys.stderr)
            return []
        found, fallbacks = counting_fallbacks(ours)
        torch.testing.assert_close(
            found,
            plain(),
            rtol=1e-4,
            atol=1e-4,
            check_device=False,
            check_stride=False,
            msg=f"{case}: {{}}".format,
        )
        contenders = {"maca": ours, "plain C++": plain}
        timing = interleave(contenders, rounds, 0.001 if quick else 0.3, settle=0.0 if quick else 0.03)
        return [
            Result(
                case, "plain C++", timing.ratio("maca", "plain C++"), BAR, timing.seconds("plain C++"),
                timing.seconds("maca"), fallbacks=fallbacks, spread=timing.spread("maca", "plain C++"),
                middle=timing.middle("maca", "plain C++"),
            )
        ]  # fmt: skip

    return run


class _NoCompiler(RuntimeError):
    """The machine has no C++ compiler."""


@functools.cache
def compiled() -> ctypes.CDLL:
    """The library. PyTorch's OpenMP, loaded before, serves it too, with as many threads."""
    flags = ("-march=native", "-fopenmp")
    build = Build("plain_algorithms", (Path(__file__).with_suffix(".cpp"),), flags, flags)
    try:
        build.compiler(is_cpp=True)
    except RuntimeError as error:
        raise _NoCompiler(str(error)) from None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plain_algorithms.so"
        compile_into(build, path)
        return ctypes.CDLL(str(path))


def _call(name: str, *arguments: Tensor | int | float | ctypes.Structure) -> int:
    """Numbers are of 64 bits."""

    def passed(argument: Tensor | int | float | ctypes.Structure) -> object:
        if isinstance(argument, Tensor):
            return ctypes.c_void_p(argument.data_ptr())
        if isinstance(argument, ctypes.Structure):
            return ctypes.byref(argument)
        return ctypes.c_int64(argument) if isinstance(argument, int) else ctypes.c_double(argument)

    function = getattr(compiled(), name)
    function.restype = ctypes.c_int64
    return int(function(*map(passed, arguments)))


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Which boxes stay, by falling scores."""
    order = scores.sort(stable=True, descending=True).indices
    kept = torch.empty_like(order)
    return kept[: _call("nms", boxes, order, kept, len(order), threshold)]


def roi_align(images: Tensor, boxes: Tensor, size: int, scale: float, ratio: int) -> Tensor:
    """[boxes, C, size, size], where the corners of a box are half an element to the left and up."""
    channels, height, width = images.shape[1:]
    pooled = images.new_empty(len(boxes), channels, size, size)
    _call("roi_align", images, boxes, pooled, len(boxes), channels, height, width, size, ratio, scale)
    return pooled


def roi_align_backward(
    gradient: Tensor, boxes: Tensor, shape: torch.Size, scale: float, ratio: int
) -> Tensor:
    """The gradient of the images."""
    count, channels, size, _ = gradient.shape
    images = gradient.new_zeros(shape)
    _call("roi_align_backward", gradient, boxes, images, count, channels, *shape[2:], size, ratio, scale)
    return images


class _Deformation(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("batch", "channels", "height", "width", "kernel", "padding", "rows", "columns")
    ]


def _patches(input: Tensor, offset: Tensor, mask: Tensor, kernel: int) -> tuple[Tensor, _Deformation]:
    how = _Deformation(*input.shape, kernel, kernel // 2, *offset.shape[2:])
    patches = input.new_empty(input.shape[1] * kernel**2, input.shape[0] * offset[0, 0].numel())
    _call("deformed_patches", input, offset, mask, patches, how)
    return patches, how


def deform_conv2d(input: Tensor, offset: Tensor, weight: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """Of stride 1 with half the kernel as padding: samples of all images beside each other, then a product."""
    batch, _, rows, columns = offset.shape
    patches, _ = _patches(input, offset, mask, weight.shape[2])
    product = (weight.flatten(1) @ patches).view(-1, batch, rows, columns)
    return product.transpose(0, 1).contiguous().add_(bias.view(1, -1, 1, 1))


def deform_conv2d_backward(
    gradient: Tensor, input: Tensor, offset: Tensor, weight: Tensor, mask: Tensor
) -> tuple[Tensor, ...]:
    """The gradients of input, offset, weight, bias and mask."""
    patches, how = _patches(input, offset, mask, weight.shape[2])
    rows = gradient.transpose(0, 1).flatten(1)
    of_patches = weight.flatten(1).t() @ rows
    of_input, of_offset, of_mask = torch.zeros_like(input), torch.empty_like(offset), torch.empty_like(mask)
    _call("deformed_input_gradient", of_patches, offset, mask, of_input, how)
    _call("deformed_place_gradients", of_patches, input, offset, mask, of_offset, of_mask, how)
    of_weight = (rows @ patches.t()).view_as(weight)
    return of_input, of_offset, of_weight, gradient.sum((0, 2, 3)), of_mask


def paged_attention(
    query: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor, scale: float
) -> Tensor:
    """Of each sequence's last token, over its blocks of the caches."""
    result = torch.empty_like(query)
    sizes = (*query.shape, keys.shape[1], tables.shape[1])
    _call("paged_attention", query, keys, values, tables, lengths, result, *sizes, scale)
    return result
