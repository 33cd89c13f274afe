"""Which tasks an examination has: the long form asks everything, the short form a sample of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from macatensor.examination.entries import database, dtypes_of, typical_dtype
from macatensor.examination.task import Task

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo

Dtypes = Callable[["OpInfo"], Iterable[str]]


def _all(info: OpInfo) -> Iterable[str]:
    return dtypes_of(info)


def _typical(info: OpInfo) -> Iterable[str]:
    return (typical_dtype(info),)


def _single(info: OpInfo) -> Iterable[str]:
    return tuple(d for d in ("float32",) if d in dtypes_of(info))


def _differentiable(info: OpInfo) -> Iterable[str]:
    """float64: gradients of ill-conditioned samples differ by rounding alone in float32."""
    if not getattr(info, "supports_autograd", False):
        return ()
    supported = dtypes_of(info)
    return tuple(d for d in ("float64", "complex128") if d in supported)[:1]


@dataclass(frozen=True)
class Asked:
    """A question to every entry of some databases; ``limit``: samples of an entry, None for all."""

    question: str
    databases: tuple[str, ...]
    dtypes: Dtypes
    limit: int | None


LONG = (
    Asked("forward", ("operators",), _all, None),
    Asked("forward", ("foreach",), _all, None),
    Asked("forward", ("references",), _typical, 5),
    Asked("gradient", ("operators", "foreach"), _differentiable, 10),
    Asked("second_order", ("operators",), _differentiable, 1),
    Asked("noncontiguous", ("operators",), _typical, 5),
    Asked("channels_last", ("operators",), _typical, 5),
    Asked("strides", ("operators",), _typical, 10),
    Asked("out", ("operators",), _typical, 3),
    Asked("inplace", ("operators", "foreach"), _typical, 3),
    Asked("threads", ("operators",), _typical, 3),
    Asked("errors", ("operators", "references"), _typical, None),
)
SHORT = (
    Asked("forward", ("operators",), _typical, 5),
    Asked("gradient", ("operators",), _differentiable, 1),
    Asked("noncontiguous", ("operators",), _typical, 1),
    Asked("channels_last", ("operators",), _typical, 1),
    Asked("strides", ("operators",), _typical, 1),
    Asked("out", ("operators",), _typical, 1),
    Asked("inplace", ("operators", "foreach"), _typical, 1),
    Asked("threads", ("operators",), _typical, 1),
    Asked("errors", ("operators",), _typical, None),
)
BESIDE = (Asked("compiled", ("operators",), _single, 1),)  # asked by name alone
QUESTIONS = tuple(dict.fromkeys(asked.question for asked in LONG + BESIDE))


def tasks(
    form: tuple[Asked, ...], wanted: Callable[[Task], bool] = lambda task: True
) -> list[tuple[Task, int | None]]:
    """The tasks of a form with the number of samples to ask, an entry's tasks side by side: they share plans."""
    chosen = []
    for asked in form:
        for name in asked.databases:
            for position, (entry, info) in enumerate(database(name).items()):
                for dtype in asked.dtypes(info):
                    task = Task(asked.question, name, entry, dtype)
                    if wanted(task):
                        chosen.append((name, position, task, asked.limit))
    chosen.sort(key=lambda item: item[:2])
    return [(task, limit) for _, _, task, limit in chosen]


def is_whole(task: Task, limit: int | None) -> bool:
    """Does ``limit`` ask as many samples as the long form?"""
    asked = next(
        (a for a in LONG + BESIDE if a.question == task.question and task.database in a.databases), None
    )
    return asked is None or limit is None or (asked.limit is not None and limit >= asked.limit)
