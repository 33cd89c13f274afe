"""What the host does between operators: it waits for a data loader, or runs lines of Python."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.utils.data import dataloader

from macatensor.bottlenecks.lines import Line, here, line_of

_PERIOD = 0.002  # seconds between two looks: 1 % of a core


class Load(NamedTuple):
    """The program asked a data loader for a batch; times in ns."""

    line: Line
    start: int
    end: int
    workers: int


class Sample(NamedTuple):
    """Where the main thread was."""

    at: int
    line: Line


class Loads:
    """Notes batches of ``torch.utils.data.DataLoader`` while :meth:`running`."""

    def __init__(self) -> None:
        self.found: list[Load] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        kind: Any = dataloader._BaseDataLoaderIter
        fetch = kind.__next__

        def fetched(iterator: Any) -> Any:
            start = time.time_ns()
            try:
                return fetch(iterator)
            finally:
                self.found.append(Load(here(), start, time.time_ns(), int(iterator._num_workers)))

        kind.__next__ = fetched
        try:
            yield
        finally:
            kind.__next__ = fetch


class Sampler:
    """Looks where the main thread is, every 2 ms, while :meth:`running`."""

    def __init__(self) -> None:
        self.found: list[Sample] = []
        self._main = threading.get_ident()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        over = threading.Event()

        def look() -> None:
            while not over.wait(_PERIOD):
                frame = sys._current_frames().get(self._main)
                if frame is not None:
                    self.found.append(Sample(time.time_ns(), line_of(frame)))

        thread = threading.Thread(target=look, name="macatensor profile", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
