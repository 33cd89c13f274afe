"""The table of an examination's rates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.table import Table

from .console import table, verdict

if TYPE_CHECKING:
    from macatensor.examination.summary import Rate


def rates_table(title: str, of: str, rates: Iterable[Rate], caption: str) -> Table:
    """A line for each rate, with its bar and whether that is met; ``of``: what a rate is counted of."""
    page = table(
        title, of, "asked", "pass", "share", "bar", "verdict", right=("asked", "pass", "share", "bar"), caption=caption
    )  # fmt: skip
    for rate in rates:
        page.add_row(
            rate.name, str(rate.asked), str(rate.passed), f"{rate.share:.2%}", f"{rate.bar:.0%}" if rate.bar else "",
            verdict("pass" if rate.is_met else "FAIL") if rate.bar else "",
        )  # fmt: skip
    return page
