"""``macatensor bench``: the device against native PyTorch, in one run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from .console import Json, emit_json, err, error_panel, out, table, verdict

if TYPE_CHECKING:
    from macatensor.bench.compare import Comparison
    from macatensor.bench.result import Result
    from macatensor.bench.stored import Run


def bench(
    cases: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CASE]...", help="Suites, parts of case names or shell patterns; all by default.",
                       show_default=False),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds; figures are medians over them.")] = 7,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads of both sides.")] = 2,
    quick: Annotated[bool, typer.Option(help="Tiny operands: shows that all works, figures mean little.")] = False,
    names: Annotated[bool, typer.Option("--list", help="Print the names of the cases and stop.")] = False,
    save: Annotated[
        Path | None, typer.Option(help="Store the run as JSON, anew after each case.", show_default=False)
    ] = None,
    load: Annotated[
        Path | None, typer.Option(help="Take the figures of a stored run instead of measuring.", show_default=False)
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(metavar="BASELINE", show_default=False,
                     help="Compare with a stored run; without CASE its cases are measured. Exit status 1 where one "
                     "became slower."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="With --compare: a case is slower where its ratio grew by more than this part "
                            "and the middle halves of both runs' rounds lie apart."),
    ] = 0.05,
    plot: Annotated[
        Path | None, typer.Option(help="Draw ratios and shares of the ceilings: .png, .svg or .pdf.", show_default=False)
    ] = None,
    device_report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False,
                     help="Instead: the device's rules, operators, bandwidth, products and training steps, beside PyTorch "
                     "for CUDA where that has a GPU, as JSON within ten minutes."),
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Measure the device as ratios to native PyTorch, interleaved in the same run, and judge them by their bars."""
    if device_report is not None:
        _report_on_device(device_report, quick, as_json)
        return
    from macatensor.bench import runner, stored

    if plot is not None:
        _require_plot(plot)
    try:
        baseline = None if compare is None else stored.load(compare)
        if load is not None:
            run = _chosen_of(stored.load(load), cases)
        else:
            chosen = runner.select(cases or ([] if baseline is None else _cases_of(baseline)))
            if names:
                emit_json(chosen) if as_json else out.print("\n".join(chosen))
                return
            run = _measure(chosen, repeat, threads, quick, save)
        comparison = None if baseline is None else _compared(baseline, run, tolerance)
        if load is not None and save is not None:
            stored.save(run, save)
    except (OSError, ValueError) as error:
        _refuse(error)
    if as_json:
        emit_json(run.facts() if comparison is None else comparison.facts())
    elif comparison is None:
        show(run)
    else:
        show_comparison(comparison)
    if plot is not None:
        _draw(run, plot)
    if (
        comparison is None
        and not run.passed
        and not run.quick
        or comparison is not None
        and comparison.slower
    ):
        raise typer.Exit(1)


def _report_on_device(to: Path, quick: bool, as_json: bool) -> None:
    from macatensor.bench.device import report
    from macatensor.device.properties import library_info

    library = Path(str(library_info()["path"]))
    page = table("The device", "section", "status", "seconds", right=("seconds",))
    complete = True
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=err, transient=True,
                  disable=as_json) as bar:  # fmt: skip
        task = bar.add_task("the library")
        for name, found in report.report(library, to, quick):
            bar.update(task, description=f"behind {name}")
            complete &= found["status"] is not None and found["found"] is not None
            page.add_row(
                name, "ended" if found["status"] is None else str(found["status"]), f"{found['seconds']:.0f}"
            )
    if as_json:
        print(to.read_text(encoding="utf-8"), end="")
    else:
        out.print(page)
        out.print(f"All of it: {to}", markup=False, highlight=False, soft_wrap=True)
    if not complete:
        raise typer.Exit(1)


def _refuse(error: Exception) -> None:
    err.print(Text(str(error), style="red"), soft_wrap=True)
    raise typer.Exit(2) from None


