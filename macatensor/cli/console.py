"""What the commands share: the console, JSON output, colours of verdicts."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

# into a pipe or a file a table has no window to fit into
_WIDTH = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
out = Console(width=_WIDTH)
err = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def emit_json(value: Any) -> None:
    """Writes ``value`` to standard output, unstyled, as one JSON document."""
    print(json.dumps(value, indent=2, default=str))


class _PlainTable(Table):
    """A table whose texts are shown as they are: what stands in brackets in a name is no markup."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def table(title: str, *columns: str, right: tuple[str, ...] = (), caption: str | None = None) -> Table:
    """An empty table; columns named in ``right`` hold numbers."""
    made = _PlainTable(title=title, title_justify="left", title_style="bold", header_style="bold cyan", 
                       caption=caption, caption_justify="left")  # fmt: skip
    for i, name in enumerate(columns):  # the first column says what the row is about: it is not broken
        made.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=i == 0)
    return made


def verdict(text: str) -> Text:
    """``pass``, ``met`` and ``faster`` in green, ``FAIL``, ``missed`` and ``slower`` in red, all else dim."""
    is_good, is_bad = (
        text.startswith(("pass", "met", "faster")),
        text.startswith(("FAIL", "missed", "slower")),
    )
    style = "green" if is_good else "bold red" if is_bad else "dim"
    return Text(text, style=style)


def progress(quiet: bool) -> Progress:
    """A bar on standard error with a line of text before it, the count, and the time taken and left; none if ``quiet``."""
    return Progress(
        TextColumn("{task.description:48.48}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(), console=err, transient=True, disable=quiet,
    )  # fmt: skip


def error_panel(title: str, text: str) -> None:
    """An error in a red frame on standard error."""
    err.print(Panel(Text(text), title=title, border_style="red", title_align="left"))
