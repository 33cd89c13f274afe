"""Answers that are known to be wrong, each with a reason: ``expectations.tsv``, one table for tests and the long form.

A line has a question, an entry, a dtype (shell patterns in each), a reason's class and its text. What it says must
fail: an unexpected pass is a failure until the line goes. Only what depends on the processor may do either.
"""

from __future__ import annotations

import fnmatch
import functools
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from macatensor.examination.task import Answer, Task

TABLE_FILE = Path(__file__).with_name("expectations.tsv")


class Reason(Enum):
    """Why an answer is not a pass."""

    LAYOUT = "layout"  # eager quantized tensors are refused, in favour of torchao's
    DTYPE = "dtype"  # a dtype that the device does not compute
    CPU_PATH = "cpu path"  # PyTorch's own answer depends on which of its CPU kernels it takes
    ROUNDING = "rounding"  # both are within their bound of the exact result, and apart from each other
    PROCESSOR = (
        "processor"  # the same, of sums whose order depends on the instruction set: right on some processors
    )
    LIBRARY = "library"  # a library computes it, whose sums depend on the number of threads
    WORDS = "words"  # another exception class, equally clear
    PYTORCH = "pytorch"  # a defect of PyTorch
    MISSING = "missing"  # not built yet
    DEVICE = "device"  # what every device but the CPU does


@dataclass(frozen=True)
class Expectation:
    """One line of the table."""

    question: str
    entry: str
    dtype: str
    reason: Reason
    text: str

    def covers(self, task: Task) -> bool:
        return all(
            fnmatch.fnmatchcase(value, pattern)
            for value, pattern in (
                (task.question, self.question),
                (task.entry, self.entry),
                (task.dtype, self.dtype),
            )
        )


@functools.cache
def expectations() -> tuple[Expectation, ...]:
    """The table. Raises ValueError for a line that is none."""
    found = []
    for number, line in enumerate(TABLE_FILE.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        cells = line.split("\t")
        if len(cells) != 5 or not cells[4].strip():
            raise ValueError(f"{TABLE_FILE.name}:{number}: five cells wanted, the last a text: {line!r}")
        found.append(Expectation(cells[0], cells[1], cells[2], Reason(cells[3]), cells[4].strip()))
    return tuple(found)


def expected(task: Task) -> Expectation | None:
    """The first line that covers a task."""
    return next((e for e in expectations() if e.covers(task)), None)


def verdict(answer: Answer, whole: bool = True) -> str:
    """``"pass"``, ``"empty"``, ``"xfail"``, or what fails a run: ``"fail"``, ``"crash"``, ``"hang"``, ``"xpass"``.

    ``whole``: were as many samples asked as the long form asks? A few may pass where more would not.
    """
    line = expected(answer.task)
    if answer.outcome in ("pass", "empty"):
        must_fail = line is not None and line.reason is not Reason.PROCESSOR
        return "xpass" if must_fail and whole and answer.outcome == "pass" else answer.outcome
    return "xfail" if line is not None and answer.outcome == "fail" else answer.outcome


FAILING = ("fail", "crash", "hang", "xpass")
