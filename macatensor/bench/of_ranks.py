"""One rank of the benchmark of collectives: ``python -m macatensor.bench.of_ranks MEETING RANK RANKS ROUNDS QUICK``.

Rank 0 prints, as JSON, seconds per call of each case round by round: ``host``, gloo on tensors of the host, and ``maca``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from macatensor.bench import models
from macatensor.bench.distributed import SIZES

Sides = dict[str, Callable[[], object]]
Calls = dict[str, Callable[[torch.Tensor], object]]


def _calls(ranks: int) -> Calls:
    return {
        "all_reduce": dist.all_reduce,
        "all_gather": lambda t: dist.all_gather_single(t.new_empty(ranks * t.numel()), t),
        "reduce_scatter": lambda t: dist.reduce_scatter_single(t.new_empty(t.numel() // ranks), t),
        "all_to_all": lambda t: dist.all_to_all_single(torch.empty_like(t), t),
    }


def _seconds(call: Callable[[], object], count: int) -> float:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(count):
        call()
    torch.accelerator.synchronize()
    return (time.perf_counter() - start) / count


def _resnet(device: str, quick: bool) -> Callable[[], object]:
    model = DistributedDataParallel(models.resnet(18, quick).to(device))
    x, y = torch.randn(4, 3, *(2 * (32 if quick else 64,))), torch.randint(10, (4,))
    return models.resnet_step(model, x.to(device), y.to(device))


def _gpt(device: str, quick: bool) -> Callable[[], object]:
    model: Any = DistributedDataParallel(models.gpt(quick).to(device))
    tokens = torch.randint(models.TINY_SIZES.vocabulary, (2, 33 if quick else 129))
    return models.gpt_step(model, tokens.to(device))


def main(meeting: str, rank: int, ranks: int, rounds: int, quick: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo,maca:mccl", init_method=meeting, rank=rank, world_size=ranks)
    found: dict[str, dict[str, list[float]]] = {}

    def measure(name: str, sides: Sides, count: int) -> None:
        times = found[name] = {side: [] for side in sides}
        for begin in sides.values():
            begin()  # plans, connections and memory
        for _ in range(rounds):
            for side, call in sides.items():
                times[side].append(_seconds(call, count))

    def measure_collective(operator: str, label: str, call: Callable[[torch.Tensor], object]) -> None:
        nbytes = SIZES[label]
        n = min(nbytes, 1 << 16 if quick else nbytes) // 4
        operands = {"host": torch.zeros(n), "maca": torch.zeros(n, device="maca")}
        sides: Sides = {side: partial(call, t) for side, t in operands.items()}
        if operator == "copy":
            sides["host"] = partial(torch.zeros(n).copy_, operands["host"])
        sides["maca"]()  # memory that comes again is shared from the second time on
        measure(f"{operator}.{label}", sides, 1 if n > 1 << 22 else 20)

    os.environ["MACA_COLLECTIVES"] = "staged"
    for operator, call in _calls(ranks).items():
        for label in SIZES if operator == "all_reduce" else ("64MB",):
            measure_collective(operator, label, call)
    os.environ["MACA_COLLECTIVES"] = "library"
    for operator, label in (("all_reduce_shared", "1MB"), ("all_reduce_shared", "64MB"), ("copy", "64MB")):
        measure_collective(operator, label, dist.all_reduce)
    for model, made in (("ddp.resnet18", _resnet), ("ddp.gpt", _gpt)):
        measure(model, {"host": made("cpu", quick), "maca": made("maca", quick)}, 1)
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "1")
