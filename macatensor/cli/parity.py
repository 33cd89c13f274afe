"""``macatensor parity``: runs rows of the op table against their references now."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from .console import Json, emit_json, err, out, table, verdict

if TYPE_CHECKING:
    from macatensor.parity.runner import Result


def parity(
    pattern: Annotated[
        list[str] | None,
        typer.Argument(
            help="Operators, rows or families; shell patterns such as '_foreach_*'.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this dtype; may be repeated.")] = None,
    layout: Annotated[
        list[str] | None,
        typer.Option(help="Only this layout: contiguous, channels_last, transposed, expanded, sliced."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the operands.")] = 0,
    as_json: Json = False,
) -> None:
    """Check operators against a float64 reference: samples, largest errors, bound, verdict.

    Exit status: 1 when a sample is wrong; what the library declines is counted and is not wrong.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from macatensor.parity import run_row, select
    from macatensor.parity.samples import LAYOUTS

    unknown = [name for name in layout or () if name not in LAYOUTS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r}; accepted: {', '.join(LAYOUTS)}", param_hint="--layout")
    rows = select(pattern or ())
    known = {name for row in rows for name in row.dtypes} | {"float32"}
    unknown = [name for name in dtype or () if name not in known]
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]!r}; accepted: {', '.join(sorted(known))}", param_hint="--dtype"
        )
    if not rows:
        err.print(f"[red]No row matches[/] {' '.join(pattern or ())}; `macatensor ops` lists them.")
        raise typer.Exit(1)
    results = []
    bar = Progress(
        TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=err,
        transient=True, disable=as_json,
    )  # fmt: skip
    with bar:
        task = bar.add_task("", total=len(rows))
        for row in rows:
            bar.update(task, description=row.name)
            results.append(run_row(row, dtype, layout, seed))
            bar.advance(task)
    failed = [r for r in results if r.verdict == "FAIL"]
    if as_json:
        emit_json([{**asdict(r), "verdict": r.verdict} for r in results])
    else:
        _print(results)
        for result in failed:
            err.print(f"[bold red]{result.row}[/]: {result.failed} failures")
            _print_lines(result.failures)
        for result in results:
            if result.declined:
                err.print(f"[bold]{result.row}[/]: {result.declined} declined")
                _print_lines(result.declines)
    if failed:
        raise typer.Exit(1)


def _print_lines(lines: list[str]) -> None:
    for line in lines:
        err.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


def _number(value: float) -> str:
    return "0" if not value else f"{value:.3g}"


def _print(results: list[Result]) -> None:
    numbers = ("samples", "declined", "max ULP", "max relative", "of bound", "seconds")
    page = table(
        "Parity with float64 references", "operator", "kind", "samples", "declined", "max ULP", "max relative", "bound",
        "of bound", "seconds", "verdict", right=numbers,
        caption="ULP and relative error of sums are taken at the sum of the terms' magnitudes; the bound shown is that "
        "of the dtype that came closest to it.",
    )  # fmt: skip
    family = None
    for r in results:
        if r.family != family:
            family = r.family
            page.add_section()
            page.add_row(Text(family, style="bold"))
        share = f"{r.share:.0%}" if r.share < 1e4 else "-"
        page.add_row(
            f"  {r.row}", r.kind, str(r.samples), str(r.declined), _number(r.max_ulp), _number(r.max_relative), r.bound,
            share, f"{r.seconds:.1f}", verdict(r.verdict),
        )  # fmt: skip
    out.print(page)
    count = sum(r.samples for r in results)
    bad = sum(r.verdict == "FAIL" for r in results)
    declined = sum(r.declined for r in results)
    out.print(
        f"{len(results)} rows, {count} samples, "
        + (
            f"[bold red]{bad} rows FAIL[/]"
            if bad
            else "[green]none wrong[/]"
            if declined
            else "[green]all pass[/]"
        )
        + (f", {declined} samples declined" if declined else "")
    )
