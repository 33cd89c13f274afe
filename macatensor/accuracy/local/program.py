"""A program that runs under a watch: given as a function, or as the block of a ``with`` statement."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from macatensor.accuracy.local.origin import traced


def run_under(watch: Any, function: Callable[[], Any] | None) -> Any:
    """Runs ``function`` under ``watch`` and returns its report; without one, a context manager that yields it."""

    @contextlib.contextmanager
    def block() -> Iterator[Any]:
        with traced(), watch.watching():
            yield watch.report

    if function is None:
        return block()
    with block():
        function()
    return watch.report
