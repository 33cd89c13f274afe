"""Creation functions with ``device="maca"``: they have no tensor argument, so they reach the PrivateUse1 key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch._ops import OpOverload

from macatensor.dispatch import rowless, sites
from macatensor.dispatch.kernel_calls import KernelLauncher
from macatensor.dispatch.launcher import special, static_key
from macatensor.dispatch.plan import meta_tensor
from macatensor.dispatch.signature import find_row
from macatensor.dispatch.transfer import check_index, read_number, to_device
from macatensor.operators.bind import bind
from macatensor.runtime import plan_caches
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.ffi import allocate, fill_bytes, native
from macatensor.runtime.layout import channels_last_strides
from macatensor.runtime.meta import Meta, contiguous_strides, meta_of
from macatensor.runtime.plan_caches import PlanCache
from macatensor.runtime.tensor import MacaTensor, WrapperArguments, wrap, wrapper_arguments
from macatensor.runtime.uncompiled import uncompiled
from macatensor.runtime.uninitialized import known


def empty_of(meta: Meta) -> MacaTensor:
    """Uninitialized memory of a meta."""
    return wrap(allocate(meta.nbytes), 0, meta)


def _numbers(size: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(map(int, size))
    except AttributeError:
        torch.empty(
            size, device="cpu"
        )  # PyTorch refuses the ragged dimension of a nested tensor in a dense one
        raise


def _check(size: Sequence[int]) -> tuple[int, ...]:
    sizes = _numbers(size)
    if any(n < 0 for n in sizes):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(sizes)}: {list(sizes)}")
    return sizes


_Blank: TypeAlias = tuple[Meta, int, WrapperArguments]

# From size, dtype and options of `empty` to its Meta, bytes, and what the wrapper is made with. The Meta of a tensor that
# lives for one operator would otherwise be made anew each time, with what it knows of overlaps: 4 of 9 us.
_blanks: PlanCache[_Blank] = PlanCache()


def _empty(
    size: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> MacaTensor:
    check_index(device)
    key = (_numbers(size), dtype or torch.get_default_dtype(), layout, pin_memory, memory_format)
    found = _blanks.get(key)
    if found is None:
        generation = plan_caches.generation
        meta = _blank_meta(*key)
        found = meta, meta.nbytes, wrapper_arguments(meta)
        _blanks.remember(key, found, generation)
    meta, nbytes, arguments = found
    buffer = allocate(nbytes)
    made: MacaTensor = torch.Tensor._make_wrapper_subclass(*arguments)
    made._payload = (buffer, 0, meta)
    return known(made)


def _blank_meta(
    size: tuple[int, ...],
    dtype: torch.dtype,
    layout: torch.layout | None,
    pin_memory: bool | None,
    memory_format: torch.memory_format | None,
) -> Meta:
    """What ``empty`` makes. Raises PyTorch's errors."""
    if layout not in (None, torch.strided, torch.jagged):  # which PyTorch's take for strided
        raise NotImplementedError(f"maca got layout {layout}; accepted: torch.strided")
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")
    if memory_format is torch.preserve_format:  # of nothing
        raise RuntimeError("unsupported memory format Preserve")
    sizes = _check(size)
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        rank = 4 if memory_format is torch.channels_last else 5
        if len(sizes) != rank:
            raise RuntimeError(
                f"required rank {rank} tensor to use {str(memory_format).removeprefix('torch.')} format"
            )
        strides = channels_last_strides(sizes)
    else:
        strides = contiguous_strides(sizes)
    return meta_of(sizes, strides, dtype)


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> MacaTensor:
    check_index(device)
    sizes, strides = _check(size), _numbers(stride)
    if len(sizes) != len(strides):
        raise RuntimeError(
            f"dimensionality of sizes ({len(sizes)}) must match dimensionality of strides ({len(strides)})"
        )
    return known(empty_of(meta_of(sizes, strides, dtype or torch.get_default_dtype())))


