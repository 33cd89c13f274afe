"""``macatensor opinfo``: PyTorch's operator database asked of the device, with progress, resumable."""

from __future__ import annotations

import difflib
import fnmatch
import functools
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from .console import Json, emit_json, err, out, progress
from .pytorch_tests import run_pytorch_tests
from .rates import rates_table

if TYPE_CHECKING:
    from macatensor.examination.task import Answer

ANSWERS = Path("reports/examination.jsonl")  # of the run that is under way or was the last


def opinfo(
    pattern: Annotated[
        list[str] | None,
        typer.Argument(
            help="Entries, such as nn.functional.gelu; shell patterns such as 'linalg.*'.", show_default=False
        ),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this dtype; may be repeated.")] = None,
    question: Annotated[list[str] | None, typer.Option(help="Only this question; may be repeated.")] = None,
    short: Annotated[bool, typer.Option("--short", help="A few samples of every entry: minutes.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume/--anew", help="Keep the answers of an interrupted run.")
    ] = True,
    write: Annotated[
        bool, typer.Option("--write", help="Write the record and docs/coverage.md of this checkout.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    pytorch_tests: Annotated[
        Path | None,
        typer.Option(
            help="Run PyTorch's own tests of a checkout of it instead; patterns: FILE::CLASS::TEST."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Ask every entry of PyTorch's operator database of the device and of the CPU: under an hour.

    Exit status: 1 when an answer is wrong and not an expected failure.
    """
    patterns, dtypes, questions = tuple(pattern or ()), tuple(dtype or ()), tuple(question or ())
    if pytorch_tests is not None:
        if dtypes or questions or short or write:
            raise typer.BadParameter(
                "takes patterns, --workers, --resume or --anew, and --json alone",
                param_hint="--pytorch-tests",
            )
        run_pytorch_tests(pytorch_tests, patterns, workers, resume, as_json)
        return
    from macatensor.examination import forms, kept
    from macatensor.examination.examiner import examine
    from macatensor.examination.expectations import FAILING
    from macatensor.examination.expectations import verdict as judge
    from macatensor.examination.task import Task

    unknown = [q for q in questions if q not in forms.QUESTIONS]
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]!r}; accepted: {', '.join(forms.QUESTIONS)}", param_hint="--question"
        )

    def wanted(task: Task) -> bool:
        return (
            (not patterns or any(fnmatch.fnmatchcase(task.entry, p) for p in patterns))
            and (not dtypes or task.dtype in dtypes)
            and (not questions or task.question in questions)
        )

    form = forms.SHORT if short else forms.LONG
    tasks = forms.tasks(form + forms.BESIDE if "compiled" in questions else form, wanted)
    if not tasks:
        _refuse(forms, patterns, dtypes)
    limits = {task.key: limit for task, limit in tasks}
    whole = not (short or patterns or dtypes or questions)
    if write and not whole:
        raise typer.BadParameter(
            "the record is that of a whole run, without patterns and --short", param_hint="--write"
        )
    give = functools.partial(examine, workers=workers, time_limit=120.0 if short else 600.0)
    # only a whole run is worth going on with
    given = kept.answers(tasks, give, ANSWERS, kept.stamp(), resume) if whole else give(tasks)
    answers: dict[str, Answer] = {}
    with progress(as_json) as bar:
        line = bar.add_task("", total=len(tasks))
        for answer in given:
            answers[answer.task.key] = answer
            bar.update(line, advance=1, description=f"{answer.task.question} {answer.task.entry}")
    verdicts = {key: judge(a, forms.is_whole(a.task, limits[key])) for key, a in answers.items()}
    failing = [key for key, v in verdicts.items() if v in FAILING]
    if as_json:
        emit_json([{**asdict(a), "verdict": verdicts[key]} for key, a in answers.items()])
    else:
        _print(list(answers.values()), verdicts)
    for key in failing:
        err.print(
            f"{verdicts[key]} {key}: {answers[key].detail}", markup=False, highlight=False, soft_wrap=True
        )
    if write:
        _write(list(answers.values()))
    if failing:
        raise typer.Exit(1)


def _refuse(forms: ModuleType, patterns: tuple[str, ...], dtypes: tuple[str, ...]) -> None:
    """Says which of the arguments matches nothing, and what would."""
    asked = [task for task, _ in forms.tasks(forms.LONG + forms.BESIDE)]
    entries, kinds = sorted({t.entry for t in asked}), sorted({t.dtype for t in asked})
    for pattern in patterns:
        if not fnmatch.filter(entries, pattern):
            near = [e for e in entries if pattern in e][:5] or difflib.get_close_matches(pattern, entries, 5)
            hint = f"near: {', '.join(near)}" if near else "docs/coverage.md lists them"
            raise typer.BadParameter(f"no entry of PyTorch's database is named {pattern!r}; {hint}")
    for dtype in dtypes:
        if dtype not in kinds:
            raise typer.BadParameter(f"{dtype!r}; accepted: {', '.join(kinds)}", param_hint="--dtype")
    raise typer.BadParameter("these entries are not asked these questions in these dtypes")


def _print(answers: list[Answer], verdicts: dict[str, str]) -> None:
    from collections import Counter

    from macatensor.examination import summary

    page = rates_table(
        "Examination by PyTorch's operator database",
        "question",
        [*summary.rates(answers), summary.on_host(answers)],
        "Shares count every task that asked something; an expected failure is not a pass.",
    )
    out.print(page)
    counts = Counter(verdicts.values())
    seconds = sum(a.seconds for a in answers)
    out.print(
        ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
        + f"; {sum(a.samples for a in answers):,} samples in {seconds / 60:.1f} CPU-minutes"
    )


def _write(answers: list[Answer]) -> None:
    """The record of this checkout, and the coverage page that is made from it."""
    from macatensor.examination import summary
    from op_table.coverage import PAGE, page

    summary.write(answers)
    PAGE.write_text(page())
    out.print(f"wrote {summary.RECORD} and {PAGE}")
