"""``split_group``: groups of some of a group's ranks, which meet through the group's own store."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from macatensor.runtime.boxed import Value


@dataclass
class Options:
    """What c10d reads and copies of a backend's options."""

    _timeout: datetime.timedelta
    backend: str = "mccl"
    is_high_priority_stream: bool = False


class Splits:
    """What c10d asks of a group that can be split. The ranks outside of a part take no part in making it."""

    supports_splitting = True
    _store: Store
    _rank: int
    _ranks: int
    _timeout: datetime.timedelta
    _splits = 0  # how often it was split

    @property
    def timeout(self) -> datetime.timedelta:
        return self._timeout

    @property
    def options(self) -> Options:
        return Options(self._timeout)

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: datetime.timedelta | None = None,
        opts: Value = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        **more: Value,
    ) -> Value:
        """The group of these of our ranks, in their order, which c10d sorts up to 2.13; None on the others. Raises
        ValueError for ranks that this group has not."""
        strange = [r for r in ranks if not 0 <= r < self._ranks]
        if strange:
            raise ValueError(f"split_group: ranks {strange} are not in a group of {self._ranks} ranks")
        # on every rank of this group: c10d's name counts the groups of a rank, which differ
        self._splits += 1
        if self._rank not in ranks:
            return None
        made = list(ranks)
        store = PrefixStore(f"split{self._splits}/{'_'.join(map(str, made))}/", self._store)
        name = group_name or f"{self._splits}:{made}"
        return type(self)(store, made.index(self._rank), len(made), timeout or self._timeout, name)  # type: ignore[call-arg]

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Called on ranks that are in no part; of NCCL they would have to help."""

    def eager_connect_single_device(self, device: torch.device) -> None:
        """The ranks meet at their first collective."""


def remain_whole() -> None:
    """Makes groups that are new beside ours stand for themselves.

    From 2.14 on c10d hands the default group to whatever backend makes another one, as what it may be split from, if that
    group says that it can be split. ``torch.distributed.split_group`` asks a group itself and finds ours.
    """
    c10d: Value = dist.distributed_c10d
    source = dist.distributed_c10d._get_split_source

    def of_others(group: Value) -> Value:
        found = source(group)
        return None if isinstance(found, Splits) else found

    c10d._get_split_source = of_others
