"""``torch.maca.profiler``: a profile between two calls, under the names of torch.cuda.profiler and torch_npu.

``start()`` to ``stop()`` is a profile of ``torch.profiler`` of host and device, which goes as a Chrome trace into the folder
that :func:`prof_init` named, ``./maca_profile`` at first. ``macatensor profile`` says more of a whole program.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import ProfilerActivity, record_function, tensorboard_trace_handler
from torch.profiler import profile as _Profile

from macatensor.runtime.own_names import own_names

_folder = "maca_profile"
_running: _Profile | None = None
_iteration: record_function | None = None
_iterations = itertools.count()


def prof_init(path: str | Path) -> None:
    """Says where profiles go: a folder, which is made with the first of them."""
    global _folder
    _folder = str(path)


def prof_start(event: object = None, metrics: object = None) -> None:
    """Begins a profile; ``event`` and ``metrics`` choose counters on other devices, and nothing here.

    Raises RuntimeError where one runs.
    """
    global _running
    if _running is not None:
        raise RuntimeError("torch.maca.prof_start(): a profile runs; torch.maca.prof_stop() ends it")
    _running = _Profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1],
        on_trace_ready=tensorboard_trace_handler(_folder),
    )
    _running.start()


def prof_stop() -> None:
    """Ends the profile and writes its trace. Raises RuntimeError where none runs."""
    global _running
    if _running is None:
        raise RuntimeError("torch.maca.prof_stop(): no profile runs; torch.maca.prof_start() begins one")
    ended, _running = _running, None
    ended.stop()


def prof_finalize() -> None:
    """Ends a profile that still runs."""
    if _running is not None:
        prof_stop()


def iteration_start() -> None:
    """Begins a range ``ProfilerStep#n``, by which tools tell training steps apart; ends the one before."""
    global _iteration
    iteration_end()
    _iteration = record_function(f"ProfilerStep#{next(_iterations)}")
    _iteration.__enter__()


def iteration_end() -> None:
    """Ends the range of :func:`iteration_start`; nothing where there is none."""
    global _iteration
    ended, _iteration = _iteration, None
    if ended is not None:
        ended.__exit__(None, None, None)


@contextmanager
def profile(
    profiler_result_path: str | Path | None = None, use_e2e_profiler: bool = False, config: object = None
) -> Iterator[None]:
    """Profiles the ``with`` block. ``profiler_result_path``: the folder, as of :func:`prof_init`; the others are torch_npu's,
    and change nothing."""
    if profiler_result_path is not None:
        prof_init(profiler_result_path)
    prof_start()
    try:
        yield
    finally:
        prof_stop()


start, stop = prof_start, prof_stop  # as torch.cuda.profiler has them

__all__ = own_names(globals(), internal=("start", "stop"))
