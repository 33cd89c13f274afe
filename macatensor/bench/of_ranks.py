"""One rank of the benchmark of collectives: ``python -m macatensor.bench.of_ranks WHAT MEETING RANK RANKS ROUNDS QUICK``.

WHAT is a method of :class:`Rank`. Rank 0 prints, as JSON, seconds per call of each case round by round:
``host``, which is gloo on tensors of the host or what else the case is put beside, and ``maca``.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from macatensor.bench import models
from macatensor.bench.distributed import NAP, SIZES
from macatensor.distributed.library import LibraryCarrier

Sides = dict[str, Callable[[], object]]
Calls = dict[str, Callable[[torch.Tensor], object]]
_Wrap = Callable[[Any], Any]
_Trained = tuple[Any, Callable[[], object]]


def _calls(ranks: int) -> Calls:
    return {
        "all_reduce": dist.all_reduce,
        "all_gather": lambda t: dist.all_gather_single(t.new_empty(ranks * t.numel()), t),
        "reduce_scatter": lambda t: dist.reduce_scatter_single(t.new_empty(t.numel() // ranks), t),
        "all_to_all": lambda t: dist.all_to_all_single(torch.empty_like(t), t),
    }


def _wait_for_all() -> None:
    """As a barrier, by gloo, which waits without a core."""
    dist.all_reduce(torch.zeros(1))


def _seconds(call: Callable[[], object], count: int) -> float:
    dist.barrier()
    return _time(call, count)


def _time(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    torch.accelerator.synchronize()
    return (time.perf_counter() - start) / count


def _resnet(device: str, quick: bool, over: _Wrap = DistributedDataParallel, batch: int = 4) -> _Trained:
    """A model, as ``over`` makes it of a plain one, and its training step."""
    model = over(models.resnet(18, quick).to(device))
    x, y = torch.randn(batch, 3, *(2 * (32 if quick else 64,))), torch.randint(10, (batch,))
    return model, models.resnet_step(model, x.to(device), y.to(device))


def _gpt(device: str, quick: bool, over: _Wrap = DistributedDataParallel, batch: int = 2) -> _Trained:
    model = over(models.gpt(quick).to(device))
    tokens = torch.randint(models.TINY_SIZES.vocabulary, (batch, 33 if quick else 129))
    return model, models.gpt_step(model, tokens.to(device))


def _plain(model: Any) -> Any:
    return model


def _sharded(model: Any) -> Any:
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def _in_buckets(megabytes: float) -> _Wrap:
    """DDP that reduces so much of the gradients together."""
    return partial(DistributedDataParallel, bucket_cap_mb=megabytes)


def _buckets(model: Any) -> list[torch.Tensor]:
    """Tensors of the sizes of the buckets in which DDP reduced the model's gradients."""
    sizes = (
        model._get_ddp_logging_data()["rebuilt_bucket_sizes"] or model._get_ddp_logging_data()["bucket_sizes"]
    )
    return [torch.zeros(int(size) // 4, device="maca") for size in sizes.split(", ")]


def _without_communication(model: Any, step: Callable[[], object]) -> Callable[[], object]:
    def alone() -> None:
        with model.no_sync():
            step()

    return alone


class _Sleeping:
    """In the place of a carrier, one whose collectives take time and no core, and move nothing."""

    seconds = 0.0

    def __enter__(self) -> _Sleeping:
        self._reduce = LibraryCarrier.reduce
        LibraryCarrier.reduce = self._sleep  # type: ignore[assignment, method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        LibraryCarrier.reduce = self._reduce  # type: ignore[method-assign]

    def _sleep(self, *_: object) -> bool:
        time.sleep(self.seconds)
        return True

    def around(self, seconds: float, step: Callable[[], object]) -> Callable[[], object]:
        """The step with a carrier that takes so long for each bucket."""

        def slower() -> None:
            self.seconds = seconds
            step()

        return slower


class Rank:
    """What a rank measures."""

    def __init__(self, ranks: int, rounds: int, quick: bool):
        self.found: dict[str, dict[str, list[float]]] = {}
        self._ranks, self._rounds, self._quick = ranks, rounds, quick

    def measure(self, name: str, sides: Sides, count: int = 1) -> None:
        times = self.found[name] = {side: [] for side in sides}
        for begin in sides.values():
            begin()  # plans, connections and memory
        for _ in range(self._rounds):
            for side, call in sides.items():
                times[side].append(_seconds(call, count))

    def measure_collective(self, operator: str, label: str, call: Callable[[torch.Tensor], object]) -> None:
        nbytes = SIZES[label]
        n = min(nbytes, 1 << 16 if self._quick else nbytes) // 4
        operands = {"host": torch.zeros(n), "maca": torch.zeros(n, device="maca")}
        sides: Sides = {side: partial(call, t) for side, t in operands.items()}
        if operator == "copy":
            sides["host"] = partial(torch.zeros(n).copy_, operands["host"])
        sides["maca"]()  # memory that comes again is shared from the second time on
        self.measure(f"{operator}.{label}", sides, 1 if n > 1 << 22 else 20)

    def collectives(self) -> None:
        os.environ["MACA_COLLECTIVES"] = "staged"
        for operator, call in _calls(self._ranks).items():
            for label in SIZES if operator == "all_reduce" else ("64MB",):
                self.measure_collective(operator, label, call)
        os.environ["MACA_COLLECTIVES"] = "library"
        for operator, label in (
            ("all_reduce_shared", "1MB"),
            ("all_reduce_shared", "64MB"),
            ("copy", "64MB"),
        ):
            self.measure_collective(operator, label, dist.all_reduce)

    def training(self) -> None:
        for name, made in (("ddp.resnet18", _resnet), ("ddp.gpt", _gpt)):
            self.measure(name, {"host": made("cpu", self._quick)[1], "maca": made("maca", self._quick)[1]})

    def scaling(self) -> None:
        """A step of all ranks beside one of rank 0 alone, with as many threads as there are ranks, and their batches."""
        for name, made, batch in (("ddp.resnet18.ranks", _resnet, 4), ("ddp.gpt.ranks", _gpt, 2)):
            alone = made("maca", self._quick, _plain, self._ranks * batch)[1]
            shared = made("maca", self._quick, batch=batch)[1]
            times = self.found[name] = {"host": [], "maca": []}
            for _ in range(1 + self._rounds):
                if dist.get_rank() == 0:
                    torch.set_num_threads(self._ranks)
                    alone()  # plans for so many threads
                    times["host"].append(_time(alone, 2))
                    torch.set_num_threads(1)
                _wait_for_all()  # without a core
                shared()
                times["maca"].append(_seconds(shared, 2))
            for side in times.values():
                del side[:1]  # what is made once is made then

    def memory(self) -> None:
        """Bytes of a rank whose GPT is sharded, between two steps and at most, beside one process's."""
        module = torch.get_device_module("maca")
        for side, over, batch in (("host", _plain, 2 * self._ranks), ("maca", _sharded, 2)):
            gc.collect()
            before = module.memory_allocated()
            trained = _gpt("maca", self._quick, over, batch)
            for _ in range(3):
                trained[1]()
            module.synchronize()
            gc.collect()
            module.reset_peak_memory_stats()
            held = module.memory_allocated() - before
            trained[1]()
            module.synchronize()
            peak = module.max_memory_allocated() - before
            for case, nbytes in (("fsdp.held", held), ("fsdp.peak", peak)):
                self.found.setdefault(case, {})[side] = [float(nbytes)]
            del trained

    def overlap(self) -> None:
        """A step of DDP beside its parts: the step without communication, and the collectives alone."""
        model, step = _resnet("maca", self._quick, _in_buckets(0.05 if self._quick else 4))
        alone = _without_communication(model, step)
        for _ in range(3):
            step()  # DDP orders its buckets anew after the first
        buckets = _buckets(model)

        def parts() -> None:
            alone()
            for bucket in buckets:
                dist.all_reduce(bucket)

        for _ in range(3):
            parts()  # their memory is shared as DDP's is
        self.measure("ddp.overlap", {"host": parts, "maca": step})
        # of so large a batch that the backward pass is longer than what the carrier sleeps, on a fast machine, too
        model, step = _resnet("maca", self._quick, _in_buckets(0.05 if self._quick else 1), batch=16)
        step()
        with _Sleeping() as carrier:
            self.measure("ddp.exposed", {"host": carrier.around(0, step), "maca": carrier.around(NAP, step)})
        # of the time in which the carrier slept, what the step did not hide
        times = self.found["ddp.exposed"]
        times["maca"] = [slower - plain for slower, plain in zip(times["maca"], times["host"])]
        times["host"] = [NAP * len(_buckets(model))] * self._rounds

    def hosts(self) -> None:
        for label in SIZES:
            self.measure_collective("hosts", label, dist.all_reduce)


def main(what: str, meeting: str, rank: int, ranks: int, rounds: int, quick: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo,maca:mccl", init_method=meeting, rank=rank, world_size=ranks)
    this = Rank(ranks, rounds, quick)
    getattr(this, what)()
    if rank == 0:
        print(json.dumps(this.found))
    dist.destroy_process_group()


if __name__ == "__main__":
    _what, _meeting, _rank, _ranks, _rounds, _quick = sys.argv[1:]
    main(_what, _meeting, int(_rank), int(_ranks), int(_rounds), _quick == "1")
