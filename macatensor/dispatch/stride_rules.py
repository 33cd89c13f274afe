"""Strides of results where PyTorch's meta kernel gives others than its CPU kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from macatensor.runtime.boxed import Value
from macatensor.runtime.layout import channels_last_strides, suggests_channels_last
from macatensor.runtime.meta import contiguous_strides

StrideRule = Callable[[Sequence[Value], Sequence[torch.Tensor]], list[tuple[int, ...]]]
"""Operator arguments (meta tensors in place of ours) and meta results -> strides of the results."""


def _convolution(args: Sequence[Value], results: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """Channels last when input or weight is."""
    (result,) = results
    if result.dim() in (4, 5) and (suggests_channels_last(args[0]) or suggests_channels_last(args[1])):
        return [channels_last_strides(result.shape)]
    return [contiguous_strides(tuple(result.shape))]


def _convolution_backward(args: Sequence[Value], results: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """Gradients in the format the forward used."""
    channels_last = args[1].dim() in (4, 5) and (
        suggests_channels_last(args[1]) or suggests_channels_last(args[2])
    )
    return [
        channels_last_strides(r.shape)
        if channels_last and r.dim() in (4, 5)
        else contiguous_strides(tuple(r.shape))
        for r in results
    ]


def _like_first(args: Sequence[Value], results: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """Channels last when the first tensor argument is."""
    first = next(a for a in args if isinstance(a, torch.Tensor))
    channels_last = suggests_channels_last(first)
    return [
        channels_last_strides(r.shape)
        if channels_last and r.dim() in (4, 5)
        else contiguous_strides(tuple(r.shape))
        for r in results
    ]


def _dense_like_first(args: Sequence[Value], results: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """The first tensor's strides where it is dense and of equal sizes, row-major otherwise."""
    first = next(a for a in args if isinstance(a, torch.Tensor))
    return [
        tuple(torch.empty_like(first, device="meta").stride()) if r.shape == first.shape else r.stride()
        for r in results
    ]


def _tensor_iterator(args: Sequence[Value], results: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """As ``add`` of the tensor arguments: of operands in different layouts the first decides. The meta kernels of
    operators that PyTorch wrote in Python take the last."""
    operands = [
        torch.empty_strided(a.shape, a.stride(), device="meta") for a in args if isinstance(a, torch.Tensor)
    ]
    if len(operands) == 2:
        like = torch.ops.aten.add.Tensor(*operands)
    elif len(operands) == 3:
        like = torch.ops.aten.addcmul.default(*operands)
    else:
        return [r.stride() for r in results]
    return [like.stride() if r.shape == like.shape else r.stride() for r in results]


def _contiguous(args: Sequence[Value], results: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """Row-major whatever the operands."""
    return [contiguous_strides(tuple(r.shape)) for r in results]


def _angle(args: Sequence[Value], results: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """Row-major for complex numbers, whose angles PyTorch resizes into an empty result."""
    return _contiguous(args, results) if args[0].is_complex() else [r.stride() for r in results]


def _column_major(args: Sequence[Value], results: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """Results of the first argument's rank are batches of column-major matrices, as LAPACK writes them."""
    strides = []
    for r in results:
        plain = contiguous_strides(tuple(r.shape))
        strides.append(
            (*plain[:-2], 1, max(1, r.shape[-2])) if r.dim() >= 2 and r.dim() == args[0].dim() else plain
        )
    return strides


def _fourier_strides(sizes: Sequence[int], strides: Sequence[int], dims: Sequence[int]) -> tuple[int, ...]:
    """MKL's result of one transform of ``dims``: those innermost as given, the others outside in stride order."""
    batch = sorted((d for d in range(len(sizes)) if d not in dims), key=lambda d: -strides[d])
    result = [0] * len(sizes)
    step = 1
    for d in reversed([*batch, *dims]):
        result[d] = step
        step *= max(sizes[d], 1)
    return tuple(result)


def _fourier(args: Sequence[Value], results: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """PyTorch's with MKL; its meta kernel sees the operand of a real result in another order. Row-major without."""
    operand, (result,) = args[0], results
    if not torch.backends.mkl.is_available():
        return [contiguous_strides(tuple(result.shape))]
    dims = [d % operand.dim() for d in args[1]]
    if not dims or not result.numel():
        return [result.stride()]
    strides = operand.stride()

    def outermost_first(some: list[int]) -> list[int]:
        return sorted(some, key=lambda d: -strides[d])

    if result.is_complex():
        last = [] if operand.is_complex() else dims[-1:]
        dims = outermost_first(dims[: len(dims) - len(last)]) + last
    elif len(dims) > 1:
        strides = _fourier_strides(operand.shape, strides, outermost_first(dims[:-1]))
        dims = dims[-1:]
    return [_fourier_strides(result.shape, strides, dims)]


STRIDE_RULES: dict[str, StrideRule] = {
    "column_major": _column_major,
    "tensor_iterator": _tensor_iterator,
    "contiguous": _contiguous,
    "angle": _angle,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "like_first": _like_first,
    "dense_like_first": _dense_like_first,
    "fourier": _fourier,
}
