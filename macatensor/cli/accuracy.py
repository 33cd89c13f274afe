"""``macatensor accuracy``: what is done with recorded runs. One file a subcommand."""

from __future__ import annotations

import typer

from .accuracy_bisect import bisect
from .accuracy_compare import compare
from .accuracy_replay import replay

accuracy = typer.Typer(
    name="accuracy", help="Record two runs and find the operator that differs.", no_args_is_help=True
)
for _command in (compare, replay):
    accuracy.command()(_command)
# what follows the script are its own arguments, options included
accuracy.command(context_settings={"allow_extra_args": True, "allow_interspersed_args": False})(bisect)


@accuracy.callback()
def _group() -> None:
    """A callback keeps the subcommand's name needed even while there is one only."""
