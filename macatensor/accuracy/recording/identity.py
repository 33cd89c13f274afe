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


class Value:
    """What is known of the elements a view shows."""

    __slots__ = ("version", "unsettled", "numbers", "made", "file", "key", "is_blank", "texts", "results")

    def __init__(self, version: int, unsettled: bool):
        self.version = version
        # an in-place operator's result is met before PyTorch counts the write
        self.unsettled = unsettled
        self.numbers: str | None = None
        self.made: dict[str, int] = {}  # level -> the call whose result it is
        self.file: str | None = None
        self.key: str | None = None
        self.is_blank = False  # memory as it was found: its numbers mean nothing
        self.texts: dict[Any, str] = {}  # its entry as an argument, by the call's level and requires_grad
        self.results: dict[bool, str] = {}  # its entry as a result, by requires_grad


class _Allocation:
    """Memory that tensors share. A host storage is kept from being freed, its memory is not."""

    __slots__ = ("held", "writes", "values", "written", "last", "is_blank")

    def __init__(self, held: Any, writes: int):
        self.held = held
        self.writes = writes
        self.values: dict[Any, Value] = {}
        self.written = False  # since the program's own counter was seen last
        self.last: dict[str, int] = {}  # level -> the call that wrote it last
        self.is_blank = False  # not written since it was allocated

    def forget(self) -> None:
        self.values.clear()
        self.last = {}
        self.is_blank = False


class Identities:
    """The allocations that a session has met."""

    def __init__(self) -> None:
        self._maca: dict[int, _Allocation] = {}
        self._host: dict[int, _Allocation] = {}
        self._since = 0

    def close(self) -> None:
        """Lets go of the storages."""
        for cdata in self._host:
            torch.UntypedStorage._free_weak_ref(cdata)
        self._host.clear()
        self._maca.clear()

    def maca(self, tensor: MacaTensor) -> Value:
        """What is known of a tensor on maca."""
        buffer, offset, meta = tensor._payload
        allocation = self._maca_allocation(buffer)
        key = (offset, meta)
        found = allocation.values.get(key)
        if found is None:
            if len(allocation.values) >= _VIEWS:
                allocation.values.clear()
            found = allocation.values[key] = Value(0, False)
            found.made.update(allocation.last)
            found.is_blank = allocation.is_blank
        return found

    def _maca_allocation(self, buffer: Any) -> _Allocation:
        number = id(buffer)
        allocation = self._maca.get(number)
        writes = buffer.writes
        if allocation is None or allocation.held() is not buffer:
            table = self._maca

            def gone(held: Any) -> None:
                if (kept := table.get(number)) is not None and kept.held is held:
                    del table[number]

            allocation = table[number] = _Allocation(weakref.ref(buffer, gone), writes)
        elif allocation.writes != writes:
            allocation.forget()
            allocation.writes = writes
        return allocation

    def host(self, tensor: torch.Tensor) -> Value | None:
        """What is known of another strided tensor; None where writes to it may go unseen (NumPy shares it)."""
        storage = tensor.untyped_storage()
        if not storage.resizable():
            return None
        allocation = self._host.get(storage._cdata) or self._new_host(storage)
        try:
            version = tensor._version
        except RuntimeError:  # inference tensors do not count
            version = 0
        dtype = tensor.dtype
        key: Any = (tensor.storage_offset(), tensor.shape, tensor.stride(), dtype)
        if dtype.is_complex or tensor.is_neg():
            key = (*key, tensor.is_conj(), tensor.is_neg())
        found = allocation.values.get(key)
        if found is not None:
            if found.version == version:
                return found
            if found.unsettled and found.version + 1 == version:
                found.version, found.unsettled = version, False
                allocation.written = False
                return found
        if len(allocation.values) >= _VIEWS:
            allocation.values.clear()
        found = allocation.values[key] = Value(version, allocation.written)
        found.made.update(allocation.last)
        found.is_blank = allocation.is_blank
        return found

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
            return self._maca.get(id(tensor._payload[0]))
        return self._host.get(tensor.untyped_storage()._cdata)

    def made_by(self, tensor: torch.Tensor, value: Value, level: str, call: int, wrote: bool) -> None:
        """``call`` of ``level`` returned the tensor; ``wrote``: into memory that was there before."""
        value.made[level] = call
        if value.texts:
            value.texts = {}
        if wrote and (allocation := self._allocation(tensor)) is not None:
            allocation.last[level] = call

    def written_by(self, tensor: torch.Tensor, level: str, call: int) -> None:
        """A call that no result tells of has written the tensor's memory."""
        if (allocation := self._allocation(tensor)) is not None:
            allocation.last[level] = call
            for value in allocation.values.values():
                value.made[level], value.texts = call, {}

    def blank(self, tensor: torch.Tensor) -> None:
        """The tensor is of memory that nobody has written."""
        value = self.maca(tensor) if isinstance(tensor, MacaTensor) else self.host(tensor)
        allocation = self._allocation(tensor)
        if value is not None and allocation is not None:
            value.is_blank = allocation.is_blank = True
            value.texts, value.results = {}, {}
