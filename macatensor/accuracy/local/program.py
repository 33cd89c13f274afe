"""A program that runs under a watch: given as a function, or as the block of a ``with`` statement."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from macatensor.accuracy.local.origin import traced

_Report = TypeVar("_Report", covariant=True)


class Watching(Protocol, Generic[_Report]):
    """A watch that makes a report of the operators it sees."""

    @property
    def report(self) -> _Report: ...

    def watching(self) -> contextlib.AbstractContextManager[None]: ...


def run_under(
    watch: Watching[_Report], function: Callable[[], object] | None
) -> _Report | contextlib.AbstractContextManager[_Report]:
    """Runs ``function`` under ``watch`` and returns its report; without one, a context manager that yields it."""

    @contextlib.contextmanager
    def block() -> Iterator[_Report]:
        with traced(), watch.watching():
            yield watch.report

    if function is None:
        return block()
    with block():
        function()
    return watch.report
