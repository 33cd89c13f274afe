"""``torchrun ... -m macatensor check --distributed``: who carries what between ranks, and how fast."""

from __future__ import annotations

import os
import time
from typing import Any

import typer

from .console import emit_json, err, out, table

_SIZES = {"1 KB": 1 << 10, "1 MB": 1 << 20, "64 MB": 64 << 20}
_CALLS = 5


def check_distributed(as_json: bool) -> None:
    """Every rank runs it; rank 0 prints."""
    if "RANK" not in os.environ:
        err.print(
            "[red]check --distributed[/] measures ranks; start them with "
            "`torchrun --nproc-per-node 2 -m macatensor check --distributed`"
        )
        raise typer.Exit(2)
    import torch
    import torch.distributed as dist

    import macatensor  # noqa: F401 - registers the device

    dist.init_process_group("mccl")
    group: Any = dist.group.WORLD
    ranks, carrier = dist.get_world_size(), group.carrier()
    seconds = {}
    for label, nbytes in _SIZES.items():
        x = torch.zeros(nbytes // 4, device="maca")
        for _ in range(3):  # from the third on in memory that ranks share
            dist.all_reduce(x)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(_CALLS):
            dist.all_reduce(x)
        torch.accelerator.synchronize()
        seconds[label] = (time.perf_counter() - start) / _CALLS
    shares = bool(group.supports_tensor_alloc(torch.device("maca")))
    if dist.get_rank() == 0:
        _show(as_json, ranks, carrier, shares, seconds)
    dist.destroy_process_group()


def _show(as_json: bool, ranks: int, carrier: str, shares: bool, seconds: dict[str, float]) -> None:
    moved = 2 * (ranks - 1) / ranks  # of the bytes, by each rank, whatever the way
    rates = {label: moved * _SIZES[label] / s / 1e9 for label, s in seconds.items()}
    carries = {
        "collectives of device tensors": f"{carrier}{', zero copy for memory that is used again' * shares}",
        "PREMUL_SUM, sums of float8": "gloo",
        "send, recv": "gloo",
        "tensors of the host": "gloo",
    }
    if as_json:
        emit_json({"ranks": ranks, "carriers": carries, "seconds": seconds, "gigabytes_per_second": rates})
        return
    page = table(f"{ranks} ranks", "what", "carried by")
    for what, who in carries.items():
        page.add_row(what, who)
    out.print(page)
    page = table("all_reduce of float32", "bytes", "microseconds", "GB/s a rank")
    for label, s in seconds.items():
        page.add_row(label, f"{s * 1e6:.0f}", f"{rates[label]:.2f}")
    out.print(page)
