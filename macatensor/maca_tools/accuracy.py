"""``macatensor.accuracy`` as mcPyTorch has it: numbers in names of ``op_range`` count all operators as they run."""

import functools

from macatensor import accuracy
from macatensor.accuracy.recording import sessions

record = functools.partial(sessions.record, numbering="execution")
start_record = functools.partial(sessions.start_record, numbering="execution")

__all__ = list(accuracy.__all__)


def __getattr__(name: str) -> object:
    return getattr(accuracy, name)


def __dir__() -> list[str]:
    return dir(accuracy)
