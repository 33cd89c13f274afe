"""``macatensor accuracy``: what is done with recorded runs, and bisecting without one."""

from __future__ import annotations

import typer

from .accuracy_compare import compare
from .accuracy_local import bisect, replay

accuracy = typer.Typer(
    name="accuracy", help="Record two runs and find the operator that differs.", no_args_is_help=True
)
for _command in (compare, replay):
    accuracy.command()(_command)
# what follows the script are its own arguments, options included
accuracy.command(context_settings={"allow_extra_args": True, "allow_interspersed_args": False})(bisect)
