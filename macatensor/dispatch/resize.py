"""Operators that change how much memory a tensor spans: ``resize_``, ``set_`` and wrongly sized ``out=``."""

from __future__ import annotations

import warnings

import torch
from torch._ops import OpOverload

from macatensor.dispatch.launcher import special
from macatensor.dispatch.plan import flatten
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.ffi import allocate, copy_bytes, may_resize, resize
from macatensor.runtime.layout import channels_last_strides
from macatensor.runtime.meta import contiguous_strides, meta_of
from macatensor.runtime.tensor import MacaTensor, plain_data, wrap


def restride(target: MacaTensor, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
    """Gives the wrapper other sizes and strides, and its storage memory enough for them: the views see the same."""
    buffer, offset, meta = target._payload
    wanted = meta_of(size, stride, meta.dtype)
    needed = wanted.bytes_from(offset)
    held = buffer.nbytes
    if needed > held and may_resize(buffer):
        resize(buffer, needed)
    elif needed > held:  # what a captured graph uses stays where it is
        grown = allocate(needed)
        copy_bytes(grown, 0, buffer, 0, held)
        buffer = grown
    adopt(target, wrap(buffer, offset, wanted))


def adopt(target: MacaTensor, value: MacaTensor) -> None:
    """Makes ``target`` what ``value`` is: sizes, strides, memory. Its version counter and autograd state stay.

    Changing the wrapper by ``as_strided_`` could not grow it, since PyTorch knows how much memory it was made with.
    """
    with torch.utils._mode_utils.no_dispatch():
        plain_data.__set__(target, value)
    target._payload = value._payload


def _fit(out: MacaTensor, result: MacaTensor) -> None:
    """PyTorch's rules for ``out=``: a dtype the result can be cast to, and sizes that are made to fit with a warning."""
    if not isinstance(out, MacaTensor):
        raise RuntimeError(f"Expected out tensor to have device maca:0, but got {out.device} instead")
    if not torch.can_cast(result.dtype, out.dtype):
        # PyTorch's names: "Float", "Long", "ComplexDouble"
        names = [torch.empty(0, dtype=t.dtype).type()[len("torch.") : -len("Tensor")] for t in (result, out)]
        raise RuntimeError(f"result type {names[0]} can't be cast to the desired output type {names[1]}")
    if out.shape != result.shape:
        if out.numel() != 0:
            warnings.warn(
                "An output with one or more elements was resized since it had shape "
                f"{list(out.shape)}, which does not match the required output shape {list(result.shape)}. This "
                "behavior is deprecated, and in a future PyTorch release outputs will not be resized unless they "
                "have zero elements. You can explicitly reuse an out tensor t by resizing it, inplace, to zero "
                "elements with t.resize_(0).",
                stacklevel=4,
            )
        restride(out, tuple(result.shape), result.stride())


def write_out(outs: list[Value], results: Value) -> Value:
    """Copies an operator's results into its ``out=`` tensors and returns those as the operator does."""
    for out, result in zip(flatten(outs), flatten(results)):
        _fit(out, result)
        out.copy_(result)
    return outs[0] if len(outs) == 1 else tuple(outs)


@special("aten.resize_.default")
def _resize_(func: OpOverload) -> Launcher:
    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        target, size = args[0], tuple(args[1])
        form = (kwargs or {}).get("memory_format")
        if any(n < 0 for n in size):
            raise RuntimeError(f"Trying to create tensor with negative dimension: {list(size)}")
        if tuple(target.shape) != size:
            stride = channels_last_strides(size) if form is torch.channels_last else contiguous_strides(size)
            restride(target, size, stride)
        return target

    return run


@special("aten.resize_as_.default")
def _resize_as_(func: OpOverload) -> Launcher:
    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        target, template = args[:2]
        form = (kwargs or {}).get("memory_format")
        if form is torch.preserve_format:
            form = torch._prims_common.suggest_memory_format(template)
        return torch.ops.aten.resize_.default(target, list(template.shape), memory_format=form)

    return run


@special("aten.set_.source_Tensor")
def _set_(func: OpOverload) -> Launcher:
    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        target, source = args
        adopt(target, source)
        return target

    return run
