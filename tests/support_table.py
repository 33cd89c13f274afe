"""What works and what is refused, from the markers of the tests: ``python tests/support_table.py --write``.

Markers are read from the sources, without importing them; their arguments are literal strings in the notation of
``supported_names.py``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from supported_names import AREAS, expand

TESTS = Path(__file__).parent
NAMES_PAGE = TESTS.parent / "docs" / "names.md"
BEGIN, END = "<!-- support: from tests/support_table.py -->", "<!-- support ends -->"


class Claim(NamedTuple):
    """One name that one test proves."""

    name: str
    test: str  # "test_stream.py::test_synchronize", or the file for a marker of all its tests
    reason: str  # why it is refused; "" = it works


def _claims(mark: ast.expr, test: str) -> Iterator[Claim]:
    if not isinstance(mark, ast.Call) or not isinstance(mark.func, ast.Attribute):
        return
    if ast.unparse(mark.func) not in ("pytest.mark.supports", "pytest.mark.refuses"):
        return
    reason = "".join(ast.literal_eval(k.value) for k in mark.keywords if k.arg == "reason")
    if bool(reason) != (mark.func.attr == "refuses"):
        raise ValueError(f"{test}: supports() has no reason, refuses() needs one")
    for name in expand([ast.literal_eval(a) for a in mark.args]):
        yield Claim(name, test, reason)


def claims() -> list[Claim]:
    """Of all test files, in order."""
    found: list[Claim] = []
    for path in sorted(TESTS.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                for mark in node.decorator_list:
                    found += _claims(mark, f"{path.name}::{node.name}")
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                marks = node.value.elts if isinstance(node.value, ast.List) else [node.value]
                for mark in marks:
                    found += _claims(mark, path.name)
    return found


def _short(names: list[str]) -> str:
    """Names of one prefix together: ``torch.maca``: ``init``, ``seed``."""
    by_prefix: dict[str, list[str]] = {}
    for name in names:
        prefix = next(
            (p for lines in AREAS.values() for p in (line.partition(": ")[0] for line in lines if ": " in line)
             if name.startswith(f"{p}.") and name in expand([x for x in lines if x.startswith(f"{p}: ")])),
            "",
        )  # fmt: skip
        by_prefix.setdefault(prefix, []).append(name.removeprefix(f"{prefix}.") if prefix else name)
    parts = [
        (f"`{prefix}`: " if prefix else "") + ", ".join(f"`{n}`" for n in short)
        for prefix, short in by_prefix.items()
    ]
    return "; ".join(parts)


def page() -> str:
    """The table, in Markdown."""
    proven = claims()
    reasons = {c.name: c.reason for c in proven if c.reason}
    rows, details, total = [], [], 0
    for area, lines in AREAS.items():
        names = expand(lines)
        refused = [n for n in names if n in reasons]
        works = [n for n in names if n not in reasons]
        tests = {c.test for c in proven if c.name in set(names)}
        total += len(names)
        why = "; ".join(f"`{n}`: {reasons[n]}" for n in refused)
        rows.append(f"| {area} | {len(works)} | {len(tests)} | {why} |")
        details.append(f"| {area} | {_short(works)} |")
    refused_share = 100 * sum(n in reasons for lines in AREAS.values() for n in expand(lines)) / total
    return "\n".join(
        [
            BEGIN,
            f"Of {total} names, {refused_share:.1f} % are refused; each name is proven by a test that is marked with it.",
            "",
            "| area | works | tests | refused |",
            "|---|---|---|---|",
            *rows,
            "",
            "<details><summary>All names that work</summary>",
            "",
            "| area | works |",
            "|---|---|",
            *details,
            "",
            "</details>",
            "",
            END,
        ]
    )


def written() -> str:
    """The table that the page of names has."""
    text = NAMES_PAGE.read_text()
    return text[text.index(BEGIN) : text.index(END) + len(END)]


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        print(page())
    else:
        NAMES_PAGE.write_text(NAMES_PAGE.read_text().replace(written(), page()))
