"""``macatensor accuracy compare``: two recorded runs, call by call."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import Json, emit_json, err, error_panel, out, table

if TYPE_CHECKING:
    from macatensor.accuracy.comparison.report import Report

_STYLES = {"pass": "green", "warning": "yellow", "error": "bold red"}


def compare(
    dir0: Annotated[Path, typer.Argument(help="The reference's record: of macatensor, maca_tools or msprobe.")],
    dir1: Annotated[Path, typer.Argument(help="The record of the run that is examined.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the workbook, the page and the CSV file.")] = Path("."),
    cpu_against_cpu: Annotated[bool, typer.Option("--cpu-against-cpu", help="Compare two runs of the CPU, which is refused otherwise.")] = False,
    least_paired: Annotated[float, typer.Option(min=0, max=1, help="Share of calls that must have a counterpart.")] = 0.3,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Compare two recorded runs: which call differs first, and by how much.

    Exit status: 0 when no tensor is an error, 1 when one is, 2 when the records cannot be compared.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from macatensor.accuracy.comparison.report import make_report

    bar = Progress(
        TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=err,
        transient=True, disable=as_json,
    )  # fmt: skip
    try:
        with bar:
            task = bar.add_task("read", total=None)
            report = make_report(
                dir0, dir1, output, cpu_against_cpu=cpu_against_cpu, least_paired=least_paired,
                progress=lambda what, done, total: bar.update(task, description=what, completed=done, total=total),
            )  # fmt: skip
    except (ValueError, OSError) as error:
        if as_json:
            emit_json({"error": str(error)})
        error_panel("The runs cannot be compared", str(error))
        raise typer.Exit(2) from None
    if as_json:
        emit_json(report.facts())
    else:
        show(report)
    if report.verdict == "error":
        raise typer.Exit(1)


def show(report: Report) -> None:
    """Prints the counts, the first divergence and where the files lie."""
    from macatensor.accuracy.comparison.sentences import describe, unpaired

    found = report.comparison
    names = ("paired", "moved", "only 0", "only 1", "pass", "warning", "error")
    page = table("Calls", "level", *names, right=names)
    for level in ("api", "aten"):
        counts = found.counts(level)
        if counts:
            page.add_row(level, *(str(counts[name]) for name in names))
    out.print(page)
    suspects = [row for row in found.calls if row.judged.verdict == "error"]
    if suspects:
        page = table(
            f"Errors: the first {min(8, len(suspects))} of {len(suspects)}",
            "call",
            "module",
            "error",
            "rule",
            right=("error",),
        )
        for row in suspects[:8]:
            error = "" if row.error is None else f"{row.error:.3g}"
            page.add_row(row.call.name, row.call.module or "", error, row.judged.rule)
        out.print(page)
    missing = unpaired(found)
    if missing:
        page = table("Without a counterpart", "operator", "where", "calls", right=("calls",))
        for where, op, count in missing[:8]:
            page.add_row(op, where, str(count))
        if len(missing) > 8:
            page.add_row(f"and {len(missing) - 8} more", "", "")
        out.print(page)
    first = report.first
    if first is not None:
        out.print(
            f"First divergence: {describe(first)}",
            style="bold red",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        for side, stack in enumerate(first.stacks):
            for frame in reversed(stack[-4:]):
                out.print(f"  run {side}: {frame}", markup=False, highlight=False, soft_wrap=True)
    for note in found.notes:
        out.print(note, markup=False, highlight=False, soft_wrap=True)
    for path in report.paths.values():
        out.print(f"Report: {path}", markup=False, highlight=False, soft_wrap=True)
    for kind, why in report.missing.items():
        err.print(f"No {kind}: {why}", markup=False, highlight=False, soft_wrap=True)
    out.print(f"Verdict: [{_STYLES[report.verdict]}]{report.verdict}[/]")