def _to_copy(
    self: torch.Tensor,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Value:
    check_index(device)
    if isinstance(self, MacaTensor):
        return MacaTensor.__torch_dispatch__(
            torch.ops.aten._to_copy.default,
            (),
            (self,),
            {"dtype": dtype, "device": device, "memory_format": memory_format},
        )
    if self.device.type == "meta":
        raise NotImplementedError(
            "Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() instead of "
            "torch.nn.Module.to() when moving module from meta to a different device."
        )
    if self.device.type != "cpu":
        self = self.cpu()
    return to_device(self, memory_format, dtype, non_blocking)


@uncompiled
def _fallback(func: OpOverload, *args: Value, **kwargs: Value) -> Value:
    """Operators that reach the device's own key: factories, and calls made with the Python key excluded."""
    device = kwargs.get("device")
    check_index(device if isinstance(device, torch.device) else None)
    launcher = native.launcher_of(func) or bind(func)
    if sites.is_recorded():
        launcher = sites.observed(str(func), launcher)
    return launcher(args, kwargs)


class BlankLauncher(native.BlankCall):
    """Calls of an operator that makes uninitialized memory in the image of another tensor.

    Called with (args, kwargs). The base class, written in C, makes again what was made before; other calls come here:
    PyTorch's meta kernel says what the tensor is. ``is_result``: a user gets the tensor as it is.
    """

    def __init__(self, func: OpOverload, is_result: bool):
        self.func = func
        self.is_result = is_result
        self.cache: PlanCache[_Blank] = PlanCache()  # Meta, its bytes, and what the wrapper is made with
        super().__init__(self.cache)

    def general(self, args: Arguments, kwargs: Keywords | None) -> Value:
        meta = args[0]._payload[2]
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None:
            check_index(device)
            if device.type != "maca":
                return self.func(meta_tensor(meta), *args[1:], **kwargs)
        # autograd copies a dense gradient of a sparse tensor by new_empty_strided with that tensor's options
        of_strides = self.func is torch.ops.aten.new_empty_strided.default
        if not of_strides and kwargs.get("layout") not in (None, torch.strided):
            return self._of_other_layout(meta, args[1:], kwargs)
        options = [part for name, value in kwargs.items() for part in (name, static_key(value))]
        key = (meta, *[static_key(value) for value in args[1:]], *options)
        found = self.cache.get(key)
        if found is None:
            generation = plan_caches.generation
            given = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "layout")}
            for sizes in args[1:]:
                if isinstance(sizes, (list, tuple)):
                    _numbers(sizes)
            t = self.func(meta_tensor(meta), *args[1:], **given)
            meta = meta_of(tuple(t.shape), t.stride(), t.dtype)
            found = (meta, meta.nbytes, wrapper_arguments(meta))
            self.cache.remember(key, found, generation)
        made = empty_of(found[0])
        return known(made) if self.is_result else made

    def _of_other_layout(self, meta: Meta, args: Arguments, kwargs: Keywords) -> torch.Tensor:
        """Without elements, where PyTorch makes such a tensor of a dense one; else as it refuses."""
        model = torch.empty((), dtype=meta.dtype, device="cpu").expand(meta.size)
        made = self.func(
            model, *args, **{k: v for k, v in kwargs.items() if k not in ("device", "pin_memory")}
        )
        return torch.empty(made.shape, dtype=made.dtype, layout=made.layout, device="maca")


def _like_launcher(func: OpOverload, fill: Callable[[MacaTensor], Value]) -> Launcher:
    """Operators that make a tensor in the image of another and fill it."""
    make = BlankLauncher(func, is_result=False)

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        made = make(args, kwargs)
        return fill(made) if isinstance(made, MacaTensor) else made

    return run


@special("aten.empty_like.default", "aten.new_empty.default", "aten.new_empty_strided.default")
def _empty_like(func: OpOverload) -> Launcher:
    return BlankLauncher(func, is_result=True)


@special("aten.zeros_like.default", "aten.new_zeros.default")
def _zeros_like(func: OpOverload) -> Launcher:
    return _like_launcher(func, zero)


@special("aten.ones_like.default", "aten.new_ones.default")
def _ones_like(func: OpOverload) -> Launcher:
    return _like_launcher(func, lambda t: t.fill_(1))


def zero(target: MacaTensor) -> MacaTensor:
    """Zeroes a dense tensor by a fill of bytes."""
    buffer, offset, meta = target._payload
    fill_bytes(buffer, offset * meta.itemsize, 0, meta.nbytes, "aten.zero_.default")
    return target


@special("aten.zero_.default")
def _zero_(func: OpOverload) -> Launcher:
    found = find_row(func)
    kernel = KernelLauncher(func, *found) if found else None

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        if args[0]._payload[2].dense:
            return zero(args[0])
        return kernel(args, kwargs) if kernel else args[0].fill_(0)

    return run


_library: torch.library.Library | None = None
_fallback_library: torch.library.Library | None = None


def register() -> None:
    """Registers the creation kernels and the PrivateUse1 fallback."""
    global _library, _fallback_library
    _library = torch.library.Library("aten", "IMPL")
    for name, function in (
        ("empty.memory_format", _empty),
        ("empty_strided", _empty_strided),
        ("_to_copy", _to_copy),
        ("_local_scalar_dense", read_number),  # torch.tensor([t, 2.0]) asks with the Python key excluded
    ):
        rowless.OURS.add(f"aten::{name}")
        _library.impl(name, sites.observed(f"aten.{name}", function), "PrivateUse1")
    _fallback_library = torch.library.Library("_", "IMPL")
    _fallback_library.fallback(_fallback, "PrivateUse1")