def _require_plot(path: Path) -> None:
    """What can be known of a picture before measuring for minutes."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise typer.BadParameter(
            f"{path}; accepted: names that end in .png, .svg or .pdf", param_hint="--plot"
        )
    if not path.parent.is_dir():
        raise typer.BadParameter(f"{path}: there is no folder {path.parent}", param_hint="--plot")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        error_panel(
            "--plot needs one more package", f"{error}. Install it with: pip install 'macatensor[bench]'"
        )
        raise typer.Exit(2) from None


def _draw(run: Run, path: Path) -> None:
    from macatensor.bench.plot import plot

    try:
        shown = plot(run, path)
    except (OSError, ValueError) as error:
        _refuse(error)
    err.print(Text(f"{path}: {shown} cases"), soft_wrap=True)


def _cases_of(run: Run) -> list[str]:
    """Names for ``runner.select`` that give the results of ``run``; what this version lacks is left out."""
    from macatensor.bench import runner

    found = []
    for result in run.results:
        parts = result.case.split(".")
        prefixes = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]  # graph.gpt is one of "graph"
        found += [name for name in prefixes if name in runner.CASES][:1]
    return list(dict.fromkeys(found))


def _chosen_of(run: Run, cases: list[str] | None) -> Run:
    """Only the results whose names match. Raises ValueError where none does."""
    from dataclasses import replace

    from macatensor.bench.runner import matching

    if not cases:
        return run
    names = {r.case for r in run.results}
    chosen = set().union(*(matching(pattern, names) for pattern in cases))
    results = [r for r in run.results if r.case in chosen]
    if not results:
        raise ValueError(f"no case of the stored run matches {' '.join(cases)}")
    return replace(run, results=results)


def _compared(baseline: Run, run: Run, tolerance: float) -> Comparison:
    from macatensor.bench.compare import compare

    return compare(baseline, run, tolerance)


def _measure(chosen: list[str], repeat: int, threads: int, quick: bool, save: Path | None) -> Run:
    from macatensor.bench import runner, stored

    load = runner.load()
    if load is not None and load > 0.5 * (os.cpu_count() or 1):
        err.print(
            f"[yellow]The machine is busy[/] (load {load:.1f}). PyTorch's OpenMP threads wait for each other spinning: "
            "with more threads than free cores native times explode. Take figures on an idle machine, or --threads 1."
        )
    if save is not None:  # a name that cannot be written is an error now, not after minutes
        stored.save(stored.described([], repeat, threads, quick, load), save)
    results: list[Result] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(chosen[0])
        runs = runner.run(chosen, repeat, threads, quick)
        for i in range(len(chosen)):
            progress.update(task, description=f"{i + 1}/{len(chosen)}  {chosen[i]}")
            results += next(runs)[1]
            if save is not None:
                stored.save(stored.described(results, repeat, threads, quick, load), save)
        runs.close()
    return stored.described(results, repeat, threads, quick, load)


def show(run: Run) -> None:
    """Prints the table."""
    title = f"Benchmarks on {run.device} ({run.simd}), {run.threads} threads, {run.rounds} rounds"
    if run.quick:
        title += ", quick: figures mean little"
    numbers = ("baseline time", "maca time", "value", "spread", "bar", "rate", "of ceiling")
    page = table(title, "case", "against", *numbers, "verdict", right=numbers, caption=_ceilings(run))
    group = None
    for r in run.results:
        if group is not None and r.case.partition(".")[0] != group:
            page.add_section()
        group = r.case.partition(".")[0]
        page.add_row(
            r.case,
            r.baseline,
            duration(r.baseline_seconds),
            duration(r.maca_seconds),
            value(r.value, r.unit),
            "" if r.spread is None or r.unit != "x" else f"{r.spread[0]:.2f}..{r.spread[1]:.2f}",
            "" if r.bar is None else f"<= {value(r.bar, r.unit)}",
            "" if r.rate is None else f"{r.rate.value / 1e9:.3g} {_unit(r.rate.of)}",
            "" if r.rate is None else f"{r.rate.share:.0%}",
            verdict(r.verdict + (" (ceiling)" if r.is_at_ceiling and r.bar is not None else "")),
        )
    out.print(page)
    for r in run.results:
        if r.note or r.fallbacks:
            host = f"{r.fallbacks} calls on the host" if r.fallbacks else ""
            out.print(
                f"[dim]{r.case}: {'; '.join(text for text in (host, r.note) if text)}[/]", highlight=False
            )
    bars = [r for r in run.results if r.verdict != "report"]
    missed = sum(r.verdict == "missed" for r in bars)
    out.print(f"{len(bars) - missed} bars met, [{'red' if missed else 'green'}]{missed} missed[/]")


def _unit(ceiling: str) -> str:
    return "GB/s" if ceiling in ("copy", "read") else "GFLOP/s"


def _ceilings(run: Run) -> str | None:
    found = [
        f"{name.replace('_', '-')} {value / 1e9:.3g} {_unit(name)}"
        for name, value in run.ceilings.items()
        if value
    ]
    return f"Ceilings of this run: {', '.join(found)}" if found else None


def show_comparison(comparison: Comparison) -> None:
    """Prints what changed, and why machines can be compared by ratio only."""
    for name, (old, new) in comparison.differences.items():
        err.print(
            f"[yellow]{name} differs[/]: {old} there, {new} here. Only ratios are compared.", soft_wrap=True
        )
    title = f"Against the baseline; slower and faster: by more than {comparison.tolerance:.0%} and both runs' spread"
    numbers = ("baseline", "now", "factor")
    page = table(title, "case", "against", *numbers, "verdict", "note", right=numbers)
    for c in comparison.changes:
        page.add_row(
            c.case,
            c.baseline,
            value(c.old, c.unit),
            value(c.new, c.unit),
            "" if c.factor is None else f"{c.factor:.3f}",
            verdict(c.verdict),
            c.note,
        )
    out.print(page)
    for where, cases in (("the baseline", comparison.only_old), ("this run", comparison.only_new)):
        if cases:
            out.print(f"[dim]Only in {where}: {', '.join(cases)}[/]")
    counts = {
        kind: sum(c.verdict == kind for c in comparison.changes) for kind in ("slower", "faster", "same")
    }
    out.print(", ".join(f"{count} {kind}" for kind, count in counts.items()))


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
