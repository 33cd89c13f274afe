"""What is launched, as it is launched: the operator, its kernel, and the algorithm that the library chose for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from macatensor.runtime.ffi import native


class Launch(NamedTuple):
    """One launch of a kernel."""

    operator: str  # "aten.mm.default"; a kernel's name where no operator launches it
    kernel: str  # its name in maca.h
    implementation: str  # the algorithm that the library chose for the plan; "" where it says none


_lists: list[list[Launch]] = []  # of the blocks that are open


def _note(operator: str, kernel: str, implementation: str) -> None:
    for made in _lists:
        made.append(Launch(operator, kernel, implementation))


@contextlib.contextmanager
def launches() -> Iterator[list[Launch]]:
    """Lists what is launched inside, by all threads, in order; ``with macatensor.launches() as made: model(x)``.

    Replays of graphs launch without Python and are not seen.
    """
    made: list[Launch] = []
    _lists.append(made)
    native.observe(_note)
    try:
        yield made
    finally:
        _lists[:] = [other for other in _lists if other is not made]
        if not _lists:
            native.observe(None)


def implementations(made: Sequence[Launch]) -> str:
    """The algorithms of launches, each once, as reports name them; "" where the library says none."""
    return ", ".join(dict.fromkeys(launch.implementation for launch in made if launch.implementation))
