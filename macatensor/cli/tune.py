"""``macatensor tune``: measures the library's algorithms for a program's products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from .console import Json, emit_json, err, out, table

if TYPE_CHECKING:
    from macatensor.choices.bank import Measured


def tune(
    context: typer.Context,
    script: Annotated[
        Path | None,
        typer.Argument(help="A program; what follows it are its own arguments.", exists=True, dir_okay=False),
    ] = None,
    dump: Annotated[
        Path | None,
        typer.Option(help="Write the shapes of the program here, and measure nothing.", dir_okay=False),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Measure the shapes of such a file, or of a bank.", exists=True, dir_okay=False
        ),
    ] = None,
    bank: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the banks; by default TUNE_BANK_PATH, or the user's cache.", file_okay=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a program, measure the algorithms for its products and convolutions, and keep the best in a bank."""
    if (script is None) == (source is None) or (dump is not None and script is None):
        raise typer.BadParameter("expected a program, with --dump or without, or --from FILE")
    import macatensor  # noqa: F401  the program may not import it
    from macatensor.choices import bank as banks
    from macatensor.choices import deciding
    from macatensor.files.scripts import run_as_main
    from macatensor.tuning import calls, offline

    if bank is not None:
        deciding.set_path(banks.file_in(bank))
    if dump is not None:
        assert script is not None
        with calls.recording() as found:
            run_as_main(script, context.args)
        calls.store(found, dump)
        err.print(Text(f"{dump}: {len(found)} calls"), soft_wrap=True)
        return
    if source is not None:
        try:
            measured = offline.tune(source)
        except (OSError, ValueError) as error:
            err.print(Text(str(error), style="red"), soft_wrap=True)
            raise typer.Exit(2) from None
    else:
        assert script is not None
        with offline.tuning() as measured:
            run_as_main(script, context.args)
        deciding.save()
    if as_json:
        emit_json(
            {"bank": str(deciding.path()), "measured": [{**asdict(m), "gain": m.gain} for m in measured]}
        )
    else:
        show(measured, deciding.path())


def show(measured: Sequence[Measured], path: Path) -> None:
    """Prints a line for each signature, and what was gained."""
    from macatensor.tuning.measuring import summary

    page = table("Measured", "operator", "operands", "way", "own choice", "tuned", "ratio", "ways",
                 right=("own choice", "tuned", "ratio", "ways"))  # fmt: skip
    for m in measured:
        own, tuned = m.seconds.get("", 0.0), m.seconds.get(m.way, 0.0)
        page.add_row(
            _operator(m), _operands(m), m.way or "the library's own", f"{own * 1e6:,.0f} us", f"{tuned * 1e6:,.0f} us",
            f"{m.gain:.2f}", str(len(m.seconds)),
        )  # fmt: skip
    out.print(page)
    own, tuned = summary(measured)
    changed = sum(bool(m.way) for m in measured)
    out.print(
        f"{len(measured)} signatures measured, {changed} go another way"
        + (
            f"; one call of each: {own * 1e3:.2f} ms, tuned {tuned * 1e3:.2f} ms ({tuned / own:.2f})"
            if own
            else ""
        )
    )
    out.print(Text(f"Bank: {path}"), soft_wrap=True)


def _operator(m: Measured) -> str:
    return str(m.call.get("operator", "")) if isinstance(m.call, dict) else ""


def _operands(m: Measured) -> str:
    arguments = m.call.get("arguments") if isinstance(m.call, dict) else None
    tensors = [a for a in arguments if isinstance(a, dict)] if isinstance(arguments, list) else []
    return " ".join(_size(a.get("size")) for a in tensors)


def _size(size: object) -> str:
    return "x".join(map(str, size)) if isinstance(size, list) else ""
