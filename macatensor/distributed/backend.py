"""Tells c10d of the backend ``mccl``."""

from __future__ import annotations

import atexit
import datetime
import os
import sys
import weakref
from types import FrameType

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from macatensor.distributed import checkpoints, functional, one_device, reducer, remote_calls, splitting
from macatensor.runtime.boxed import Value


def _create(store: Store, rank: int, ranks: int, timeout: datetime.timedelta) -> dist.ProcessGroup:
    from macatensor.distributed.group import MacaProcessGroup

    group = MacaProcessGroup(_fresh(store), rank, ranks, timeout)
    if (device := _named_device()) is not None:
        group.bound_device_id = device
    if not _groups:
        atexit.register(_end)
    _groups.append(weakref.ref(group))
    return group


def _named_device() -> torch.device | None:
    """The ``device_id`` of ``init_process_group``: c10d notes it on a group of which ours takes the place, and passes it
    to nobody. Only a group with a device can be split."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get("device_id")


def _fresh(store: Store) -> Store:
    """The store without what an earlier attempt left there: torchrun gives workers that it restarts the same store, in
    which gloo would find the addresses of processes that are gone. Agents of several machines count their restarts
    each for itself, so there only ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`` helps."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0" or os.environ.get("GROUP_WORLD_SIZE") != "1":
        return store
    return PrefixStore(f"attempt{attempt}/", store)


_groups: list[weakref.ref[Value]] = []


def _end() -> None:
    for reference in _groups:
        group = reference()
        if group is not None:
            group.end()


def register() -> None:
    """Makes ``init_process_group("mccl")`` possible, and ``mccl`` what device maca gets without a name."""
    if dist.is_available():
        dist.Backend.register_backend("mccl", _create, devices=["maca", "cpu"])
        # as of cuda: else a process with a device could have no group of gloo beside
        devices: list[str] = getattr(dist.Backend, "backend_capability", {}).get("gloo", [])
        if "maca" not in devices:
            devices.append("maca")
        splitting.remain_whole()
        reducer.register()
        checkpoints.register()
        functional.register()
        remote_calls.register()
    one_device.register()
