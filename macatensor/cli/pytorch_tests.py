"""``macatensor opinfo --pytorch-tests FOLDER``: PyTorch's own tests of every device, counted by file."""

from __future__ import annotations

import fnmatch
import functools
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import typer

from .console import emit_json, err, out, progress
from .rates import rates_table

ANSWERS = Path("reports/pytorch-tests.jsonl")  # as they come
HINT = "--pytorch-tests"


def run_pytorch_tests(
    checkout: Path, patterns: tuple[str, ...], workers: int, resume: bool, as_json: bool
) -> None:
    """Runs the tests that match one of ``patterns`` and prints a table or JSON: of the files that patterns name, or of
    :data:`macatensor.examination.pytorch_tests.FILES`. With ``resume`` what :data:`ANSWERS` holds is not run again.

    Exit status: 1 where a test fails that is no expected failure, or one passes that is.
    """
    from macatensor.examination import kept, pytorch_tests
    from macatensor.examination.expectations import FAILING
    from macatensor.examination.expectations import verdict as judge

    try:
        named = {p.partition("::")[0] for p in patterns if not set("*?[") & set(p.partition("::")[0])}
        files = sorted(named) or pytorch_tests.FILES
        folder = pytorch_tests.test_folder(checkout, files[0])
        tasks = pytorch_tests.tasks(folder, files)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=HINT) from error
    if patterns:
        tasks = [
            (task, limit)
            for task, limit in tasks
            if any(fnmatch.fnmatchcase(f"{task.database}::{task.entry}", p) for p in patterns)
        ]
    if not tasks:
        raise typer.BadParameter(
            f"no test matches {' '.join(patterns)}; one is test_view_ops.py::TestViewOps::test_T_view"
        )
    answers = []
    give = functools.partial(pytorch_tests.answers, folder, workers=workers)
    with progress(as_json) as bar:
        line = bar.add_task("", total=len(tasks))
        for answer in kept.answers(tasks, give, ANSWERS, f"{kept.stamp()} {folder}", resume):
            answers.append(answer)
            bar.update(line, advance=1, description=answer.task.entry)
    verdicts = {answer.task.key: judge(answer) for answer in answers}
    failing = [answer for answer in answers if verdicts[answer.task.key] in FAILING]
    if as_json:
        emit_json([{**asdict(answer), "verdict": verdicts[answer.task.key]} for answer in answers])
    else:
        page = rates_table(
            "PyTorch's own tests of every device",
            "file",
            pytorch_tests.rates(answers),
            "These are the tests that pass on the CPU or are marked for CUDA. Apart are expected failures of tests that "
            "come to quantized tensors.",
        )
        out.print(page)
        out.print(", ".join(f"{n} {name}" for name, n in sorted(Counter(verdicts.values()).items())))
    for answer in failing:
        text = f"{verdicts[answer.task.key]} {answer.task.database}::{answer.task.entry}: {answer.detail}"
        err.print(text, markup=False, highlight=False, soft_wrap=True)
    if failing:
        raise typer.Exit(1)
