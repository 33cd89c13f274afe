"""What a bisect of a program without a fault costs, in plain runs of it: ``python tests/benchmarks/bisect_cost.py [NAME...]``.

The twenty programs of tests/clean_programs.py, and larger ones beside them. A plain run is the median of those after the
first, taken before and after the bisect, which is warm: the first one of a process imports what judges. ``--json`` prints
objects. Exit status 1 where one costs more than the bar. Take figures on an idle machine.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from clean_programs import PROGRAMS

from macatensor import accuracy

BAR = 60  # plain runs
ROUNDS = 7


def _unet_of_64(device: str) -> None:
    """A U-Net of two levels on images of 64 x 64."""
    down, low, up = (
        nn.Conv2d(3, 16, 3, padding=1),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.Conv2d(48, 16, 3, padding=1),
    )
    out = nn.Conv2d(16, 1, 1)
    for layer in (down, low, up, out):
        layer.to(device)
    x = torch.randn(2, 3, 64, 64).to(device)
    high = F.relu(down(x))
    deep = F.interpolate(F.relu(low(F.max_pool2d(high, 2))), scale_factor=2.0)
    out(F.relu(up(torch.cat([high, deep], 1)))).square().mean().backward()


def _lstm_of_128(device: str) -> None:
    """Two layers of 128, 16 sequences of 32."""
    lstm = nn.LSTM(128, 128, 2, batch_first=True).to(device)
    lstm(torch.randn(16, 32, 128).to(device))[0].square().mean().backward()


LARGER: dict[str, Callable[[str], object]] = {"unet_of_64": _unet_of_64, "lstm_of_128": _lstm_of_128}


def _seconds(program: Callable[[str], object]) -> float:
    torch.manual_seed(0)
    start = time.perf_counter()
    program("maca")
    torch.maca.synchronize()
    return time.perf_counter() - start


def cost(program: Callable[[str], object]) -> tuple[float, float]:
    """Seconds of a plain run and of a bisect."""
    folder = "build/bisect_cost"
    accuracy.bisect(lambda: program("maca"), output_dir=folder)
    _seconds(program)
    plain = [_seconds(program) for _ in range(ROUNDS)]
    taken = []
    for _ in range(3):
        torch.manual_seed(0)
        start = time.perf_counter()
        found = accuracy.bisect(lambda: program("maca"), output_dir=folder)
        taken.append(time.perf_counter() - start)
        assert found.finding is None, str(found)
        plain += [_seconds(program) for _ in range(ROUNDS)]
    return statistics.median(plain), statistics.median(taken)


def main() -> int:
    words = [w for w in sys.argv[1:] if not w.startswith("-")]
    programs = {n: p for n, p in {**PROGRAMS, **LARGER}.items() if not words or any(w in n for w in words)}
    is_over = False
    for name, program in programs.items():
        plain, taken = cost(program)
        is_over |= taken > BAR * plain
        if "--json" in sys.argv:
            print(
                json.dumps({"program": name, "plain_s": plain, "bisect_s": taken, "ratio": taken / plain}),
                flush=True,
            )
        else:
            print(f"{name:22} {plain * 1e3:8.2f} ms  {taken / plain:6.1f} plain runs", flush=True)
    return is_over


if __name__ == "__main__":
    sys.exit(main())
