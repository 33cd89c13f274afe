"""Operands of a collective on the device: what it reads, as it was when it was issued, and where it writes."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import _disable_current_modes

from macatensor.dispatch.transfer import to_device, to_host
from macatensor.distributed.staging import put
from macatensor.runtime import switches
from macatensor.runtime.awaited import finish_all, no_waiting
from macatensor.runtime.ffi import NULL, OK, allocate, copy_bytes, lib, own, pointer
from macatensor.runtime.host_copies import download
from macatensor.runtime.meta import Meta, meta_of
from macatensor.runtime.tensor import MacaTensor, wrap

if TYPE_CHECKING:
    from macatensor.runtime.ffi import Buffer, CData

_MOST_COPIED = 64 << 10  # bytes; below, a collective gains nothing from memory that ranks share
_copy = torch.ops.aten.copy_.default


def _is_plain(meta: Meta) -> bool:
    """Is the operand's memory its elements one after the other?"""
    if meta.conj or meta.neg:
        return False
    expected = 1
    for size, stride in zip(reversed(meta.size), reversed(meta.stride)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


class Operand:
    """Bytes of a buffer, which this holds, and what was under way on them."""

    __slots__ = ("buffer", "offset", "nbytes", "_event")

    def __init__(self, buffer: Buffer, offset: int, nbytes: int):
        self.buffer = buffer
        self.offset = offset  # in bytes
        self.nbytes = nbytes
        event = lib.maca_comms_pending(pointer(buffer))
        self._event: CData | None = None if event == NULL else event

    def take_event(self) -> CData | None:
        event, self._event = self._event, None
        return event

    def __del__(self) -> None:
        if self._event is not None:
            lib.maca_events_destroy(self._event)

    def split(self, sizes: Sequence[int]) -> list[Operand]:
        """Parts of so many bytes, one after the other; this one still says what was under way."""
        parts, at = [], self.offset
        for size in sizes:
            part = Operand.__new__(Operand)
            part.buffer, part.offset, part.nbytes, part._event = self.buffer, at, size, None
            parts.append(part)
            at += size
        return parts


class Source(Operand):
    """What a collective reads of a tensor. The tensor may be written meanwhile, unless ``is_written``: by it alone."""

    __slots__ = ("shape", "dtype")

    def __init__(self, tensor: torch.Tensor, is_written: bool = False):
        self.shape = tensor.shape
        self.dtype = tensor.dtype
        if not isinstance(tensor, MacaTensor):
            tensor = to_device(tensor.detach().contiguous(), torch.contiguous_format)
        finish_all(tensor)
        buffer, offset, meta = tensor._payload
        if not _is_plain(meta):
            with no_waiting(), _disable_current_modes():
                buffer, offset, meta = _contiguous(wrap(buffer, offset, meta))._payload
        elif is_written:
            own(buffer)
        elif meta.numel:
            shared = buffer.share()
            if shared is None:  # a graph writes the memory by its address
                shared = allocate(meta.nbytes)
                with no_waiting():
                    copy_bytes(shared, 0, buffer, offset * meta.itemsize, meta.nbytes)
                offset = 0
            buffer = shared
        Operand.__init__(self, buffer, offset * meta.itemsize, meta.nbytes)

    def finish(self) -> None:
        """Of what a collective reads nothing has come."""

    def put(self, host: torch.Tensor) -> None:
        """As :meth:`finish`."""

    @classmethod
    def joined(cls, tensors: Sequence[torch.Tensor]) -> Source:
        """Those one after the other, of one dtype."""
        if len(tensors) == 1:
            return cls(tensors[0])
        parts = [cls(t) for t in tensors]
        self = cls.__new__(cls)
        self.shape = torch.Size([sum(t.numel() for t in tensors)])
        self.dtype = tensors[0].dtype
        nbytes = sum(part.nbytes for part in parts)
        buffer, at = allocate(max(nbytes, 1)), 0
        with no_waiting():
            for part in parts:
                copy_bytes(buffer, at, part.buffer, part.offset, part.nbytes)
                at += part.nbytes
            Operand.__init__(self, buffer, 0, nbytes)
        return self

    def host(self) -> torch.Tensor:
        """A contiguous copy on the host."""
        result = torch.empty(self.shape, dtype=self.dtype, device="cpu")
        with no_waiting(), _disable_current_modes():
            download(result, self.buffer, self.offset, self.nbytes)
        return result


def is_part_of(tensor: torch.Tensor, whole: torch.Tensor, rank: int) -> bool:
    """Is it the rank's own part of what all ranks give, in the memory where that is gathered? The collective leaves it as
    it is, so it can be read there: FSDP's are, and a copy would be one of the whole."""
    if not (isinstance(tensor, MacaTensor) and isinstance(whole, MacaTensor)):
        return False
    (buffer, offset, meta), (whole_buffer, whole_offset, _) = tensor._payload, whole._payload
    return (
        buffer is whole_buffer
        and tensor.dtype == whole.dtype
        and offset == whole_offset + rank * meta.numel
        and whole.is_contiguous()
    )


def _contiguous(tensor: MacaTensor) -> MacaTensor:
    meta = tensor._payload[2]
    if meta.conj or meta.neg or (meta.itemsize == 1 and meta.dtype.is_floating_point):
        return to_device(to_host(tensor).contiguous(), torch.contiguous_format)
    copied: MacaTensor = torch.ops.aten.clone.default(tensor, memory_format=torch.contiguous_format)
    return copied


class Target(Operand):
    """Where a collective writes a tensor: its memory, or other memory that :meth:`finish` copies from."""

    __slots__ = ("_tensor", "_staged")

    def __init__(self, tensor: torch.Tensor, source: Source | None = None):
        """``source``: of the same tensor, which the collective reads where it writes."""
        self._tensor = tensor
        self._staged: MacaTensor | None = None
        meta = tensor._payload[2] if isinstance(tensor, MacaTensor) else None
        if isinstance(tensor, MacaTensor) and meta is not None and _is_plain(meta):
            buffer, offset, _ = tensor._payload
            if source is not None:
                self.buffer, self.offset, self.nbytes, self._event = (
                    buffer,
                    source.offset,
                    source.nbytes,
                    None,
                )
                return
            finish_all(tensor)
            own(buffer)
            super().__init__(buffer, offset * meta.itemsize, meta.nbytes)
        else:
            nbytes = tensor.numel() * tensor.element_size()
            shape = tuple(tensor.shape)
            steps = torch.empty(shape, dtype=tensor.dtype, device="meta").stride()
            buffer = allocate(max(nbytes, 1))
            self._staged = wrap(buffer, 0, meta_of(shape, tuple(steps), tensor.dtype))
            super().__init__(buffer, 0, nbytes)

    def finish(self) -> None:
        """The bytes are there."""
        if self._staged is None or not self._staged._payload[2].numel:
            return
        with no_waiting(), _disable_current_modes():
            put(self._tensor, to_host(self._staged)) if self._crosses() else self._write()

    def put(self, host: torch.Tensor) -> None:
        """Writes host elements."""
        put(self._tensor, host)

    def _crosses(self) -> bool:
        dtype = self._tensor.dtype
        return not isinstance(self._tensor, MacaTensor) or (dtype.itemsize == 1 and dtype.is_floating_point)

    def _write(self) -> None:
        assert isinstance(self._tensor, MacaTensor)
        _copy(wrap(*self._tensor._payload), self._staged)


def finish(targets: Sequence[Target]) -> None:
    for target in targets:
        target.finish()


def only(end: Operand, root: int, ranks: int) -> list[Operand | None]:
    """What goes to the root, or comes from it, alone."""
    return [end if rank == root else None for rank in range(ranks)]


def in_shared_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, moved with any content to memory that ranks share, where there is such memory."""
    if isinstance(tensor, MacaTensor):
        lib.maca_buffer_move_to_shared(pointer(tensor._payload[0]), 0)
    return tensor


class SharedBuffers:
    """Moves memory that collectives use again, as gradient buckets, to where other ranks reach it without a copy."""

    def __init__(self) -> None:
        self._used: weakref.WeakSet[Buffer] = weakref.WeakSet()
        self._are_there = True

    def see(self, tensors: Sequence[torch.Tensor]) -> None:
        """A collective is about to be issued with these."""
        once: set[Buffer] = set()  # as the part that a rank gives, and the whole into which all are gathered
        for tensor in tensors:
            if not isinstance(tensor, MacaTensor) or tensor._payload[0] in once:
                continue
            buffer, _, meta = tensor._payload
            once.add(buffer)
            nbytes = meta.nbytes
            if nbytes < _MOST_COPIED or 2 * nbytes < buffer.nbytes or not self._are_there:
                continue
            if switches.COLLECTIVES.value() != "library":
                return
            if buffer not in self._used:
                self._used.add(buffer)
            elif not lib.maca_buffer_is_shared(pointer(buffer)):
                self._are_there = lib.maca_buffer_move_to_shared(pointer(buffer), 1) == OK
