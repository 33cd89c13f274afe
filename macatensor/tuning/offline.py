"""Tuning without the program: calls of a file, one after the other."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from macatensor.choices import deciding
from macatensor.choices.bank import Measured
from macatensor.files.untrusted import Json
from macatensor.runtime import plan_caches
from macatensor.tuning import calls

_LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def tuning() -> Iterator[list[Measured]]:
    """Measures what runs in the block, whatever was decided before; yields what is found, in order, as it is found."""
    found: list[Measured] = []
    with deciding.measuring(), deciding.measured(found):
        yield found


def tune(path: Path) -> list[Measured]:
    """Measures the calls in a file of shapes, or of another machine's bank. Raises OSError and ValueError for another file;
    calls that fail are logged and left out."""
    return tune_calls(calls.load(path))


def tune_calls(listed: Sequence[Json]) -> list[Measured]:
    """The same of calls."""
    plan_caches.drop_plans()  # so that each comes to a decision
    with tuning() as found:
        for call in listed:
            try:
                calls.run(call)
            except Exception as error:  # of a file that others wrote
                _LOG.warning("a call is left out: %s: %s", type(error).__name__, str(error).splitlines()[0])
    deciding.save()
    return found
