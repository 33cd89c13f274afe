"""Conversions from and to float8, which the library stores and does not compute with: by tables on the device.

What each byte stands for, and which byte a number becomes, PyTorch's own conversion is asked once for each dtype, on
numbers of the host. So there is no second set of formats to keep right.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from macatensor.dispatch.float8_calls import FLOAT8, as_bytes, of_bytes
from macatensor.runtime.tensor import payload


def converts(source: Tensor, target: torch.dtype | None) -> bool:
    """Is a copy of ``source`` in ``target`` made here? Lazy bits are resolved first."""
    meta = payload(source)[2]
    return (meta.dtype in FLOAT8 or target in FLOAT8) and not (meta.conj or meta.neg)


@functools.cache
def _numbers(source: torch.dtype, target: torch.dtype) -> Tensor:
    """[256] of ``target`` on the device: what the bytes of ``source`` stand for. Bytes, where ``target`` is float8."""
    numbers = torch.arange(256, dtype=torch.uint8, device="cpu").view(source).to(target)
    return (numbers.view(torch.uint8) if target in FLOAT8 else numbers).to("maca")


@functools.cache
def _bytes(target: torch.dtype) -> Tensor:
    """[65536] on the device: the byte of ``target`` for each upper half of a float32's bits, negative halves first.

    The lowest bit of a half also stands for all bits below it: formats of 3 bits of mantissa or fewer round at numbers
    that have a zero there, so it is known on which side a number lies.
    """
    upper = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32, device="cpu")
    return (upper << 16).view(torch.float32).to(target).view(torch.uint8).to("maca")


def _upper_halves(numbers: Tensor) -> Tensor:
    """int32: where in :func:`_bytes` a number's byte is."""
    bits: Tensor
    if numbers.dtype is torch.bfloat16:
        bits = torch.ops.aten.view.dtype(numbers, torch.int16)
        return bits.to(torch.int32).add_(1 << 15)
    bits = torch.ops.aten.view.dtype(numbers.to(torch.float32), torch.int32)
    # what lies below carries into the lowest bit of the upper half
    return (bits & 0xFFFF).add_(0xFFFF).bitwise_or_(bits).bitwise_right_shift_(16).add_(1 << 15)


def convert(source: Tensor, dtype: torch.dtype) -> Tensor:
    """``source`` in ``dtype``, one of the two float8, with the strides that ``Tensor.to`` gives and the bits of PyTorch's CPU.

    To float8 it takes six launches and a table. A search among the numbers at which the byte changes would be two, but took
    some 100 ns an element.
    """
    if not payload(source)[2].dense:
        source = torch.ops.aten.clone.default(source)
    flat = source.as_strided((source.numel(),), (1,))
    if source.dtype in FLOAT8:
        made = torch.index_select(_numbers(source.dtype, dtype), 0, as_bytes(flat).to(torch.int32))
    else:
        made = torch.index_select(_bytes(dtype), 0, _upper_halves(flat))
    if dtype in FLOAT8:
        made = of_bytes(made, dtype)
    return made.as_strided(source.shape, source.stride())


def to_copy(source: Tensor, dtype: torch.dtype, memory_format: torch.memory_format | None) -> Tensor:
    """``Tensor.to`` that always copies, in ``memory_format`` (None: the source's)."""
    form = memory_format or torch.preserve_format
    if source.dtype is not dtype:
        made = convert(source, dtype)
        return made if form is torch.preserve_format else made.contiguous(memory_format=form)
    return of_bytes(torch.ops.aten.clone.default(as_bytes(source), memory_format=form), dtype)


def write(target: Tensor, source: Tensor) -> None:
    """``target.copy_(source)``."""
    if source.dtype is not target.dtype:
        source = convert(source, target.dtype)
    if target.dtype in FLOAT8:
        target, source = as_bytes(target), as_bytes(source)
    target.copy_(source)
