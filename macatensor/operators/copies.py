"""The operators that copy between host and device: ``_to_copy``, ``copy_``, ``item``, ``equal``, ``_assert_async``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._ops import OpOverload

from macatensor.dispatch.kernel_calls import KernelLauncher, kernel_launcher
from macatensor.dispatch.launcher import Run, special
from macatensor.dispatch.request import Scalar
from macatensor.dispatch.rowless import without_row
from macatensor.dispatch.signature import find_row
from macatensor.dispatch.transfer import check_index, to_device, to_host
from macatensor.operators import float8
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.host_copies import checked_meta, download, host_address, upload
from macatensor.runtime.tensor import MacaTensor, Payload, device, physical, plain, wrap


@special("aten._to_copy.default")
class _ToCopy(KernelLauncher):
    """``_to_copy``: between tensors of the device in C, between it and others here."""

    by_name = frozenset({"dtype", "memory_format"})

    def __init__(self, func: OpOverload):
        found = find_row(func)
        assert found is not None  # the table has it
        # autograd names all of these, of a tensor of the device
        idle = {"layout": torch.strided, "device": device(), "pin_memory": False, "non_blocking": False}
        super().__init__(func, *found, only=idle)

    def general(self, args: Arguments, kwargs: Keywords | None) -> Value:
        source = args[0]
        options = dict(kwargs or {})
        device = options.pop("device", None)
        if device is None or device.type == "maca":
            check_index(device)
            if not isinstance(source, MacaTensor):
                return to_device(
                    source,
                    options.get("memory_format"),
                    options.get("dtype"),
                    bool(options.get("non_blocking")),
                )
            options.pop("pin_memory", None)
            options.pop("non_blocking", None)
            options.pop("layout", None)
            return self(args, options)
        if device.type == "meta":
            return torch.ops.aten._to_copy.default(
                torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta"),
                **options,
            )
        host = to_host(source, bool(options.get("non_blocking")))
        if device.type == "cpu" and not options.get("pin_memory"):
            same = options.get("dtype") in (None, host.dtype)
            if same and options.get("memory_format") in (None, torch.preserve_format):
                return host
        return self.func(host, **{**options, "device": device})

    def build(self, args: Arguments, given: int) -> Run:
        source, dtype = self.signature.fill(args, None)[:2]
        return self.through_tables if float8.converts(source, dtype) else super().build(args, given)

    def through_tables(
        self, args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]
    ) -> Value:
        source, dtype, *_, memory_format = self.signature.fill(args, None)
        return float8.to_copy(source, dtype or source.dtype, memory_format)


class _Copy(KernelLauncher):
    """``copy_`` between tensors of the device."""

    def build(self, args: Arguments, given: int) -> Run:
        target, source = args[:2]
        return self.through_tables if float8.converts(source, target.dtype) else super().build(args, given)

    def through_tables(
        self, args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]
    ) -> Value:
        float8.write(args[0], args[1])
        return args[0]


def _lies_like(host: torch.Tensor, tensor: MacaTensor) -> bool:
    """Do the two lie in memory alike and without gaps, so that their bytes can be copied as they are?"""
    if host.device.type != "cpu" or host.layout != torch.strided:
        return False
    meta = tensor._payload[2]
    lazy = meta.conj or meta.neg or host.is_conj() or host.is_neg()
    same = host.shape == tensor.shape and host.dtype == meta.dtype
    return same and meta.dense and host.stride() == meta.stride and not lazy


@special("aten.copy.default")
def _copy(func: OpOverload) -> Launcher:
    """What the first operand would be after a ``copy_`` of the second, wherever that is: compiled programs ask for it."""
    found = find_row(func)
    kernel = kernel_launcher(func, *found) if found else None

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        target, source, *rest = args
        if not isinstance(target, MacaTensor):
            return func(target, to_host(source), *rest, **(kwargs or {}))
        if not isinstance(source, MacaTensor):
            args = (target, to_device(source, torch.preserve_format), *rest)
        if kernel is None:
            return without_row(func, args, kwargs, "the op table has no row for it")
        return kernel(args, kwargs)

    return run


@special("aten._lazy_clone.default")
def _lazy_clone(func: Value) -> Launcher:
    """A tensor over the same memory, which whoever writes first copies."""

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        buffer, offset, meta = args[0]._payload
        shared = buffer.share()
        # a graph that is captured, or knows the memory by its address, needs a copy at once
        return torch.ops.aten.clone.default(args[0]) if shared is None else wrap(shared, offset, meta)

    return run


def _is_same_memory(target: MacaTensor, source: MacaTensor) -> bool:
    """Is each element of one the same element of the other? Steps along a dimension of one element lead nowhere: products
    with an ``out=`` copy it to itself with others, or without that dimension."""
    (buffer, offset, x), (other, other_offset, y) = target._payload, source._payload
    if buffer is not other or offset != other_offset:
        return False
    lead = len(x.size) - len(y.size)
    return (
        x.size == (1,) * lead + y.size
        and (x.dtype, x.conj, x.neg) == (y.dtype, y.conj, y.neg)
        and all(n == 1 or s == t for n, s, t in zip(y.size, x.stride[lead:], y.stride))
    )


@special("aten.copy_.default")
def _copy_(func: OpOverload) -> Launcher:
    found = find_row(func)
    kernel = _Copy(func, *found) if found else None

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        target: torch.Tensor = args[0]
        source: torch.Tensor = (
            args[1] if isinstance(args[1], torch.Tensor) else torch.as_tensor(args[1], device="cpu")
        )  # a number
        non_blocking = bool(args[2] if len(args) > 2 else (kwargs or {}).get("non_blocking"))
        if not isinstance(target, MacaTensor):
            assert isinstance(source, MacaTensor)  # or the call would not be ours
            if type(target) not in (torch.Tensor, torch.nn.Parameter) or not _lies_like(target, source):
                return target.copy_(to_host(source, non_blocking))
            if target.numel():
                checked_meta(target)
                host_address(target)
                buffer, offset, meta = source._payload
                download(target, buffer, offset * meta.itemsize, meta.nbytes, non_blocking)
            return target
        if not isinstance(source, MacaTensor):
            if _lies_like(source, target):
                if source.numel():
                    checked_meta(source)
                    buffer, offset, meta = target._payload
                    upload(buffer, offset * meta.itemsize, host_address(source), meta.nbytes, non_blocking)
                return target
            source = to_device(source, torch.preserve_format, None, non_blocking)
        if kernel is None:
            raise NotImplementedError("the op table has no row copy")
        if _is_same_memory(target, source):
            return target
        held = target._payload[2]
        if held.conj or held.neg:  # what lies in memory is the conjugate or negative of what is read
            source = physical(source)
            if source.dtype != held.dtype:  # the negative of a byte is another one's
                source = torch.ops.aten._to_copy.default(source, dtype=held.dtype)
            if held.conj:
                source = torch.ops.aten._conj_physical.default(source)
            if held.neg:
                source = torch.ops.aten.neg.default(source)
            kernel((plain(target), source), None)
            return target
        return kernel((target, source), None)

    return run


@special("aten._local_scalar_dense.default", "aten.item.default")
def _item(func: OpOverload) -> Launcher:
    """The first number, for the host. ``item`` comes here from operators of ours, below autograd, where PyTorch does not
    take it apart."""
    is_only = func is torch.ops.aten.item.default

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        buffer, offset, meta = args[0]._payload
        if is_only and meta.numel != 1:
            raise RuntimeError(f"a Tensor with {meta.numel} elements cannot be converted to Scalar")
        if meta.numel == 0:
            raise RuntimeError("_local_scalar_dense: Empty tensor not supported")
        host = torch.empty((), dtype=meta.dtype, device="cpu")
        download(host, buffer, offset * meta.itemsize, meta.itemsize)
        number = host.item()
        if meta.conj:
            number = number.conjugate()
        return -number if meta.neg else number

    return run


@special("aten.equal.default")
def _equal(func: OpOverload) -> Launcher:
    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        a, b = args
        if a.shape != b.shape:
            return False
        return bool(torch.eq(a, b).all().item())

    return run


@special("aten._assert_async.default", "aten._assert_async.msg")
def _assert_async(func: OpOverload) -> Launcher:
    """Asks at once: an error that comes later would name another line."""

    def run(args: Arguments, kwargs: Keywords | None) -> None:
        if not bool(args[0]):
            said = args[1] if len(args) > 1 else (kwargs or {}).get("assert_msg", "")
            is_named = func._overloadname == "msg"
            nothing = (
                "Assertion is failed"
                if is_named
                else "Expected Tensor with single nonzero value, but got zero"
            )
            raise RuntimeError(said or nothing)

    return run
