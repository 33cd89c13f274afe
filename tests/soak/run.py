"""Does one thing for long and shows that memory stays flat: ``python tests/soak/run.py``.

    python tests/soak/run.py                          # everything, a quarter of an hour
    python tests/soak/run.py steps graphs --share 0.1  # some, a tenth as long
    python tests/soak/run.py --json soak.json

Each load runs in a process of its own. Its memory is read after every twentieth: of the process (what it holds of the
machine's), of the device's tensors, and the number of plans. A load passes when the most that its process holds is in the
last quarter 1 % and 4 MB larger at most than in the one before, and the device's memory no larger. Exit status 1 where
one does not.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

PARTS = 20
PAGE = 4096  # bytes
Load = Callable[[int], Iterator[None]]  # yields after each of so many turns
LOADS: dict[str, tuple[int, Load]] = {}


def load(turns: int) -> Callable[[Load], Load]:
    """Names a load after its function; ``turns`` is how often it does its thing."""

    def register(function: Load) -> Load:
        LOADS[function.__name__] = turns, function
        return function

    return register


@load(50_000)
def steps(turns: int) -> Iterator[None]:
    """training steps of a convolutional network, a GPT and an LSTM in turn"""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from small_trainings import MODELS, Training

    trainings = [Training(name) for name in MODELS]
    for turn in range(turns):
        trainings[turn % len(trainings)].step()
        yield


@load(100_000)
def shapes(turns: int) -> Iterator[None]:
    """shapes that were never seen, of five operators"""
    import torch

    drawn = torch.Generator().manual_seed(0)
    for _ in range(turns):
        rows, columns, inner = (int(n) for n in torch.randint(1, 200, (3,), generator=drawn))
        x = torch.ones(rows, inner, device="maca")
        (torch.relu(x @ x.new_ones(inner, columns)) + 1).sum(0)
        del x  # of another size each time
        yield


@load(1_000_000)
def tensors(turns: int) -> Iterator[None]:
    """tensors of all sizes, of which the last thousand live"""
    import torch

    held: list[torch.Tensor | None] = [None] * 1000
    drawn = torch.Generator().manual_seed(0)
    sizes = (2 ** (torch.rand(10_000, generator=drawn) * 18)).long().tolist()
    for turn in range(turns):
        held[turn * 7919 % 1000] = torch.empty(sizes[turn % 10_000], device="maca")
        yield


@load(1000)
def graphs(turns: int) -> Iterator[None]:
    """captured graphs, each replayed and dropped"""
    import torch

    from macatensor import maca
    from macatensor.demo import models

    model, batch = maca(models.digits_resnet().eval()), maca(torch.rand(2, 3, 8, 8))
    for _ in range(turns):
        graph = torch.maca.MacaGraph()
        with torch.no_grad(), torch.maca.graph(graph):
            model(batch)
        graph.replay()
        yield


@load(2000)
def failures(turns: int) -> Iterator[None]:
    """out of memory in the middle of a step, refused operands, and the step again"""
    import torch

    from macatensor import maca

    layer = maca(torch.nn.Linear(64, 64))
    for turn in range(turns):
        x = torch.ones(8, 64, device="maca")
        try:
            layer(x).expand(1 << 30, 8, 64).mul(2.0 if turn % 2 else x[:3])
        except (torch.OutOfMemoryError, RuntimeError):
            pass
        layer(x).sum().backward()
        layer.zero_grad()
        yield


@dataclass
class Reading:
    """Bytes that a process and its device's tensors hold, and plans that it keeps, after so many turns."""

    turns: int
    process: int
    device: int
    plans: int


@dataclass
class Result:
    """What a load gave; ``readings`` are of equal parts."""

    name: str
    seconds: float = 0.0
    readings: list[Reading] = field(default_factory=list)

    def growth(self) -> tuple[int, int]:
        """By how many bytes of the process and of the device the last quarter's most exceeds that of the one before."""
        quarter = len(self.readings) // 4
        before, last = self.readings[-2 * quarter : -quarter], self.readings[-quarter:]
        return (
            max(r.process for r in last) - max(r.process for r in before),
            max(r.device for r in last) - max(r.device for r in before),
        )

    def is_flat(self) -> bool:
        process, device = self.growth()
        return process <= 0.01 * self.readings[-1].process + (4 << 20) and device <= 0


def _serve(name: str, turns: int, queue: multiprocessing.Queue[Reading | None]) -> None:
    import torch

    import macatensor  # noqa: F401
    from macatensor.runtime.plan_caches import count_plans

    torch.set_num_threads(2)
    for turn, _ in enumerate(LOADS[name][1](turns), 1):
        if turn % max(1, turns // PARTS) == 0:
            gc.collect()
            torch.maca.synchronize()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            queue.put(Reading(turn, pages * PAGE, torch.maca.memory_allocated(), count_plans()))
    queue.put(None)


def run(name: str, turns: int, advance: Callable[[], None]) -> Result:
    """A load in a process of its own, which has ended by then. Raises RuntimeError where it died."""
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[Reading | None] = context.Queue()
    process = context.Process(target=_serve, args=(name, turns, queue), daemon=True)
    result, begun = Result(name), time.monotonic()
    process.start()
    while process.is_alive() or not queue.empty():
        try:
            reading = queue.get(timeout=1)
        except Empty:
            continue
        if reading is None:
            break
        result.readings.append(reading)
        advance()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"the process of {name} ended with {process.exitcode}")
    result.seconds = time.monotonic() - begun
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("loads", nargs="*", metavar="LOAD", help=", ".join(LOADS), default=list(LOADS))
    parser.add_argument("--share", type=float, default=1.0, help="of each load's turns")
    parser.add_argument("--json", type=Path, help="where to write the readings")
    arguments = parser.parse_args()
    table = Table("load", "turns", "min.", "process, MB", "grown", "device, MB", "grown", "plans", "")
    results = []
    with Progress() as progress:
        for name in arguments.loads:
            turns = max(PARTS, int(LOADS[name][0] * arguments.share))
            bar = progress.add_task(name, total=PARTS)
            result = run(name, turns, functools.partial(progress.advance, bar))
            results.append(result)
            last, (process, device) = result.readings[-1], result.growth()
            table.add_row(
                name, f"{last.turns:,}", f"{result.seconds / 60:.1f}",
                f"{last.process / 1e6:.0f}", f"{process / 1e6:+.1f}", f"{last.device / 1e6:.1f}", f"{device / 1e6:+.1f}",
                f"{last.plans:,}", "flat" if result.is_flat() else "GROWS",
            )  # fmt: skip
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
    return 0 if all(result.is_flat() for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
