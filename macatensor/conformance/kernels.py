"""Levels 2 and 3: kernels and behaviours, asked by workers that load the library behind the validation layer."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from macatensor.conformance.behaviour import BEHAVIOURS
from macatensor.conformance.outcome import ABSENT, DECLINED, FAIL, PASS, Line
from macatensor.conformance.validation import NoCompiler, compile_layer
from macatensor.conformance.worker_names import COMMAND, LAYOUTS, REPORTS
from macatensor.examination.examiner import examine
from macatensor.examination.task import Answer, Task
from macatensor.parity.runner import dtypes_of, family_of, select
from op_table import TABLE, Kind, Row
from op_table.bringing_up import FIRST_KERNELS

_VERDICTS = {"pass": PASS, "empty": ABSENT, "declined": DECLINED}


@contextmanager
def behind_the_layer(library: Path, layouts: Sequence[str], folder: Path) -> Iterator[str]:
    """The environment in which workers load the library; gives what is missing, or ``""``."""
    missing = ""
    changed = {"MACA_LIBRARY": str(library), "MACA_FALLBACK": "error", LAYOUTS: ",".join(layouts)}
    try:
        layer = compile_layer(folder)
        changed |= {"MACA_LIBRARY": str(layer), "MACA_VALIDATION_TARGET": str(library), REPORTS: str(folder)}
    except NoCompiler as error:
        missing = str(error)
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield missing
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _rows(kernels: Sequence[str], patterns: Sequence[str]) -> list[Row]:
    return [r for r in select(patterns) if r.kind is Kind.KERNEL and r.kernel_name in set(kernels)]


def missing_kernels(kernels: Sequence[str]) -> list[str]:
    """Names of kernels that the table knows and the library has not, those that most programs need first."""
    wanted = dict.fromkeys(r.kernel_name for r in TABLE.values() if r.kind is Kind.KERNEL)
    ordered = [name for name in FIRST_KERNELS if name in wanted] + sorted(set(wanted) - set(FIRST_KERNELS))
    return [name for name in ordered if name not in set(kernels)]


def _ends(folder: Path, seen: set[str]) -> str:
    """The layer's last words of a process that has ended."""
    for path in folder.iterdir():
        if path.name.isdigit() and path.name not in seen:
            lines = path.read_text(errors="replace").splitlines()
            if lines and "\tends in " in lines[-1]:
                seen.add(path.name)
                return lines[-1].replace("\t", " ", 1)
    return ""


def _line(answer: Answer, level: int, group: str, folder: Path, seen: set[str]) -> Line:
    task = answer.task
    text = answer.detail
    if answer.outcome in ("crash", "hang"):
        text = f"{answer.outcome}: {_ends(folder, seen) or text}"
    name = f"{task.entry} {task.dtype}".strip() if task.question in ("kernel", "streams") else task.question
    remedy = ""
    if answer.outcome not in _VERDICTS and task.question == "kernel":
        remedy = f"MACA_LIBRARY=... macatensor parity {task.entry} --dtype {task.dtype}"
    return Line(
        name,
        level,
        group,
        _VERDICTS.get(answer.outcome, FAIL),
        text,
        "",
        remedy,
        answer.seconds,
        answer.samples,
    )


def kernel_tasks(
    kernels: Sequence[str], patterns: Sequence[str] = (), dtypes: Sequence[str] = ()
) -> list[Task]:
    """What level 2 asks: every row that has a kernel, in each dtype."""
    return [
        Task("kernel", "rows", row.name, dtype)
        for row in _rows(kernels, patterns)
        for dtype in dtypes_of(row)
        if not dtypes or dtype in dtypes
    ]


def stream_tasks(kernels: Sequence[str], patterns: Sequence[str] = ()) -> list[Task]:
    """What level 3 asks on streams: every row that has a kernel and whose bits do not change, in one dtype."""
    return [
        Task("streams", "rows", row.name, "float32" if "float32" in dtypes else dtypes[0])
        for row in _rows(kernels, patterns)
        if not row.random and (dtypes := dtypes_of(row))
    ]


def ask_kernels(
    library: Path, kernels: Sequence[str], patterns: Sequence[str] = (), dtypes: Sequence[str] = (),
    layouts: Sequence[str] = (), workers: int = 2, limit: float = 120.0,
) -> Iterator[Line]:  # fmt: skip
    """Level 2: a line for every row that has a kernel, and dtype. ``limit``: seconds of processor time for one."""
    yield from _asked(library, kernel_tasks(kernels, patterns, dtypes), layouts, workers, limit)


def ask_behaviours(
    library: Path,
    kernels: Sequence[str],
    patterns: Sequence[str] = (),
    workers: int = 2,
    limit: float = 120.0,
    behaviours: Sequence[str] = tuple(BEHAVIOURS),
) -> Iterator[Line]:
    """Level 3: a line for each of ``behaviours``, of streams for each row that has a kernel."""
    tasks = [Task(name, "library", "", "") for name in behaviours if name != "streams"]
    if "streams" in behaviours:
        tasks += stream_tasks(kernels, patterns)
    yield from _asked(library, tasks, (), workers, limit)


def _asked(
    library: Path, tasks: list[Task], layouts: Sequence[str], workers: int, limit: float
) -> Iterator[Line]:
    if not tasks:
        return
    level = 2 if tasks[0].question == "kernel" else 3
    seen: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="macatensor-conform-") as name:
        folder = Path(name)
        with behind_the_layer(library, layouts, folder) as missing:
            if missing:
                yield Line("layer", level, "layer", FAIL, missing, remedy="install a C compiler, such as gcc")
            given = [(task, None) for task in tasks]
            try:
                for answer in examine(given, workers, limit, COMMAND):
                    row = TABLE.get(answer.task.entry)
                    group = family_of(row) if row is not None else "behaviour"
                    if level == 3 and row is not None:
                        group = "streams"
                    yield _line(answer, level, group, folder, seen)
            except RuntimeError as error:  # a worker did not become ready
                text = f"a process that loads the library ends: {_ends(folder, seen) or error}"
                yield Line("loading", level, "layer", FAIL, text, remedy="macatensor check says why")
