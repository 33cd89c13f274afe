"""``macatensor accuracy replay``: recorded operators run again on a device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .accuracy_bisect import refuse
from .console import Json, emit_json, out, table, verdict


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
    from macatensor.accuracy.replaying import replay as run

    try:
        report = run(folder, device=device)
    except (ValueError, RuntimeError) as error:
        refuse("The record could not be replayed", error, as_json)
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
