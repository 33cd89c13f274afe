"""Which values are the same: an allocation, how often it was written, and the view of it.

A value that is met again has been measured already, and the call that made it is known.
"""

from __future__ import annotations

import torch

from macatensor.runtime.ffi import native_recorder
from macatensor.runtime.tensor import MacaTensor

API, ATEN = 0, 1  # the levels of calls: of each a value has a call that made it


class Identities:
    """The allocations that a session has met."""

    def __init__(self) -> None:
        self.memories = native_recorder.RecordedMemories()

    def close(self) -> None:
        """Lets go of them."""
        self.memories.clear()

    def _memory(self, tensor: torch.Tensor) -> native_recorder.RecordedMemory | None:
        return self.memories.get(
            tensor._payload[0] if isinstance(tensor, MacaTensor) else tensor.untyped_storage()
        )

    def written_by(self, tensor: torch.Tensor, level: int, call: int) -> None:
        """A call that no result tells of has written the tensor's memory."""
        if (memory := self._memory(tensor)) is not None:
            memory.written_by(level, call)

    def blank(self, tensor: torch.Tensor, value: native_recorder.RecordedValue | None) -> None:
        """The tensor, of this value, is of memory that nobody has written."""
        memory = self._memory(tensor)
        if value is not None and memory is not None:
            memory.is_blank = True
            value.numbers, value.text, value.grad_text = "", None, None
