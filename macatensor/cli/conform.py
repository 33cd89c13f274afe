"""``macatensor conform``: does a device library keep to maca.h? ``macatensor new-device``: one to begin with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import Json, emit_json, err, out, table, verdict

if TYPE_CHECKING:
    from macatensor.conformance import Line


def conform(
    library: Annotated[
        Path, typer.Argument(help="The device library, libmine.so.", exists=True, dir_okay=False)
    ],
    pattern: Annotated[
        list[str] | None,
        typer.Argument(help="Rows of levels 2 and 3; shell patterns.", show_default=False),
    ] = None,
    level: Annotated[
        list[int] | None,
        typer.Option(
            min=0, max=5, help="Only this level; may be repeated. By default 0 to 3.", show_default=False
        ),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this dtype; may be repeated.")] = None,
    layout: Annotated[list[str] | None, typer.Option(help="Only this layout; may be repeated.")] = None,
    limit: Annotated[float, typer.Option(min=1, help="Seconds for one rule, after which it hangs.")] = 60.0,
    workers: Annotated[int, typer.Option(min=1, help="Processes of levels 2 and 3.")] = 2,
    report: Annotated[
        Path, typer.Option("--output", "-o", help="Where the page goes, with a badge beside it.")
    ] = Path("reports/conformance.html"),
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML, too.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Ask a device library the rules of maca.h, level by level, and say what to do next.

    Nothing of it runs in this process: a crash or a hang is a line. Exit status: 1 when a line is wrong.
    """
    os.environ.pop("MACA_LIBRARY", None)  # this process computes with the host library, if at all
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from macatensor.conformance import LEVELS
    from macatensor.conformance import conform as ask
    from macatensor.conformance.report import junit as as_junit
    from macatensor.conformance.report import write
    from macatensor.conformance.runner import next_step

    lines: list[Line] = []
    columns = (SpinnerColumn(), TextColumn("{task.description:60.60}"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=as_json) as bar:
        task = bar.add_task("loading")
        for line in ask(
            library, level or (0, 1, 2, 3), pattern or (), dtype or (), layout or (), workers, limit
        ):
            lines.append(line)
            bad = sum(x.verdict == "FAIL" for x in lines)
            bar.update(task, description=f"level {line.level}: {line.name}, {len(lines)} asked, {bad} wrong")
    step = next_step(lines, library)
    path = write(lines, library, step, report)
    if junit is not None:
        junit.parent.mkdir(parents=True, exist_ok=True)
        junit.write_text(as_junit(lines), encoding="utf-8")
    if as_json:
        emit_json({"library": str(library), "next": step, "lines": [x.as_json() for x in lines]})
    else:
        _print(lines, LEVELS)
        out.print(f"\nNext: {step}", markup=False, highlight=False, soft_wrap=True)
        out.print(f"The page: {path}", markup=False, highlight=False, soft_wrap=True)
    if any(x.verdict == "FAIL" for x in lines):
        raise typer.Exit(1)


def _print(lines: list[Line], titles: dict[int, str]) -> None:
    page = table("Conformance", "level", "asked", "pass", "declined", "n/a", "wrong", "seconds", "verdict",
                 right=("asked", "pass", "declined", "n/a", "wrong", "seconds"))  # fmt: skip
    for level, title in titles.items():
        mine = [x for x in lines if x.level == level]
        if not mine:
            continue
        count = {v: sum(x.verdict == v for x in mine) for v in ("pass", "DECLINED", "n/a", "FAIL")}
        page.add_row(
            f"{level} {title}", str(len(mine)), *(str(n) for n in count.values()),
            f"{sum(x.seconds for x in mine):.1f}", verdict("FAIL" if count["FAIL"] else "pass"),
        )  # fmt: skip
    out.print(page)
    for line in lines:
        if line.verdict == "FAIL":
            out.print(f"[bold red]FAIL[/] level {line.level} [bold]{line.name}[/]")
            for text in (line.text, line.sentence and f"maca.h: {line.sentence}", line.remedy):
                if text:
                    out.print(f"  {text}", markup=False, highlight=False, soft_wrap=True)


def new_device(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
) -> None:
    """Write a complete small device library in C: memory, streams, events, and the kernels add, mm and relu."""
    from macatensor.conformance.starting import write_device

    try:
        written = write_device(folder)
    except FileExistsError as error:
        raise typer.BadParameter(str(error), param_hint="DIR") from None
    for path in written:
        out.print(str(path), markup=False, highlight=False, soft_wrap=True)
    out.print(
        f"\ncmake -S {folder} -B {folder}/build && cmake --build {folder}/build\n"
        f"macatensor conform {folder}/build/libmydevice.so",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
