"""The command line ``macatensor``. One file a command; PyTorch is imported by the commands that need it.

Imports inside this folder are relative, so that the folder also works as the top-level package of a console script,
which then answers ``--help`` without loading PyTorch (0.2 s instead of 2).
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
import typer.core

from .accuracy import accuracy
from .bench import bench
from .check import check
from .compile import compile
from .conform import conform, new_device
from .console import err, error_panel
from .demo import demo
from .migrate import migrate
from .opinfo import opinfo
from .ops import ops
from .parity import parity
from .profile import profile
from .tune import tune


class _Commands(typer.core.TyperGroup):
    """The commands, and an earlier spelling of one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[:1] == ["parity"] and {"--all", "--short"} & set(args):
            args = ["opinfo", *(a for a in args[1:] if a != "--all")]
            err.print("`macatensor parity --all` and `--short` are `macatensor opinfo` now", markup=False)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="macatensor",
    cls=_Commands,
    help="The device [bold]maca[/] for stock PyTorch: check it, try it, measure it.",
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (check, demo, ops, parity, opinfo, bench, migrate, conform):
    app.command()(_command)
for _runs_program in (compile, profile, tune):  # what follows the program is its own
    app.command(context_settings={"allow_extra_args": True, "allow_interspersed_args": False})(_runs_program)
app.command("new-device")(new_device)
app.add_typer(accuracy)


def _print_version(asked: bool) -> None:
    if asked:
        import torch

        import macatensor

        typer.echo(f"macatensor {macatensor.__version__}, PyTorch {torch.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print versions and exit."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the console script and of ``python -m macatensor``."""
    try:
        app()
    except ImportError as error:  # the device library is missing or of another ABI: its text says what to do
        error_panel("macatensor cannot start", str(error))
        sys.exit(2)
