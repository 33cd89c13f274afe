"""Operators that change how much memory a tensor spans: ``resize_``, ``set_`` and wrongly sized ``out=``."""

from __future__ import annotations

import torch
from torch._ops import OpOverload

from macatensor.dispatch.errors import scalar_type
from macatensor.dispatch.launcher import special
from macatensor.dispatch.plan import flatten
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.callers import warn
from macatensor.runtime.ffi import allocate, copy_bytes, may_resize, resize
from macatensor.runtime.meta import meta_of
from macatensor.runtime.tensor import MacaTensor, take_sizes, wrap
from macatensor.runtime.uninitialized import known


def restride(target: MacaTensor, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
    """Gives the wrapper other sizes and strides, and its storage memory enough for them: the views see the same."""
    buffer, offset, meta = target._payload
    wanted = meta_of(size, stride, meta.dtype, meta.conj, meta.neg)
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
    take_sizes(target, value)
    target._payload = value._payload


def _lazy_like(target: MacaTensor, source: MacaTensor) -> MacaTensor:
    """The memory of ``source``, as conjugate and as negative as ``target`` is: ``set_`` keeps these bits."""
    if target.is_conj() == source.is_conj() and target.is_neg() == source.is_neg():
        return source
    buffer, offset, meta = source._payload
    return wrap(
        buffer, offset, meta_of(meta.size, meta.stride, meta.dtype, target.is_conj(), target.is_neg())
    )


def check_cast(result: torch.Tensor, target: torch.Tensor) -> None:
    """Raises PyTorch's RuntimeError where ``target`` may not take what an operator computed, as integers no fractions."""
    if not torch.can_cast(result.dtype, target.dtype):
        given, wanted = scalar_type(result.dtype), scalar_type(target.dtype)
        raise RuntimeError(f"result type {given} can't be cast to the desired output type {wanted}")


def _fit(out: MacaTensor, result: MacaTensor, casts: bool) -> None:
    """PyTorch's rules for ``out=``: a dtype the result can be cast to, and sizes that are made to fit with a warning."""
    if not isinstance(out, MacaTensor):
        raise RuntimeError(f"Expected out tensor to have device maca:0, but got {out.device} instead")
    if not casts:
        check_cast(result, out)
    if out.shape != result.shape:
        if out.numel() != 0:
            warn(
                "An output with one or more elements was resized since it had shape "
                f"{list(out.shape)}, which does not match the required output shape {list(result.shape)}. This "
                "behavior is deprecated, and in a future PyTorch release outputs will not be resized unless they "
                "have zero elements. You can explicitly reuse an out tensor t by resizing it, inplace, to zero "
                "elements with t.resize_(0)."
            )
        restride(out, tuple(result.shape), result.stride())


def write_out(outs: list[Value], results: Value, casts: bool = False) -> Value:
    """Copies an operator's results into its ``out=`` tensors and returns those as the operator does. ``casts``: PyTorch was
    asked of these dtypes and takes them."""
    for out, result in zip(flatten(outs), flatten(results)):
        if result is not None:  # a gradient that was not asked for
            _fit(out, result, casts)
            out.copy_(result)
    return outs[0] if len(outs) == 1 else tuple(outs)


def _know_rest(target: MacaTensor, held: int) -> None:
    """Fills what a storage has grown by beyond ``held`` bytes, where PyTorch wants it known."""
    buffer, _, meta = target._payload
    first, end = held // meta.itemsize, buffer.nbytes // meta.itemsize
    if end > first:
        known(wrap(buffer, first, meta_of((end - first,), (1,), meta.dtype)))


@special("aten.resize_.default")
def _resize_(func: OpOverload) -> Launcher:
    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        target, size = args[0], tuple(args[1])
        form = (kwargs or {}).get("memory_format")
        if form is torch.preserve_format:
            raise RuntimeError("Unsupported memory formatPreserve")
        if form is not None or tuple(target.shape) != size:
            with torch.utils._mode_utils.no_dispatch():  # or PyTorch's error
                described = torch.empty(size, device="meta", memory_format=form or torch.contiguous_format)
            held = target._payload[0].nbytes
            restride(target, size, described.stride())
            _know_rest(target, held)
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
        adopt(target, _lazy_like(target, source))
        return target

    return run


@special("aten.set_.default")
def _set_to_nothing_(func: OpOverload) -> Launcher:
    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        target = args[0]
        nothing = torch.empty(0, dtype=target.dtype, device=target.device)
        assert isinstance(nothing, MacaTensor)
        adopt(target, _lazy_like(target, nothing))
        return target

    return run
