"""The lists that a migration leaves: changes as CSV, what needs a person as a workbook."""

from __future__ import annotations

from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Any

from macatensor.files.tables import excel_cell, write_csv
from macatensor.migrate.project import Migration
from macatensor.migrate.rules import Change, Finding

FOLDER = "migration"  # below the output
CHANGES, UNSUPPORTED = "changes.csv", "unsupported.xlsx"
_WIDTHS = (36, 8, 40, 56, 72)


def write(done: Migration) -> tuple[Path, Path]:
    """Writes both lists and returns where. Raises ModuleNotFoundError without openpyxl."""
    folder = done.output / FOLDER
    while folder.exists():  # the sources have a folder of that name themselves
        folder = folder.with_name(folder.name + "_lists")
    folder.mkdir()
    changes, unsupported = folder / CHANGES, folder / UNSUPPORTED
    write_csv(changes, [f.name for f in fields(Change)], map(astuple, done.changes))
    _workbook(done, unsupported)
    return changes, unsupported


def _workbook(done: Migration, path: Path) -> None:
    from openpyxl import Workbook
    from openpyxl.styles import Alignment, Font

    book = Workbook()
    sheet: Any = book.active
    sheet.title = "unsupported"
    sheet.append([f.name for f in fields(Finding)])
    rows = [astuple(f) for f in done.findings]
    rows += [
        (file, 0, "syntax", why, "mend the file and migrate again") for file, why in done.unparsed.items()
    ]
    for row in rows:
        sheet.append([excel_cell(sheet, value) for value in row])
    for row in sheet.iter_rows():
        for cell in row:
            cell.alignment = Alignment(wrap_text=True, vertical="top")
    for cell, width in zip(sheet[1], _WIDTHS):
        cell.font = Font(bold=True)
        sheet.column_dimensions[cell.column_letter].width = width
    sheet.freeze_panes = "A2"
    sheet.auto_filter.ref = sheet.dimensions
    book.save(path)


def facts(done: Migration, reports: tuple[Path, ...] = ()) -> dict[str, object]:
    """The migration as JSON-able values."""
    return {
        "source": str(done.source),
        "output": str(done.output),
        "files": done.files,
        "rewritten": done.rewritten,
        "changes": [asdict(c) for c in done.changes],
        "unsupported": [asdict(f) for f in done.findings],
        "unparsed": done.unparsed,
        "reports": [str(p) for p in reports],
    }
