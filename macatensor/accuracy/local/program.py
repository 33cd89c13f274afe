"""A program that runs under a watch: given as a function, or as the block of a ``with`` statement."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Generic, Protocol, TypeVar

from macatensor.accuracy.local.origin import traced

_Report = TypeVar("_Report", covariant=True)


class Watching(Protocol, Generic[_Report]):
    """A watch that makes a report of the operators it sees."""

    @property
    def report(self) -> _Report: ...

    @property
    def devices(self) -> tuple[str, ...]: ...

    @property
    def has_seen(self) -> bool: ...

    def watching(self) -> contextlib.AbstractContextManager[None]: ...


def run_under(
    watch: Watching[_Report], function: Callable[[], object] | None
) -> _Report | contextlib.AbstractContextManager[_Report]:
    """Runs ``function`` under ``watch`` and returns its report; without one, a context manager that yields it.

    A program that runs nothing on the device is a ValueError; of a block it is a warning, as the program has run.
    """

    @contextlib.contextmanager
    def block() -> Iterator[_Report]:
        with traced(), watch.watching():
            yield watch.report

    @contextlib.contextmanager
    def warned() -> Iterator[_Report]:
        with block() as report:
            yield report
        if not watch.has_seen:
            warnings.warn(nothing_ran("the block", watch.devices, names), UserWarning, stacklevel=3)

    names: Set[str] = getattr(watch, "op_list", frozenset())
    if function is None:
        return warned()
    with block():
        function()
    if not watch.has_seen:
        raise ValueError(nothing_ran(getattr(function, "__name__", "the function"), watch.devices, names))
    return watch.report


def nothing_ran(program: str, devices: Sequence[str], op_list: Set[str]) -> str:
    """Says that a program has no operator to look at."""
    wanted = "on any device" if len(devices) > 1 else f"on a {devices[0]} tensor"
    return (
        f"accuracy: {program} runs no operator {wanted}"
        + (f" among {', '.join(sorted(op_list))}" if op_list else "")
        + "; move its tensors there (tensor.to('maca')), or name another device"
    )
