"""What of a comparison looks like a mistake of the program and not of an operator, in a sentence each.

A line that has calls in one run alone, an argument that differs, a gradient that an earlier backward pass is still in: who
reads of the first operator that differs looks at the operator, which did nothing wrong.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from macatensor.accuracy.comparison import verdict as rules
from macatensor.accuracy.comparison.rows import CallRow, TensorRow
from macatensor.accuracy.comparison.verdict import Judged

_NOT_OF_THE_USER = re.compile(r"[/\\](torch|macatensor|torchvision|transformers|timm)[/\\]|^<frozen")
_SHOWN = 3  # lines of each run
_GROWN = 100.0  # a gradient that differs so many times as much as what was computed for it
_SAME = 1e-5  # relative, of norms
_LEAST = 1e-2  # relative, from which on it is looked at


def user_line(stack: Sequence[str]) -> str:
    """``"train.py:12 step"``: the innermost frame outside of PyTorch and this package, or ``""``."""
    found = next((frame for frame in reversed(stack) if not _NOT_OF_THE_USER.search(frame)), "")
    return re.split(r"[/\\]", found)[-1]


def sentences(rows: Sequence[CallRow]) -> list[str]:
    """Of one pair of processes."""
    return [*_lines_of_one_run(rows), *_arguments(rows)]


def _lines_of_one_run(rows: Sequence[CallRow]) -> Iterator[str]:
    lines: tuple[dict[str, CallRow], dict[str, CallRow]] = ({}, {})
    for row in rows:
        for side, call in enumerate((row.pair.left, row.pair.right)):
            line = user_line(row.stacks[side])
            if call is not None and line:
                lines[side].setdefault(line, row)
    if not lines[0].keys() & lines[1].keys():  # other scripts, or no stacks
        return
    for side in (0, 1):
        alone = [(line, row) for line, row in lines[side].items() if line not in lines[1 - side]]
        for line, row in alone[:_SHOWN]:
            yield f"only run {side} has calls at {line}: {row.call.name}"
        if len(alone) > _SHOWN:
            yield f"only run {side} has calls at {len(alone) - _SHOWN} more lines"


def _arguments(rows: Sequence[CallRow]) -> Iterator[str]:
    """The first function of PyTorch's that was called with another flag or word."""
    for row in rows:
        left, right = row.pair.left, row.pair.right
        if left is None or right is None or left.level != "api" or left.direction != "fwd":
            continue
        mine, others = (
            {a.place: a.value for a in c.inputs if isinstance(a.value, (bool, str))} for c in (left, right)
        )
        for place in mine.keys() & others.keys():
            if mine[place] != others[place] and not rules.names_device(mine[place], others[place]):
                line = user_line(row.stacks[0])
                yield (
                    f"the runs call {left.name} with other arguments, {place}: {mine[place]!r} against {others[place]!r}"
                    + (f", at {line}" if line else "")
                )
                return


def _is_gradient_of(made: TensorRow, kept: TensorRow) -> bool:
    """Did a parameter of one run get this very result? Others are pieces of a sum, as of a weight that is used twice."""
    sides = ((made.left, kept.left), (made.right, kept.right))
    return any(
        a is not None
        and b is not None
        and (a.shape, a.dtype) == (b.shape, b.dtype)
        and a.norm is not None
        and b.norm is not None
        and math.isclose(a.norm, b.norm, rel_tol=_SAME)
        for a, b in sides
    )


def judge_accumulated(rows: Sequence[CallRow]) -> None:
    """A parameter's gradient that differs although what the backward pass computed for it does not: an earlier pass is in
    it, or something else wrote it."""
    made: list[TensorRow] = []  # results of backward operators so far
    for row in rows:
        left, right = row.pair.left, row.pair.right
        if left is None or right is None or left.direction != "bwd":
            continue
        if rules.short_name(left.op) not in rules.PASSING:
            if left.level == "aten":
                made += [t for t in row.tensors if t.role == "output" and t.distance is not None]
            continue
        if any(
            t.role == "input" and t.distance is not None and t.distance.error > _LEAST for t in row.tensors
        ):
            continue  # of parameters that are not the same, paired for their shape
        for t in row.tensors:
            if t.role != "output" or t.distance is None or not _LEAST < t.distance.error < float("inf"):
                continue
            source = next((m for m in reversed(made) if _is_gradient_of(m, t)), None)
            if (
                source is not None
                and source.distance is not None
                and source.distance.error * _GROWN < t.distance.error
            ):
                t.judged = Judged(
                    "error",
                    f"the gradient differs by {t.distance.error:.2g}, what this backward pass computed for it by "
                    f"{source.distance.error:.2g} only: an earlier pass is in it (was zero_grad() called in both runs?) "
                    "or something else wrote it",
                    t.distance.error,
                )
                row.judged = t.judged
