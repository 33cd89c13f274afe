"""``macatensor demo``: the main job, with progress bars and a report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from .console import Json, emit_json, err, error_panel, out, table, verdict

if TYPE_CHECKING:
    from macatensor.demo.main import Demo
    from macatensor.demo.training import Report


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the report goes.")] = Path(
        "macatensor-demo.html"
    ),
    seed: Annotated[int, typer.Option(help="Decides initial weights, batches and the text written.")] = 0,
    as_json: Json = False,
) -> None:
    """Train a ResNet and a GPT on the device, then check one step of each op by op against float64."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
        import sklearn  # noqa: F401
    except ModuleNotFoundError as error:  # before training for minutes, not after
        error_panel(
            "The demo needs more packages", f"{error}. Install them with: pip install 'macatensor[demo]'"
        )
        raise typer.Exit(2) from None
    from macatensor.demo import main, page

    columns = (
        TextColumn("[bold]{task.description:<34}"), BarColumn(bar_width=28), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("[cyan]{task.fields[line]}"),
    )  # fmt: skip
    with Progress(*columns, console=err if as_json else out) as progress:

        def tracker(name: str) -> Report:
            task = progress.add_task(name, total=None, line="")
            if not progress.console.is_terminal:  # where bars are drawn once, at their end
                progress.console.print(f"{name} ...", highlight=False)

            def report(done: int, total: int, line: str) -> None:
                progress.update(task, completed=done, total=total, line=line)

            return report

        found = main.run(seed, tracker=tracker)
    start = time.perf_counter()
    path = page.write(found, output)
    found.seconds += time.perf_counter() - start
    if as_json:
        emit_json(main.facts(found, path))
    else:
        show(found, path)
    if found.failures:
        raise typer.Exit(1)


def show(found: Demo, path: Path) -> None:
    """Prints the parity tables, the fallbacks and the result."""
    from macatensor.demo.page import error_text

    for training, records in zip(found.trainings, found.parity):
        numbers = ("calls", "ms", "max ULP", "max rel.")
        grid = table(f"\n{training.name}: one step, op by op", "op", "kernel", "calls", "layout in", "layout out", "ms",
                     "max ULP", "max rel.", "bound", "verdict", right=numbers)  # fmt: skip
        for r in sorted(records, key=lambda r: -r.seconds):
            grid.add_row(
                r.op, r.kernel or Text(r.row_kind, style="dim"), str(r.calls), r.layout_in, r.layout_out, f"{1e3 * r.seconds:.3f}",
                error_text(r.max_ulp), error_text(r.max_rel), r.bound,
                verdict("FAIL" if r.verdict.startswith("FAIL") else r.verdict),
            )  # fmt: skip
        out.print(grid)
        for r in records:
            if r.verdict.startswith("FAIL"):
                out.print(f"[bold red]FAIL[/] {r.op}{r.verdict[4:]}", highlight=False)
    out.print()
    for training in found.trainings:
        mark = "[green]met[/]" if training.met else "[bold red]missed[/]"
        out.print(
            f"{training.name}: {training.metric} [bold]{training.formatted(training.value)}[/] after {training.steps} "
            f"steps in {training.seconds:.1f} s; bar {training.formatted(training.bar)} {mark}",
            highlight=False,
        )
    calls = sum(found.fallbacks.values())
    style = "bold red" if calls else "green"
    out.print(f"Operators that fell back to the host: [{style}]{calls}[/] of {found.launches:,} launches",
              highlight=False)  # fmt: skip
    out.print(f"Report: [bold]{path}[/]  ({found.seconds:.0f} s in all)", highlight=False, soft_wrap=True)
    for failure in found.failures:
        out.print(f"[bold red]missed[/] {failure}", highlight=False)
