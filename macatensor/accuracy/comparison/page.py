"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path

from macatensor.accuracy.comparison.columns import COLUMNS
from macatensor.accuracy.comparison.compare import Comparison
from macatensor.accuracy.comparison.rows import CallRow, TensorRow

LINES = 3000  # of the table: a browser sorts them at once
_SHOWN = (
    "index rank verdict level alignment module role place error inherited diff1 diff2 cosine".split()
    + [
        "max abs",
        "max rel",
        "within 1/1000",
        "within 5/1000",
        "max ULP",
        "mean ULP",
        "NaN/Inf disagree",
        "dtype 0",
    ]
    + [
        "dtype 1",
        "shape 0",
        "shape 1",
        "min 0",
        "min 1",
        "max 0",
        "max 1",
        "mean 0",
        "mean 1",
        "norm 0",
        "norm 1",
    ]
)


def cell_text(value: object) -> str:
    """A number with three digits, all else as it is."""
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _lines(comparison: Comparison) -> tuple[list[tuple[CallRow, TensorRow | None]], int]:
    """What the table shows, and how many lines there are: outputs and what does not pass; the worst where too many."""
    found: list[tuple[CallRow, TensorRow | None]] = []
    for row in comparison.calls:
        if row.pair.left is None or row.pair.right is None:
            found.append((row, None))
        else:
            found += [(row, t) for t in row.tensors if t.role == "output" or t.judged.verdict != "pass"]

    def worst(i: int) -> tuple[int, float]:
        row, t = found[i]
        judged = row.judged if t is None else t.judged
        return {"error": 0, "warning": 1, "pass": 2}[judged.verdict], -(judged.error or 0.0)

    kept = sorted(sorted(range(len(found)), key=worst)[:LINES])
    return [found[i] for i in kept], len(found)


def write(comparison: Comparison, path: Path) -> None:
    """Writes the page. Raises FileExistsError if the file is there."""
    import jinja2

    from macatensor.accuracy.comparison.page_plot import errors_along
    from macatensor.accuracy.comparison.sentences import unpaired
    from macatensor.accuracy.comparison.verdict import TOLERANCES

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("macatensor.accuracy.comparison", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    columns = [c for c in COLUMNS if c.name in _SHOWN]
    lines, total = _lines(comparison)
    html = environment.get_template("page.html.j2").render(
        comparison=comparison,
        counts={level: comparison.counts(level) for level in ("api", "aten")},
        first=comparison.first(),
        suspect=comparison.first_warning(),
        plot=errors_along(comparison.calls),
        columns=columns,
        lines=[
            {
                "row": row,
                "verdict": (row.judged if t is None else t.judged).verdict,
                "rule": (row.judged if t is None else t.judged).rule,
                "cells": [cell_text(c.cell(row, t)) for c in columns],
            }
            for row, t in lines
        ],
        total=total,
        unpaired=unpaired(comparison),
        tolerances=TOLERANCES,
    )
    with path.open("x", encoding="utf-8", errors="replace") as file:
        file.write(html)
