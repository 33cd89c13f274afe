"""Which values are the same: an allocation, how often it was written, and the view of it.

A value that is met again has been measured already, and the call that made it is known.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from macatensor.ffi import native
from macatensor.tensor import MacaTensor

API, ATEN = 0, 1  # the levels of calls: of each a value has a call that made it

_Memory: Any = native.RecordedMemory  # an allocation that tensors share


class Identities:
    """The allocations that a session has met."""

    def __init__(self) -> None:
        # RecordedMemory
        self.on_maca: dict[int, Any] = {}  # by the id of the buffer
        self.on_host: dict[int, Any] = {}  # by the storage's _cdata

    def close(self) -> None:
        """Lets go of the storages."""
        for cdata in self.on_host:
            torch.UntypedStorage._free_weak_ref(cdata)
        self.on_host.clear()
        self.on_maca.clear()

    def new_maca(self, buffer: Any) -> Any:
        """Memory on the device that was not met before."""
        table, number = self.on_maca, id(buffer)

        def gone(held: Any) -> None:  # before the id can be another's
            table.pop(number, None)

        memory = table[number] = _Memory(weakref.ref(buffer, gone), buffer.writes)
        return memory

    def sweep(self) -> None:
        """Lets go of the host storages whose tensors are gone."""
        expired = torch.UntypedStorage._expired
        for cdata in [c for c in self.on_host if expired(c)]:
            torch.UntypedStorage._free_weak_ref(cdata)
            del self.on_host[cdata]

    def _memory(self, tensor: torch.Tensor) -> Any:
        if isinstance(tensor, MacaTensor):
            return self.on_maca.get(id(tensor._payload[0]))
        return self.on_host.get(tensor.untyped_storage()._cdata)

    def written_by(self, tensor: torch.Tensor, level: int, call: int) -> None:
        """A call that no result tells of has written the tensor's memory."""
        if (memory := self._memory(tensor)) is not None:
            memory.written_by(level, call)

    def blank(self, tensor: torch.Tensor, value: Any) -> None:
        """The tensor, of this value, is of memory that nobody has written."""
        memory = self._memory(tensor)
        if value is not None and memory is not None:
            memory.is_blank = True
            value.numbers, value.text, value.grad_text = "", None, None
