"""``macatensor accuracy bisect`` and ``replay``: operators judged from the same inputs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from .console import Json, emit_json, err, error_panel, out, table, verdict


def bisect(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A program; what follows it are its own arguments.")],
    device: Annotated[str, typer.Option(help="Whose operators are judged: maca, cuda, cpu or all.")] = "maca",
    op: Annotated[list[str] | None, typer.Option(help="Judge only this operator; may be repeated.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the repro.")] = Path("."),
    seconds: Annotated[float, typer.Option(help="At most so long to shrink the inputs.")] = 20.0,
    as_json: Json = False,
) -> None:
    """Run a program up to the first operator whose own error breaks its bound; shrink its inputs; write a repro.

    Options of this command come before SCRIPT. Exit status: 0 when every operator keeps its bound, 1 when one does
    not or MACA_SANITIZE=1 finds a race between streams, 2 when the program could not be examined.
    """
    from macatensor.accuracy.local.bisection import bisect_script

    try:
        result = bisect_script(
            script, context.args, device=None if device == "all" else device, op_list=op or (), output_dir=output,
            seconds=seconds,
        )  # fmt: skip
    except (ValueError, RuntimeError) as error:
        _refuse("The program could not be examined", error, as_json)
    finding = result.finding
    if as_json:
        emit_json(
            {
                "op": finding and finding.op,
                "kind": finding and finding.kind,
                "text": finding and finding.text,
                "call": finding and finding.number,
                "origin": finding and str(finding.origin),
                "frames": finding and finding.origin.frames,
                "repro": finding and finding.repro and str(finding.repro),
                "failure_rate": finding and finding.rate,
                "calls": result.calls,
                "clean": result.clean,
                "judged": result.judged,
                "unjudged": result.unjudged,
                "hazards": [str(h) for h in result.hazards],
                "programs": [str(p) for p in result.programs],
            }
        )
    else:
        out.print(str(result), markup=False, highlight=False, soft_wrap=True)
    if result:
        raise typer.Exit(1)


def replay(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A record with whole tensors (record_level=2).")
    ],
    device: Annotated[str, typer.Option(help="Where the operators run again: maca, cuda or cpu.")] = "maca",
    as_json: Json = False,
) -> None:
    """Run recorded operators again from their recorded inputs; judge by float64 and by what was recorded.

    Exit status: 0 when all agree, 1 when one does not, 2 when the record cannot be read.
    """
    from macatensor.accuracy.local.replaying import replay as run

    try:
        report = run(folder, device=device)
    except (ValueError, RuntimeError) as error:
        _refuse("The record could not be replayed", error, as_json)
    if as_json:
        emit_json(report.as_dict())
    else:
        numbers = ("call", "of its bound", "recorded: of its bound")
        page = table(
            f"Replay on {device}", "operator", "call", "verdict", *numbers[1:], "recorded", right=numbers
        )
        for r in report.shown():
            page.add_row(
                r.op, str(r.number), verdict(r.verdict), _share(r.share), _share(r.recorded_share), r.recorded
            )
        out.print(page)
        out.print(str(report), markup=False, highlight=False, soft_wrap=True)
    if report.failures:
        raise typer.Exit(1)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def _refuse(title: str, error: Exception, as_json: bool) -> NoReturn:
    """Says why nothing could be examined, with the program's own traceback, and ends with status 2."""
    if as_json:
        emit_json({"error": str(error)})
    if error.__cause__ is not None and isinstance(error, RuntimeError):
        import traceback

        err.print("".join(traceback.format_exception(error.__cause__)), markup=False, highlight=False)
    error_panel(title, str(error))
    sys.exit(2)
