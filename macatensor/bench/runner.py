"""Names of the benchmarks and the loop over them."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch

from macatensor.bench import graphs, kernels, launch, leak, models, recording, startup
from macatensor.bench.result import Result

CASES: dict[str, Callable[[int, bool], list[Result]]] = {
    "launch": launch.kernels,
    "view": launch.views,
    "busy": launch.busy,
    "resnet18.inference": models.resnet_inference,
    "resnet18.training": models.resnet_training,
    "gpt.forward": models.gpt_forward,
    "gpt.training": models.gpt_training,
    "lstm": models.lstm,
    "graph": graphs.graphs,
    "import": startup.startup,
    "leak": leak.leak,
    "record": recording.recording,
    **{name: kernels.suite(name) for name in kernels.SUITES},
}


def select(patterns: Sequence[str]) -> list[str]:
    """Names of the cases that match any pattern: part of a name, or a shell pattern. All for none.

    Raises ValueError for a pattern that matches nothing.
    """
    if not patterns:
        return list(CASES)
    chosen: set[str] = set()
    for pattern in patterns:
        found = {name for name in CASES if pattern in name or fnmatch.fnmatchcase(name, pattern)}
        if not found:
            raise ValueError(f"no benchmark matches {pattern!r}; there are {', '.join(CASES)}")
        chosen |= found
    return [name for name in CASES if name in chosen]


def run(
    names: Sequence[str], rounds: int = 7, threads: int = 2, quick: bool = False
) -> Generator[tuple[str, list[Result]], None, None]:
    """Runs cases one after the other. ``quick`` proves that they work; its figures mean little."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for name in names:
            yield name, CASES[name](rounds, quick)
    finally:
        torch.set_num_threads(before)


def report(results: Sequence[Result], rounds: int, threads: int) -> dict[str, Any]:
    """The whole run as JSON-able values."""
    module: Any = torch.get_device_module("maca")
    return {
        "pytorch": torch.__version__,
        "device": module.get_device_name(),
        "simd": module.get_device_properties().simd,
        "threads": threads,
        "rounds": rounds,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "results": [r.facts() for r in results],
        "passed": all(r.verdict != "FAIL" for r in results),
    }
