"""What a process group says of itself: its backend's name, its ranks, its store."""

from __future__ import annotations

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from macatensor.runtime.boxed import Value

_ProcessGroup: Value = dist.ProcessGroup


class Membership(_ProcessGroup):  # type: ignore[misc]
    """One rank's place in a group of the backend ``mccl``."""

    supports_coalescing = True
    supports_time_estimate = False
    supports_shrinking = False

    def __init__(self, store: Store, rank: int, ranks: int, name: str):
        super().__init__(rank, ranks)
        self._name = name  # where c10d does not know one, "" where it does
        self._store = store
        self._rank = rank
        self._ranks = ranks

    def get_group_store(self) -> Store:
        return self._store

    def getBackendName(self) -> str:
        return "mccl"

    name = getBackendName

    def rank(self) -> int:
        return self._rank

    getRank = rank

    def size(self) -> int:
        return self._ranks

    getSize = size

    @property
    def group_name(self) -> str:
        return str(dist.distributed_c10d._world.pg_names.get(self, self._name))

    pg_name = group_name

    def _set_sequence_number_for_group(self) -> None:
        pass
