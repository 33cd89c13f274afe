"""Which values are the same: an allocation, how often it was written, and the view of it.

A value that is met again has been measured already, and the call that made it is known.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from macatensor.tensor import MacaTensor

_SWEEP = 1024  # new allocations between two searches for those that are gone
_VIEWS = 256  # of one allocation that are remembered

API, ATEN = 0, 1  # the levels of calls: of each a value has a call that made it
NO_CALL = -1


class Value:
    """What is known of the elements a view shows."""

    __slots__ = ("form", "version", "unsettled", "made", "numbers", "text", "grad_text")

    def __init__(self, form: Any, version: int, unsettled: bool, made: list[int], numbers: str | None):
        self.form = form  # what tells views at one offset apart: sizes, strides and dtype
        self.version = version
        # an in-place operator's result is met before PyTorch counts the write
        self.unsettled = unsettled
        self.made = made  # by level, the call whose result it is
        self.numbers = numbers  # those of its elements and where they are kept, as text; None: not asked yet
        self.text: str | None = None  # all that an entry says of it but who made it,
        self.grad_text: str | None = None  # and the same of a tensor that requires a gradient


class _Allocation:
    """Memory that tensors share. A host storage is kept from being freed, its memory is not."""

    __slots__ = ("held", "writes", "values", "written", "last", "is_blank")

    def __init__(self, held: Any, writes: int):
        self.held = held
        self.writes = writes
        self.values: dict[Any, Value] = {}
        self.written = False  # since the program's own counter was seen last
        self.last = [NO_CALL, NO_CALL]  # by level, the call that wrote it last
        self.is_blank = False  # not written since it was allocated

    def forget(self) -> None:
        self.values = {}
        self.last = [NO_CALL, NO_CALL]
        self.is_blank = False

    def new(self, key: Any, version: int = 0, unsettled: bool = False) -> Value:
        """The value of a view that was not met before. Memory as it was found has numbers that mean nothing: none."""
        if len(self.values) >= _VIEWS:
            self.values.clear()
        found = self.values[key] = Value(
            key[1], version, unsettled, self.last.copy(), "" if self.is_blank else None
        )
        return found


class Identities:
    """The allocations that a session has met."""

    def __init__(self) -> None:
        self.on_maca: dict[int, _Allocation] = {}  # by the id of the buffer
        self._host: dict[int, _Allocation] = {}
        self._since = 0

    def close(self) -> None:
        """Lets go of the storages."""
        for cdata in self._host:
            torch.UntypedStorage._free_weak_ref(cdata)
        self._host.clear()
        self.on_maca.clear()

    def maca(self, tensor: Any) -> Value:
        """What is known of a tensor on maca."""
        buffer, offset, meta = tensor._payload
        allocation = self.on_maca.get(id(buffer))
        if allocation is None:
            allocation = self._new_maca(buffer)
        elif allocation.writes != (now := buffer.writes):
            allocation.forget()
            allocation.writes = now
        key = (offset, meta)
        return allocation.values.get(key) or allocation.new(key)

    def _new_maca(self, buffer: Any) -> _Allocation:
        table, number = self.on_maca, id(buffer)

        def gone(held: Any) -> None:  # before the id can be another's
            table.pop(number, None)

        allocation = table[number] = _Allocation(weakref.ref(buffer, gone), buffer.writes)
        return allocation

    def host(self, tensor: torch.Tensor, form: Any) -> Value | None:
        """What is known of another strided tensor, of this form; None where writes to it may go unseen (NumPy shares
        it)."""
        storage = tensor.untyped_storage()
        if not storage.resizable():
            return None
        allocation = self._host.get(storage._cdata) or self._new_host(storage)
        try:
            version = tensor._version
        except RuntimeError:  # inference tensors do not count
            version = 0
        key = (tensor.storage_offset(), form)
        found = allocation.values.get(key)
        if found is not None:
            if found.version == version:
                return found
            if found.unsettled and found.version + 1 == version:
                found.version, found.unsettled = version, False
                allocation.written = False
                return found
        return allocation.new(key, version, allocation.written)

    def _new_host(self, storage: Any) -> _Allocation:
        self._since += 1
        if self._since >= _SWEEP:
            self._sweep()
        allocation = self._host[storage._cdata] = _Allocation(storage._weak_ref(), 0)
        return allocation

    def _sweep(self) -> None:
        self._since = 0
        expired = torch.UntypedStorage._expired
        for cdata in [c for c in self._host if expired(c)]:
            torch.UntypedStorage._free_weak_ref(cdata)
            del self._host[cdata]

    def wrote(self, tensor: torch.Tensor) -> None:
        """An operator below autograd has written the tensor's memory: nothing known of it holds any more."""
        if isinstance(tensor, MacaTensor):
            return  # the runtime counts
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse and other tensors without one
            return
        allocation = self._host.get(storage._cdata)
        if allocation is not None:
            allocation.forget()
            allocation.written = True

    def _allocation(self, tensor: torch.Tensor) -> _Allocation | None:
        if isinstance(tensor, MacaTensor):
            return self.on_maca.get(id(tensor._payload[0]))
        return self._host.get(tensor.untyped_storage()._cdata)

    def wrote_last(self, tensor: torch.Tensor, level: int, call: int) -> None:
        """``call`` of ``level`` returned the tensor and wrote it, into memory that was there before."""
        if (allocation := self._allocation(tensor)) is not None:
            allocation.last[level] = call

    def written_by(self, tensor: torch.Tensor, level: int, call: int) -> None:
        """A call that no result tells of has written the tensor's memory."""
        if (allocation := self._allocation(tensor)) is not None:
            allocation.last[level] = call
            for value in allocation.values.values():
                value.made[level] = call

    def blank(self, tensor: torch.Tensor, value: Value | None) -> None:
        """The tensor, of this value, is of memory that nobody has written."""
        allocation = self._allocation(tensor)
        if value is not None and allocation is not None:
            allocation.is_blank = True
            value.numbers, value.text, value.grad_text = "", None, None
