"""What a process group gives of memory that its ranks share."""

from __future__ import annotations

import torch

from macatensor.device.memory_pools import Memory, MemPool
from macatensor.distributed.carriers import Carriers
from macatensor.distributed.membership import Membership
from macatensor.distributed.snapshots import in_shared_memory


class SharedMemory(Membership):
    """A rank whose carriers may have memory that others reach without a copy."""

    _carriers: Carriers

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Has :meth:`allocate_tensor` memory that ranks share? As c10d asks a backend."""
        return torch.device(device).type == "maca" and self._carriers.has_shared_memory()

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Elements of any content, in memory that other ranks reach without a copy where there is such memory."""
        return in_shared_memory(torch.empty(size, dtype=dtype, device=device))

    @property
    def mem_allocator(self) -> Memory:
        """For :class:`torch.maca.MemPool`. Raises RuntimeError where ranks share no memory, as c10d does."""
        if not self._carriers.has_shared_memory():
            raise RuntimeError("Backend mccl does not support mem allocator: its ranks share no memory")
        return Memory.RANKS

    def register_mem_pool(self, pool: MemPool, symm: bool = False) -> None:
        """Nothing to do: memory of such a pool is known to the ranks where it is allocated."""

    def deregister_mem_pool(self, pool: MemPool) -> None:
        """Nothing to do, see :meth:`register_mem_pool`."""
