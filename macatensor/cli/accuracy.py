"""``macatensor accuracy``: what is done with recorded runs. One file a subcommand."""

from __future__ import annotations

import typer

from .accuracy_compare import compare

accuracy = typer.Typer(
    name="accuracy", help="Record two runs and find the operator that differs.", no_args_is_help=True
)
for _command in (compare,):
    accuracy.command()(_command)


@accuracy.callback()
def _group() -> None:
    """A callback keeps the subcommand's name needed even while there is one only."""
