"""``python -m macatensor.examination.worker``: answers tasks from standard input, one JSON line each way.

Whatever an operator prints goes to standard error; a crash ends this process and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from macatensor.examination.task import Answer, Task


def answer_task(task: Task, limit: int | None) -> Answer:
    """Asks one question. An exception of the question itself is a failure that names it."""
    import torch

    from macatensor.examination import (
        questions,
        questions_compiled,
        questions_gradient,
        questions_write,
        trace,
    )
    from macatensor.examination.entries import database
    from macatensor.examination.task import Answer
    from macatensor.runtime import counters

    asked = {
        "forward": questions.forward,
        "noncontiguous": questions.noncontiguous,
        "channels_last": questions.channels_last,
        "strides": questions.strides,
        "threads": questions.threads,
        "gradient": questions_gradient.gradient,
        "second_order": questions_gradient.second_order,
        "out": questions_write.out,
        "inplace": questions_write.inplace,
        "errors": questions_write.errors,
        "compiled": questions_compiled.compiled,
    }[task.question]
    answer = Answer(task)
    counters.fallbacks.clear()
    trace.kinds.clear()
    started = time.process_time()
    try:
        asked(database(task.database)[task.entry], getattr(torch, task.dtype), answer, limit)
    except Exception as error:
        answer.outcome, answer.wrong = "fail", answer.wrong + 1
        answer.detail = answer.detail or f"the question itself raised {type(error).__name__}: {error}"[:400]
    if answer.outcome == "pass" and not answer.samples:
        answer.outcome = "empty"
    answer.on_cpu = dict(counters.fallbacks)
    answer.kinds = dict(trace.kinds)
    answer.seconds = time.process_time() - started
    return answer


def prepare() -> None:
    """What every answer relies on beside the examiner's ``ENVIRONMENT``: one thread, and launches that are traced."""
    warnings.simplefilter("ignore")
    import torch

    import macatensor  # noqa: F401 - registers the device
    from macatensor.examination import trace

    torch.set_num_threads(1)
    trace.install()


def own_output() -> TextIO:
    """Standard output for this process's lines alone: whatever else is printed goes to standard error."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return lines


def serve(lines: TextIO, answer: Callable[[Task, int | None], Answer]) -> None:
    """Says that this process is ready, and answers the examiner's tasks until there are no more."""
    from macatensor.examination.task import Task

    lines.write("ready\n")
    for line in sys.stdin:
        given = json.loads(line)
        lines.write(json.dumps(answer(Task(**given["task"]), given["limit"]).as_json()) + "\n")


def main() -> None:
    lines = own_output()
    prepare()
    from macatensor.examination.entries import DATABASES, database

    for name in DATABASES:
        database(name)
    serve(lines, answer_task)


if __name__ == "__main__":
    main()
