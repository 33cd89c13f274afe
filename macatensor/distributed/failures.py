"""What a failed collective says: group, operator and rank, and what the other ranks called meanwhile."""

from __future__ import annotations

import datetime
from typing import NamedTuple

import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import DistBackendError

from macatensor.distributed import flight_recorder
from macatensor.runtime.boxed import Value

_PATIENCE = datetime.timedelta(seconds=2)  # for what the others say: they fail at about the same time


class Member(NamedTuple):
    """A rank's place in a group."""

    store: Store
    group: str
    rank: int
    ranks: int


def watched(gloo: Value, store: Store, timeout: datetime.timedelta) -> Value:
    """Gloo for tensors of the host. With ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` it names the ranks that call different
    collectives, as the backend ``gloo`` does then; those on the device say so always."""
    debug: Value = dist
    if debug.get_debug_level() != debug.DebugLevel.DETAIL:
        return gloo
    create: Value = dist.distributed_c10d._create_process_group_wrapper
    return create(
        wrapped_pg=gloo,
        store_prefix="",
        store=store,
        rank=gloo.rank(),
        world_size=gloo.size(),
        timeout=timeout,
    )


def explained(member: Member, number: int, call: str, error: Exception) -> Exception:
    """The error for collective ``number`` of the group, which the program issued as ``call``."""
    said = (
        f"mccl: {call}, collective {number} of the group {member.group!r}, failed on rank {member.rank} of "
        f"{member.ranks}: {error}."
    )
    others = _others(member, number, call)
    if others:
        said += f" What the ranks called as their collective {number}: {others}."
    return DistBackendError(said + flight_recorder.told())


def _others(member: Member, number: int, call: str) -> str:
    key = f"mccl/failed/{number}/"
    calls = {member.rank: call}
    try:
        member.store.set(f"{key}{member.rank}", call)
        for rank in range(member.ranks):
            if rank == member.rank:
                continue
            member.store.wait([f"{key}{rank}"], _PATIENCE)
            calls[rank] = member.store.get(f"{key}{rank}").decode()
    except Exception:  # a rank that is gone says nothing, and rank 0's takes the store along
        pass
    silent = [rank for rank in range(member.ranks) if rank not in calls]
    told = [f"rank {rank} {calls[rank]}" for rank in sorted(calls)]
    told += [f"rank {rank} said nothing" for rank in silent]
    return "; ".join(told)
