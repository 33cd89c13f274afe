"""``macatensor ops``: the op table as a support page."""

from __future__ import annotations

import fnmatch
import importlib
import os
import sys
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from .console import Json, emit_json, err, out, table
from .kernels import kernel_facts, kernel_line, other_kernels

if TYPE_CHECKING:
    from op_table import Bound, Row

_STYLES = {"kernel": "green", "view": "cyan", "composite": "blue", "dynamic": "magenta", "on_cpu": "yellow"}
_WIDE = 120  # columns from which on a table is readable
_ORDER = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex32 complex64 "
    "complex128"
).split()


def ops(
    pattern: Annotated[
        str | None,
        typer.Argument(
            help="Part of an operator's name, or a shell pattern such as 'add*'.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
    implementation: Annotated[
        bool,
        typer.Option(
            "--implementation", help="The algorithms that the library chooses for sample calls instead."
        ),
    ] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Operands, scalars and attributes of each kernel instead.")
    ] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Import this first and show its kernels for maca, and the extensions that it loads, too.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show which operators the device has: kind, dtypes, kernel, error bound, reason."""
    from op_table import TABLE, families

    users = users_kernels(modules or [], pattern)
    joined = extensions_kernels(pattern)

    family_of = {row.name: family for family, rows in families.items() for row in rows}
    rows = [row for row in TABLE.values() if matches(row.name, pattern)]
    rows.sort(key=lambda row: (family_of.get(row.name, ""), row.name))
    if kernels:
        print_kernels([row for row in rows if row.kind.value == "kernel"], as_json, whole=pattern is None)
        return
    if implementation:
        print_implementations(rows, as_json)
        return
    if as_json:
        listed = [facts(row, family_of.get(row.name, "")) for row in rows]
        listed += [{"operator": name, "kind": "user", "kernel": kernel} for name, kernel in users.items()]
        listed += [{"operator": k, "kind": "extension", "kernel": k, "extension": n} for n, k in joined]
        emit_json(listed)
        return
    for name, kernel in users.items():
        out.print(Text.assemble((name, "bold"), "  ", ("user", "red"), f"  {kernel}, before any row"))
    for name, kernel in joined:
        line = Text.assemble(
            (kernel, "bold"), "  ", ("extension", "red"), f"  {name}, before the device library"
        )
        out.print(line)
    if (users or joined) and not rows:
        return
    if not rows:
        err.print(f"[red]No row's name matches[/] {pattern!r}; the table has {len(TABLE)} rows.")
        raise typer.Exit(1)
    counts = Counter(row.kind.value for row in rows)
    if out.width < _WIDE:
        for row in rows:
            print_lines(row)
    else:
        print_table(rows, family_of)
    out.print("  ".join(f"[{_STYLES[k]}]{k}[/] {n}" for k, n in counts.most_common()))


def users_kernels(modules: list[str], pattern: str | None) -> dict[str, str]:
    """The kernels that users registered for the device in this process, by operator, after ``modules`` are imported."""
    if modules:
        sys.path.insert(0, os.getcwd())
        import macatensor as macatensor

        for module in modules:
            importlib.import_module(module)
    registered = sys.modules.get("macatensor.dispatch.users_kernels")
    found = registered.registrations() if registered is not None else []
    return {name: origin for name, origin in found if matches(name.removeprefix("aten::"), pattern)}


def extensions_kernels(pattern: str | None) -> list[tuple[str, str]]:
    """The libraries that are joined to the device's in this process and their kernels, as they are asked."""
    extensions = sys.modules.get("macatensor.runtime.extensions")
    found = extensions.joined() if extensions is not None else []
    return [(one.name, kernel) for one in found for kernel in one.kernels if matches(kernel, pattern)]


def print_lines(row: Row) -> None:
    """A row where a table has no room: what it is in one line, its kernel, bound and reason below."""
    kind = row.kind.value
    head = Text.assemble((row.name, "bold"), "  ", (kind, _STYLES[kind]), "  ", short_dtypes(row.dtypes))
    out.print(head)
    bound = bound_text(row.bound) if kind in ("kernel", "dynamic") else ""
    parts = (row.kernel_name if kind == "kernel" else row.via, bound, row.why or row.bound.why)
    below = "; ".join(part for part in parts if part)
    if below:
        out.print(Padding(Text(below), (0, 0, 0, 4)))


def print_table(rows: list[Row], family_of: dict[str, str]) -> None:
    """A line for each row, families apart."""
    from op_table import TABLE

    page = table(f"Operators on maca: {len(rows)} of {len(TABLE)} rows", "operator", "kind", "dtypes", "kernel",
                 "bound", "reason")  # fmt: skip
    family = None
    for row in rows:
        if family_of.get(row.name, "") != family:
            family = family_of.get(row.name, "")
            page.add_section()
            page.add_row(Text(family, style="bold"))
        kind = row.kind.value
        page.add_row(
            f"  {row.name}",
            Text(kind, style=_STYLES[kind]),
            short_dtypes(row.dtypes),
            row.kernel_name if kind == "kernel" else Text(row.via, style="dim"),
            bound_text(row.bound) if kind in ("kernel", "dynamic") else "",
            row.why or row.bound.why,
        )
    out.print(page)


def print_kernels(rows: list[Row], as_json: bool, whole: bool) -> None:
    """What a device library is asked for; ``whole``: and which kernels are there besides."""
    found = [kernel_facts(row) for row in rows]
    if as_json:
        emit_json(found)
        return
    for kernel in found:
        out.print(kernel_line(kernel), markup=False, highlight=False, soft_wrap=True)
    if whole:
        out.print(f"of the runtime itself: {' '.join(other_kernels(rows))}", soft_wrap=True)


def print_implementations(rows: list[Row], as_json: bool) -> None:
    """What the library chooses for sample calls of the rows that launch kernels."""
    from macatensor.parity.implementations import choices

    found = [
        c for row in rows if row.kind.value in ("kernel", "dynamic") and not row.random for c in choices(row)
    ]
    if as_json:
        emit_json([asdict(choice) for choice in found])
        return
    page = table(
        "Implementations that the library chooses",
        "operator",
        "implementation",
        "calls",
        "as of",
        right=("calls",),
    )
    for choice in found:
        page.add_row(choice.row, Text(choice.implementation or "-"), str(choice.calls), Text(choice.example))
    out.print(page)


def matches(name: str, pattern: str | None) -> bool:
    """A pattern with wildcards matches the whole name or the operator; one without, any part."""
    if pattern is None:
        return True
    if any(c in pattern for c in "*?["):
        return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name.partition(".")[0], pattern)
    return pattern in name


def short_dtypes(dtypes: frozenset[str]) -> str:
    """Sets of dtypes by their usual names: ``all``, ``real``, ``floating``, ...; else the list."""
    from op_table import row

    groups = [
        ("all", row.ALL), ("numbers", row.NUMBERS), ("real + bool", row.REAL | row.BOOL), ("real", row.REAL),
        ("floating + complex", row.FLOATING | row.COMPLEX), ("floating", row.FLOATING),
        ("integers + bool", row.INTEGERS | row.BOOL), ("integers", row.INTEGERS), ("complex", row.COMPLEX),
    ]  # fmt: skip
    for name, group in groups:
        if dtypes == group:
            return name
    return " ".join(sorted(dtypes, key=lambda d: _ORDER.index(d) if d in _ORDER else 99))


def bound_text(bound: Bound) -> str:
    """``exact``, ``1 ulp``, ``2 eps per term``; dtypes with limits of their own in parentheses."""
    if bound.measure == "exact":
        return "exact"
    unit = "ulp" if bound.measure == "ulp" else "eps per term"
    base = bound.limit("float32")
    others = [f"{dtype} {limit:g}" for dtype, limit in bound.limits if dtype != "float32" and limit != base]
    return f"{base:g} {unit}" + (f" ({', '.join(others)})" if others else "") + bound.chain_text


def facts(row: Row, family: str) -> dict[str, object]:
    """A row as JSON."""
    return {
        "operator": row.name,
        "family": family,
        "kind": row.kind.value,
        "dtypes": sorted(row.dtypes, key=lambda d: _ORDER.index(d) if d in _ORDER else 99),
        "kernel": row.kernel_name if row.kind.value == "kernel" else None,
        "via": row.via or None,
        "bound": bound_text(row.bound) if row.kind.value in ("kernel", "dynamic") else None,
        "reason": row.why or row.bound.why,
    }
