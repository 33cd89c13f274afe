"""``macatensor bench``: the device against native PyTorch, in one run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .console import Json, emit_json, err, out, table, verdict

if TYPE_CHECKING:
    from macatensor.bench.result import Result


def bench(
    cases: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CASE]...", help="Parts of case names or shell patterns; all by default.",
                       show_default=False),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds; figures are medians over them.")] = 7,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads of both sides.")] = 2,
    quick: Annotated[bool, typer.Option(help="Tiny budgets: shows that all works, figures mean little.")] = False,
    names: Annotated[bool, typer.Option("--list", help="Print the names of the cases and stop.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Measure the device as ratios to native PyTorch, interleaved in the same run, and judge them by their bars."""
    from macatensor.bench import runner

    try:
        chosen = runner.select(cases or [])
    except ValueError as error:
        err.print(f"[red]{error}[/]")
        raise typer.Exit(2) from None
    if names:
        emit_json(chosen) if as_json else out.print("\n".join(chosen))
        return
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > 0.5 * (os.cpu_count() or 1):
        err.print(
            f"[yellow]The machine is busy[/] (load {load:.1f}). PyTorch's OpenMP threads wait for each other spinning: "
            "with more threads than free cores native times explode. Take figures on an idle machine, or --threads 1."
        )
    results: list[Result] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(chosen[0])
        runs = runner.run(chosen, repeat, threads, quick)
        for i in range(len(chosen)):
            progress.update(task, description=f"{i + 1}/{len(chosen)}  {chosen[i]}")
            results += next(runs)[1]
        runs.close()
    summary = runner.report(results, repeat, threads)
    if as_json:
        emit_json(summary)
    else:
        show(
            results,
            f"Benchmarks on {summary['device']} ({summary['simd']}), {threads} threads, {repeat} rounds",
        )
    if not summary["passed"] and not quick:
        raise typer.Exit(1)


def show(results: list[Result], title: str) -> None:
    """Prints the table."""
    numbers = ("baseline time", "maca time", "value", "bar", "fallbacks")
    page = table(title, "case", "against", *numbers, "verdict", "note", right=numbers)
    group = None
    for r in results:
        if group is not None and r.case.partition(".")[0] != group:
            page.add_section()
        group = r.case.partition(".")[0]
        page.add_row(
            r.case,
            r.baseline,
            duration(r.baseline_seconds),
            duration(r.maca_seconds),
            value(r.value, r.unit),
            "" if r.bar is None else f"<= {value(r.bar, r.unit)}",
            "" if r.fallbacks is None else str(r.fallbacks),
            verdict(r.verdict),
            r.note,
        )
    out.print(page)


def value(number: float, unit: str) -> str:
    """``0.83 x``, ``0.31 s``, ``1.5 MiB``."""
    if unit == "B":
        return f"{number:.0f} B" if number < 1 << 20 else f"{number / (1 << 20):.1f} MiB"
    if unit == "s" and number < 0.01:
        return duration(number)
    return f"{number:.2f} {unit}"


def duration(seconds: float | None) -> str:
    """Seconds in the unit that gives three digits."""
    if seconds is None:
        return ""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"
