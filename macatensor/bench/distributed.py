"""Collectives of two ranks of one thread each, over gloo's on tensors of the host in the same run."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from macatensor.bench.hosts import two_hosts
from macatensor.bench.measure import quartiles
from macatensor.bench.result import Result

RANKS = 2
SIZES = {"1KB": 1 << 10, "1MB": 1 << 20, "64MB": 64 << 20}
BARS: dict[str, float | None] = {
    "all_reduce.1KB": 0.5,
    "all_reduce.1MB": 0.45,
    "all_reduce.64MB": 0.7,
    "all_reduce_shared.1MB": 0.15,
    "all_reduce_shared.64MB": 0.2,
    "copy.64MB": 1.43,
    "all_gather.64MB": 0.6,
    "reduce_scatter.64MB": 0.6,
    "all_to_all.64MB": 0.6,
    "ddp.resnet18": 0.8,
    "ddp.gpt": 0.8,
    "ddp.resnet18.ranks": 1.1,
    "ddp.gpt.ranks": 1.1,
    "ddp.overlap": 1.05,
    "ddp.exposed": 0.2,
    "fsdp.held": 0.55,
    "fsdp.peak": None,  # activations are in it, of which each rank has those of its part of the batch
    "hosts.1KB": None,  # two meetings in the place of one: that all ranks make the same call comes first
    "hosts.1MB": 1.15,
    "hosts.64MB": 1.15,
}
NAP = 0.005  # seconds that the carrier of ddp.exposed sleeps for each bucket


# What a case is put beside, by its name or the first part of it; gloo on tensors of the host if nothing is said. An
# all_reduce without copies reads and writes what a copy of as many bytes does, so 1.43 is 0.7 of the bandwidth of copies.
BESIDE = {
    "ddp.resnet18.ranks": "one process of as many threads, with the batches of all ranks",
    "ddp.gpt.ranks": "one process of as many threads, with the batches of all ranks",
    "ddp.overlap": "the step without communication, then the collectives alone",
    "ddp.exposed": "the sleep of a carrier that takes 5 ms a bucket and no core",
    "ddp": "DDP of the host",
    "fsdp": "bytes of one process with the batches of all ranks",
    "copy": "a copy of as many bytes",
    "hosts": "gloo on host tensors, between two network namespaces",
}


def of_one_host(what: str) -> Callable[[int, bool], list[Result]]:
    """Measures ranks of this machine. It raises RuntimeError with what the ranks said where one of them failed."""

    def measured(rounds: int, quick: bool) -> list[Result]:
        with tempfile.TemporaryDirectory() as folder:
            meeting = f"file://{Path(folder) / 'meeting'}"
            return _results(_measured(what, meeting, [list] * RANKS, rounds, quick))

    return measured


def between_hosts(rounds: int, quick: bool) -> list[Result]:
    """As :func:`of_one_host`, a rank on each of two hosts; nothing but a remark where the machine cannot make them."""
    try:
        with two_hosts() as hosts:
            ranks = [partial(host.command, folder=Path.cwd()) for host in hosts]
            return _results(_measured("hosts", f"tcp://{hosts[0].address}:29400", ranks, rounds, quick))
    except OSError as error:
        print(f"distributed.hosts: this machine makes no namespaces: {error}", file=sys.stderr)
        return []


def _results(found: dict[str, dict[str, list[float]]]) -> list[Result]:
    results = []
    for case, times in found.items():
        host, ours = times["host"], times["maca"]
        ratios = [a / b for a, b in zip(ours, host)]
        beside = BESIDE.get(case) or BESIDE.get(case.split(".")[0], "gloo on host tensors")
        seconds = [None if case.startswith("fsdp.") else statistics.median(side) for side in (host, ours)]
        results.append(
            Result(
                f"distributed.{case}", beside, statistics.median(ratios), BARS[case], seconds[0], seconds[1],
                spread=(min(ratios), max(ratios)), middle=quartiles(ratios),
            )
        )  # fmt: skip
    return results


def _measured(
    what: str, meeting: str, ranks: Sequence[Callable[[list[str]], list[str]]], rounds: int, quick: bool
) -> dict[str, dict[str, list[float]]]:
    """What rank 0 prints. ``ranks``: what makes of a command the one that runs it where the rank is."""
    start = [sys.executable, "-m", "macatensor.bench.of_ranks", what, meeting]
    more = [str(len(ranks)), str(1 if quick else rounds), str(int(quick))]
    processes = [
        subprocess.Popen(
            there([*start, str(rank), *more]), env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank, there in enumerate(ranks)
    ]  # fmt: skip
    said = [process.communicate() for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError("\n".join(error for _, error in said))
    found: dict[str, dict[str, list[float]]] = json.loads(said[0][0])
    return found


CASES = {
    "distributed.collectives": of_one_host("collectives"),
    "distributed.training": of_one_host("training"),
    "distributed.overlap": of_one_host("overlap"),
    "distributed.ranks": of_one_host("scaling"),
    "distributed.memory": of_one_host("memory"),
    "distributed.hosts": between_hosts,
}
