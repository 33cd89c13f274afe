"""Collectives of two ranks of one thread each, over gloo's on tensors of the host in the same run."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from macatensor.bench.measure import quartiles
from macatensor.bench.result import Result

RANKS = 2
SIZES = {"1KB": 1 << 10, "1MB": 1 << 20, "64MB": 64 << 20}
BARS = {
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
}


# What the times are put beside; gloo on tensors of the host if nothing is said. An all_reduce without copies reads and
# writes what a copy of as many bytes does, so 1.43 is 0.7 of the bandwidth of copies.
BESIDE = {"ddp": "DDP of the host", "copy": "a copy of as many bytes"}


def distributed(rounds: int, quick: bool) -> list[Result]:
    """Raises RuntimeError with what the ranks said where one of them failed."""
    results = []
    for case, times in _measured(rounds, quick).items():
        host, ours = times["host"], times["maca"]
        ratios = [a / b for a, b in zip(ours, host)]
        results.append(
            Result(
                f"distributed.{case}", BESIDE.get(case.split(".")[0], "gloo on host tensors"),
                statistics.median(ratios), BARS[case], statistics.median(host), statistics.median(ours),
                spread=(min(ratios), max(ratios)), middle=quartiles(ratios),
            )
        )  # fmt: skip
    return results


def _measured(rounds: int, quick: bool) -> dict[str, dict[str, list[float]]]:
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder) / 'meeting'}"
        command = [sys.executable, "-m", "macatensor.bench.of_ranks", meeting]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(RANKS), str(1 if quick else rounds), str(int(quick))],
                env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(RANKS)
        ]  # fmt: skip
        said = [process.communicate() for process in ranks]
    if any(process.returncode for process in ranks):
        raise RuntimeError("\n".join(error for _, error in said))
    found: dict[str, dict[str, list[float]]] = json.loads(said[0][0])
    return found
