"""What ``import macatensor`` adds to ``import torch``."""

from __future__ import annotations

import statistics
import subprocess
import sys

from macatensor.bench.measure import quartiles
from macatensor.bench.result import Result

IMPORT_SECONDS = 0.5
_SCRIPT = """
import time
start = time.perf_counter()
import torch
middle = time.perf_counter()
import macatensor
print(middle - start, time.perf_counter() - middle)
"""


def startup(rounds: int, quick: bool) -> list[Result]:
    """Seconds in fresh processes; the first one, which may read from disk, does not count."""
    torch_seconds, ours = [], []
    for i in range(1 if quick else 1 + rounds):
        out = subprocess.run(
            [sys.executable, "-c", _SCRIPT], check=True, capture_output=True, text=True
        ).stdout
        if i or quick:
            first, second = map(float, out.split())
            torch_seconds.append(first)
            ours.append(second)
    return [
        Result(
            "import", "on top of import torch", statistics.median(ours), IMPORT_SECONDS,
            statistics.median(torch_seconds), statistics.median(ours), unit="s", spread=(min(ours), max(ours)),
            middle=quartiles(ours),
        )
    ]  # fmt: skip
