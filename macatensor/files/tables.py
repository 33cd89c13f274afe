"""Tables that spreadsheets open: CSV files and cells of workbooks.

A text that a spreadsheet would take for a formula runs when somebody opens the file, and texts of records and sources
are other people's. Numbers stay numbers.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.worksheet._write_only import WriteOnlyWorksheet

_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # Excel takes the wide ones too
_NUMBERS = frozenset({"-inf", "-nan"})  # text because no spreadsheet has them as numbers
_CHARACTERS = 32_767  # that Excel takes in a cell


def is_formula(value: object) -> TypeGuard[str]:
    """Would a spreadsheet compute this text?"""
    return isinstance(value, str) and value.startswith(_BEGINNINGS) and value not in _NUMBERS


def _csv_cell(value: object) -> object:
    """An apostrophe makes it a text to every spreadsheet."""
    return f"'{value}" if is_formula(value) else value


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Writes a new CSV file. Raises FileExistsError if it is there."""
    with path.open("x", newline="", encoding="utf-8", errors="replace") as file:
        table = csv.writer(file)
        table.writerow(header)
        table.writerows([_csv_cell(v) for v in row] for row in rows)


def needs_cell(value: object) -> bool:
    """Is it a value that a sheet would not take as it is? A plain one is three times faster than a cell."""
    return isinstance(value, str) and (is_formula(value) or len(value) > 200 or not value.isprintable())


def excel_cell(sheet: WriteOnlyWorksheet, value: object) -> WriteOnlyCell:
    """A cell of a workbook: a text is one whatever it begins with, also after it was edited, without the characters
    that no workbook can hold, and as long as Excel reads."""
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    if not isinstance(value, str):
        return WriteOnlyCell(sheet, value=value)
    text = ILLEGAL_CHARACTERS_RE.sub("?", value).encode(errors="replace").decode()
    cell = WriteOnlyCell(sheet, value=text[:_CHARACTERS])
    cell.data_type = "s"  # never a formula
    if is_formula(value):
        cell.quotePrefix = True
    return cell
