"""``macatensor profile``: runs a program and shows what to change first."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from .console import Json, emit_json, err, error_panel, out

if TYPE_CHECKING:
    from macatensor.bench.ceilings import Ceilings
    from macatensor.bottlenecks.findings import Finding
    from macatensor.bottlenecks.session import Report
    from macatensor.bottlenecks.summary import Summary

_BAR = 60  # characters of the bar of shares
_COLOURS = {"kernel": "blue", "launch": "yellow", "python": "red", "idle": "bright_black"}


def profile(
    context: typer.Context,
    script: Annotated[
        Path,
        typer.Argument(help="A program; what follows it are its own arguments.", exists=True, dir_okay=False),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the page goes.")] = Path(
        "macatensor-profile.html"
    ),
    steps: Annotated[
        int, typer.Option(min=2, help="Stop the program after so many steps beyond the warm-up.")
    ] = 20,
    warm_up: Annotated[int, typer.Option(min=1, help="Steps at the start that are left out.")] = 3,
    roofline: Annotated[
        bool, typer.Option(help="Measure what this machine can do at most, some seconds.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Run a program, measure its steps, and write a page that says what slows it down and at which line.

    Options of this command come before SCRIPT. A step ends with `prof.step()`, else `optimizer.step()`, else a call of the
    model. The exit status is the program's; 2 where nothing ran on the device.
    """
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:  # before the program runs for minutes
        error_panel("The page needs plots", f"{error}. Install them with: pip install 'macatensor[bench]'")
        raise typer.Exit(2) from None
    from macatensor.bottlenecks import findings, page, program
    from macatensor.bottlenecks.session import Session
    from macatensor.bottlenecks.summary import Summary

    with _progress() as report:
        session = Session(steps, warm_up, report)
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            status = program.run(script, context.args, session)
    summary = Summary(session)
    if not summary.calls and not summary.launched:
        if status == 0:
            error_panel("Nothing ran on the device", f"{script.name} gave maca no operator to profile.")
        raise typer.Exit(status or 2)
    found = findings.find(summary)
    ceilings = _ceilings() if roofline else None
    path = page.write(output, script.name, summary, found, ceilings)
    if as_json:
        emit_json(page.facts(script.name, summary, found, ceilings, path, status))
    else:
        _show(summary, found, path)
    raise typer.Exit(status)


@contextlib.contextmanager
def _progress() -> Iterator[Report]:
    """A bar on a terminal, where the program's own lines go above it; nothing in a file."""
    columns = TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    shown = err.is_terminal
    with Progress(
        *columns, console=err, transient=True, disable=not shown,
        redirect_stdout=shown and sys.stdout.isatty(), redirect_stderr=shown,
    ) as bars:  # fmt: skip
        task = bars.add_task("profile: warm-up", total=None)

        def report(done: int, of: int, warm_up: int) -> None:
            what = "profile: warm-up" if done < warm_up else "profile: steps"
            bars.update(task, completed=done, total=of, description=what)

        yield report


def _ceilings() -> Ceilings | None:
    import torch

    from macatensor.bench.ceilings import ceilings

    try:
        return ceilings(torch.get_num_threads(), runs=5)
    except (RuntimeError, NotImplementedError) as error:  # no memory left for the measurement
        err.print(Text(f"no roofline: {error}", style="yellow"), soft_wrap=True)
        return None


def _show(summary: Summary, found: list[Finding], path: Path) -> None:
    from macatensor.bottlenecks.page import basis

    out.print()
    out.print(Text(basis(summary), style="dim"), soft_wrap=True)
    bar, legend = Text(), Text()
    for name, colour in _COLOURS.items():
        share = getattr(summary.shares, name)
        bar.append("█" * round(_BAR * share), style=colour)
        legend.append(f"■ {name} {share:.0%}   ", style=colour)
    out.print(bar)
    out.print(legend)
    out.print(
        f"a step takes {1e3 * summary.seconds:.1f} ms, {summary.launches:,.0f} launches", highlight=False
    )
    for i, finding in enumerate(found):
        out.print()
        share = "" if finding.share is None else f"  (about {finding.share:.0%} of a step)"
        out.print(
            Text(f"{i + 1}. {finding.title}{share}", style="bold red" if i == 0 else "bold yellow"),
            soft_wrap=True,
        )
        for line in finding.lines:
            out.print(Text(f"   {line.file}:{line.number}  {line.code}", style="cyan"), soft_wrap=True)
        out.print(Text(f"   → {finding.remedy}."), soft_wrap=True)
    if not found:
        out.print(Text("Nothing stands out.", style="bold green"))
    out.print()
    out.print(f"Page: [bold]{path}[/]", highlight=False, soft_wrap=True)
