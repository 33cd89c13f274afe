"""Names of the benchmarks and the loop over them."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Generator, Iterable, Sequence

import torch

from macatensor.bench import (
    compiled,
    distributed,
    graphs,
    kernels,
    launch,
    leak,
    memory,
    models,
    other_makers,
    profiling,
    quantized,
    recording,
    serving,
    startup,
    tuned,
    vision,
)
from macatensor.bench.result import Result

# "suite.case"; each gives one result or several
CASES: dict[str, Callable[[int, bool], list[Result]]] = {
    **launch.CASES,
    **{name: kernels.benchmark(name) for name in kernels.names()},
    "attention.memory": memory.attention,
    **models.CASES,
    **other_makers.CASES,
    **compiled.CASES,
    **memory.CASES,
    **distributed.CASES,
    "graph": graphs.graphs,
    "import": startup.startup,
    "leak": leak.leak,
    **profiling.CASES,
    **quantized.CASES,
    "record": recording.recording,
    **serving.CASES,
    "tuned": tuned.tuned,
    "tuned.random": tuned.tuned_random,
    **vision.CASES,
}
_SUITES = list(dict.fromkeys(name.partition(".")[0] for name in CASES))
CASES = dict(sorted(CASES.items(), key=lambda item: _SUITES.index(item[0].partition(".")[0])))


def suites() -> list[str]:
    """Names that choose several cases."""
    return list(_SUITES)


def matching(pattern: str, names: Iterable[str]) -> set[str]:
    """Those of ``names`` that belong to the suite ``pattern``, else have it as a part or match it as a shell pattern."""
    there = set(names)
    found = {name for name in there if name.partition(".")[0] == pattern}
    return found or {name for name in there if pattern in name or fnmatch.fnmatchcase(name, pattern)}


def select(patterns: Sequence[str]) -> list[str]:
    """Names of the cases that match any pattern: a suite, else part of a name, or a shell pattern. All for none.

    Raises ValueError for a pattern that matches nothing.
    """
    if not patterns:
        return list(CASES)
    chosen: set[str] = set()
    for pattern in patterns:
        found = matching(pattern, CASES)
        if not found:
            raise ValueError(
                f"no benchmark matches {pattern!r}; there are the suites {', '.join(suites())}, and --list shows all "
                "cases"
            )
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


def load() -> float | None:
    """Processes that want to run, as the system averages them over a minute; None where it does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
