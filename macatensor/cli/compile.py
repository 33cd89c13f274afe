"""``macatensor compile``: runs a program and shows what ``torch.compile`` made of it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import compile_picture
from .console import Json, emit_json, out, table

if TYPE_CHECKING:
    from macatensor.compiling.checked import Wrong
    from macatensor.compiling.explained import Explanation


def compile(
    context: typer.Context,
    script: Annotated[
        Path,
        typer.Argument(help="A program; what follows it are its own arguments.", exists=True, dir_okay=False),
    ],
    picture: Annotated[
        Path | None, typer.Option(help="Write a picture of the graphs, .svg or .html, too.", dir_okay=False)
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Time each operator alone and each graph, too.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            help="Judge each fused program against its operators and float64; exit 1 if one is wrong."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a program and show the launches of each graph that torch.compile made for maca, and what was fused."""
    import macatensor  # noqa: F401  the program may not import it
    from macatensor.compiling.checked import checking
    from macatensor.compiling.explained import explaining, measuring
    from macatensor.files.scripts import run_as_main

    if picture is not None and picture.suffix not in (".svg", ".html"):
        raise typer.BadParameter(f"a picture is written as .svg or .html, got {picture.name}")
    judging: AbstractContextManager[list[Wrong]] = checking() if check else nullcontext([])
    with measuring() if explain else explaining() as found, judging as wrong:
        run_as_main(script, context.args)
    if picture is not None:
        compile_picture.write(found, picture)
    if as_json:
        emit_json([asdict(explanation) for explanation in found])
        raise typer.Exit(bool(wrong))
    for number, explanation in enumerate(found):
        _print(number, explanation)
    if not found:
        out.print("No graph of this program was compiled for maca.")
    for program in wrong:
        out.print(f"Wrong: {program}.")
    raise typer.Exit(bool(wrong))


def _print(number: int, explanation: Explanation) -> None:
    fused = {step.fused for step in explanation.steps} - {None}
    timed = explanation.seconds is not None
    alone = sum(step.seconds or 0.0 for step in explanation.steps)
    page = table(
        f"graph {number}: {len(explanation.steps)} operators, {explanation.launches} launches, "
        f"{len(fused)} of them fused, {explanation.scratch_bytes / 2**20:.2f} MiB between",
        "operator", "kernel", "how", "fused into", "reads and writes", *(["alone"] if timed else []),
        right=("fused into", "reads and writes", "alone"),
        caption=f"inputs: {len(explanation.inputs)}" + (
            f"; {_microseconds(explanation.seconds)} a call, operator by operator {_microseconds(alone)}" if timed else ""
        ),
    )  # fmt: skip
    for step in explanation.steps:
        page.add_row(
            step.operator.removeprefix("aten.").removesuffix(".default"), step.kernel, step.implementation,
            "" if step.fused is None else f"program {step.fused}", f"{step.bytes / 2**10:,.1f} KiB",
            *([_microseconds(step.seconds)] if timed else []),
        )  # fmt: skip
    out.print(page)


def _microseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:,.1f} us"
