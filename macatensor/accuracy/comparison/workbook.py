"""The report as an Excel workbook: a summary, the calls, and their tensors."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from macatensor.accuracy.comparison.columns import COLUMNS, Column, Value, cells
from macatensor.accuracy.comparison.compare import Comparison
from macatensor.accuracy.comparison.rows import CallRow, TensorRow
from macatensor.accuracy.comparison.verdict import GROWTH_ERROR, GROWTH_WARNING, TOLERANCES
from macatensor.files.tables import excel_cell, needs_cell

if TYPE_CHECKING:
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.styles import Font, PatternFill
    from openpyxl.worksheet._write_only import WriteOnlyWorksheet

# a cell costs 10 us: 9 s for a sheet of 20,000 lines and 44 columns
LINES = 20_000
_COLOURS = {"pass": "D1FAE5", "warning": "FEF3C7", "error": "FECACA"}
_CALL_COLUMNS = tuple(
    c for c in COLUMNS
    if c.name in ("index", "rank", "verdict", "rule", "level", "run 0", "run 1", "alignment", "module", "error", "bound")
)  # fmt: skip


def write(comparison: Comparison, path: Path) -> None:
    """Writes the workbook. Raises ModuleNotFoundError without openpyxl, FileExistsError if the file is there."""
    from openpyxl import Workbook

    if path.exists():
        raise FileExistsError(f"accuracy: {path} exists; it is not overwritten")
    book = Workbook(write_only=True)
    about = book.create_sheet("summary")
    calls: list[tuple[CallRow, TensorRow | None]] = [(row, None) for row in comparison.calls]
    tensors: list[tuple[CallRow, TensorRow | None]] = [
        (row, t) for row in comparison.calls for t in row.tensors
    ]
    shown = {"calls": _chosen(calls), "tensors": _chosen(tensors)}
    _summary(
        about,
        comparison,
        {"calls": len(calls), "tensors": len(tensors)},
        {k: len(v) for k, v in shown.items()},
    )
    _sheet(book.create_sheet("calls"), _CALL_COLUMNS, shown["calls"])
    _sheet(book.create_sheet("tensors"), COLUMNS, shown["tensors"])
    with path.open("xb") as file:
        book.save(file)


def _chosen(
    lines: list[tuple[CallRow, TensorRow | None]],
) -> list[tuple[CallRow, TensorRow | None]]:
    """All lines, or as many as a sheet is given: errors before warnings, then outputs of API calls, then the rest."""
    if len(lines) <= LINES:
        return lines

    def rank(line: tuple[CallRow, TensorRow | None]) -> tuple[int, bool, bool]:
        row, t = line
        judged = row.judged if t is None else t.judged
        return (
            {"error": 0, "warning": 1, "pass": 2}[judged.verdict],
            row.call.level != "api",
            t is not None and t.role != "output",
        )

    kept = sorted(range(len(lines)), key=lambda i: (rank(lines[i]), i))[:LINES]
    return [lines[i] for i in sorted(kept)]


def _summary(
    sheet: WriteOnlyWorksheet, comparison: Comparison, all_lines: dict[str, int], shown: dict[str, int]
) -> None:
    from macatensor.accuracy.comparison.sentences import describe, unpaired

    sheet.column_dimensions["A"].width = 28
    sheet.column_dimensions["B"].width = 100
    first = comparison.first()
    rows: list[tuple[Value, ...]] = [
        ("verdict", comparison.verdict),
        ("run 0 (reference)", str(comparison.runs[0].folder)),
        ("run 1", str(comparison.runs[1].folder)),
        ("first divergence", "none" if first is None else describe(first)),
    ]
    for level in ("api", "aten"):
        for name, count in sorted(comparison.counts(level).items()):
            rows.append((f"{level} calls, {name}", count))
    rows += [("note", note) for note in comparison.notes]
    for name, count in all_lines.items():
        if shown[name] < count:
            text = f"{shown[name]} of {count} lines, errors and warnings first; the CSV file has all"
            rows.append((f"sheet {name}", text))
    rows += [(where, f"{count} x {op}") for where, op, count in unpaired(comparison)]
    rows.append((None, None))
    rows.append(
        (
            "growth",
            f"warning beyond {GROWTH_WARNING:g}, error beyond {GROWTH_ERROR:g} times the inputs' error",
        )
    )
    rows += [(f"local bound, {dtype}", f"{t.local:g}: {t.why}") for dtype, t in TOLERANCES.items()]
    for row in rows:
        sheet.append([_cell(sheet, value) for value in row])


def _cell(
    sheet: WriteOnlyWorksheet, value: Value, fill: PatternFill | None = None, font: Font | None = None
) -> WriteOnlyCell | Value:
    if not isinstance(value, str) and fill is None and font is None:
        return value
    cell = excel_cell(sheet, value)
    if fill is not None:
        cell.fill = fill
    if font is not None:
        cell.font = font
    return cell


def _sheet(
    sheet: WriteOnlyWorksheet, columns: tuple[Column, ...], lines: Iterable[tuple[CallRow, TensorRow | None]]
) -> None:
    from openpyxl.styles import Font, PatternFill
    from openpyxl.utils import get_column_letter

    fills = {name: PatternFill("solid", start_color=colour) for name, colour in _COLOURS.items()}
    lines = list(lines)
    for i, column in enumerate(columns, 1):
        sheet.column_dimensions[get_column_letter(i)].width = column.width
    sheet.freeze_panes = "A2"
    sheet.auto_filter.ref = f"A1:{get_column_letter(len(columns))}{len(lines) + 1}"
    bold = Font(bold=True)
    sheet.append([_cell(sheet, c.name, font=bold) for c in columns])
    at = [c.name for c in columns].index("verdict")
    for row, t in lines:
        values: list[WriteOnlyCell | Value] = [
            _cell(sheet, v) if needs_cell(v) else v for v in cells(row, t, columns)
        ]
        verdict = str(values[at])
        values[at] = _cell(sheet, verdict, fills[verdict])
        sheet.append(values)
