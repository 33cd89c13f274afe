"""The columns of a report, once for the workbook, the CSV file, the page and JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from macatensor.accuracy.comparison.rows import CallRow, TensorRow
from macatensor.accuracy.comparison.verdict import Judged

Value = str | int | float | None


@dataclass(frozen=True)
class Column:
    """A heading, how a cell is made, and how wide it is shown (characters)."""

    name: str
    cell: Callable[[CallRow, TensorRow | None], Value]
    width: int = 10
    number: bool = True


def number(value: float | None) -> Value:
    """A number as files hold it: NaN and infinities as text, which no spreadsheet has as numbers."""
    if value is None or isinstance(value, int) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _side(name: str, side: int) -> Callable[[CallRow, TensorRow | None], Value]:
    def cell(row: CallRow, t: TensorRow | None) -> Value:
        entry = None if t is None else (t.left, t.right)[side]
        if entry is None:
            return None
        value = getattr(entry, name)
        return (
            str(tuple(value))
            if isinstance(value, list)
            else value
            if isinstance(value, str)
            else number(value)
        )

    return cell


def _measure(name: str) -> Callable[[CallRow, TensorRow | None], Value]:
    def cell(row: CallRow, t: TensorRow | None) -> Value:
        return None if t is None or t.distance is None else number(getattr(t.distance, name))

    return cell


def _name(side: int) -> Callable[[CallRow, TensorRow | None], Value]:
    def cell(row: CallRow, t: TensorRow | None) -> Value:
        call = (row.pair.left, row.pair.right)[side]
        return None if call is None else call.name

    return cell


def _stack(side: int) -> Callable[[CallRow, TensorRow | None], Value]:
    """Innermost first: it is what one looks for. A call that passes shows that frame only: 300,000 lines with whole
    stacks were 400 MB."""

    def cell(row: CallRow, t: TensorRow | None) -> Value:
        frames = row.stacks[side]
        if not frames:
            return None
        return frames[-1] if row.judged.verdict == "pass" else "\n".join(reversed(frames))

    return cell


def _judged(row: CallRow, t: TensorRow | None) -> Judged:
    return row.judged if t is None else t.judged


def status(row: CallRow) -> str:
    """How the call stands in the alignment."""
    if row.pair.left is None or row.pair.right is None:
        return "only in run 1" if row.pair.left is None else "only in run 0"
    return "moved" if row.pair.moved else "paired"


def _column(name: str, cell: Callable[[CallRow, TensorRow | None], Value], width: int = 30) -> Column:
    return Column(name, cell, width, number=False)


COLUMNS: tuple[Column, ...] = (
    Column("index", lambda row, t: row.index, 8),
    Column("rank", lambda row, t: row.rank, 6),
    _column("verdict", lambda row, t: _judged(row, t).verdict, 9),
    _column("rule", lambda row, t: _judged(row, t).rule or None, 44),
    _column("level", lambda row, t: row.call.level, 6),
    _column("run 0", _name(0), 36),
    _column("run 1", _name(1), 36),
    _column("alignment", lambda row, t: status(row), 12),
    _column("module", lambda row, t: row.call.module, 24),
    _column("role", lambda row, t: None if t is None else t.role, 7),
    _column("place", lambda row, t: None if t is None else t.place, 9),
    _column("dtype 0", _side("dtype", 0), 9),
    _column("dtype 1", _side("dtype", 1), 9),
    _column("shape 0", _side("shape", 0), 18),
    _column("shape 1", _side("shape", 1), 18),
    Column("error", lambda row, t: number(_judged(row, t).error)),
    Column("inherited", lambda row, t: None if t is None else number(t.inherited)),
    Column("bound", lambda row, t: number(_judged(row, t).bound)),
    Column("max abs", _measure("max_abs")),
    Column("max rel", _measure("max_rel")),
    Column("diff1", _measure("diff1")),
    Column("diff2", _measure("diff2")),
    Column("cosine", _measure("cosine")),
    Column("within 1/1000", _measure("within_1_1000"), 12),
    Column("within 5/1000", _measure("within_5_1000"), 12),
    Column("max ULP", _measure("max_ulp")),
    Column("mean ULP", _measure("mean_ulp")),
    Column("NaN/Inf disagree", _measure("nonfinite"), 14),
    Column("NaN 0", _side("nan", 0), 7),
    Column("NaN 1", _side("nan", 1), 7),
    Column("Inf 0", _side("inf", 0), 7),
    Column("Inf 1", _side("inf", 1), 7),
    Column("min 0", _side("min", 0)),
    Column("min 1", _side("min", 1)),
    Column("max 0", _side("max", 0)),
    Column("max 1", _side("max", 1)),
    Column("mean 0", _side("mean", 0)),
    Column("mean 1", _side("mean", 1)),
    Column("norm 0", _side("norm", 0)),
    Column("norm 1", _side("norm", 1)),
    _column("device 0", _side("device", 0), 9),
    _column("device 1", _side("device", 1), 9),
    _column("stack 0", _stack(0), 60),
    _column("stack 1", _stack(1), 60),
)


def cells(row: CallRow, t: TensorRow | None, columns: tuple[Column, ...] = COLUMNS) -> list[Value]:
    """A line of a report."""
    return [column.cell(row, t) for column in columns]
