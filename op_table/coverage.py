"""What the table covers: counts for a terminal, and the page docs/coverage.md, which is checked against the table."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from op_table import TABLE, Bound, Kind, Row, families
from op_table.row import ALL, BOOL, COMPLEX, FLOATING, HALVES, INTEGERS, NUMBERS, REAL

_ROOT = Path(__file__).parent.parent
PAGE = _ROOT / "docs" / "coverage.md"
EXAMINATION = _ROOT / "macatensor/examination/record.json"  # of `macatensor opinfo --write`
_KINDS = (Kind.KERNEL, Kind.VIEW, Kind.COMPOSITE, Kind.DYNAMIC, Kind.ON_CPU)
_GROUPS: tuple[tuple[str, frozenset[str]], ...] = (
    ("all", ALL),
    ("numbers", NUMBERS),
    ("real, bool", REAL | BOOL),
    ("real", REAL),
    ("floating, complex", FLOATING | COMPLEX),
    ("floating", FLOATING),
    ("integers, bool", INTEGERS | BOOL),
    ("integers", INTEGERS),
    ("halves", HALVES),
)
_ORDER = (
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
    "complex128",
)  # fmt: skip
_SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "complex64": "c64",
          "complex128": "c128"}  # fmt: skip


def dtypes_text(dtypes: frozenset[str]) -> str:
    """``"floating, complex"``; dtypes that make no group one by one."""
    for name, group in _GROUPS:
        if dtypes == group:
            return name
    for name, group in _GROUPS:
        if group < dtypes and len(dtypes - group) <= 2:
            return ", ".join([name, *[d for d in _ORDER if d in dtypes - group]])
        if dtypes < group and len(group - dtypes) == 1:
            return f"{name} but {next(iter(group - dtypes))}"
    return ", ".join([d for d in _ORDER if d in dtypes] + sorted(dtypes - set(_ORDER)))


def bound_text(bound: Bound) -> str:
    """``"ulp f32 1, f64 2"``."""
    if bound.measure == "exact":
        return "exact"
    numbers = ", ".join(f"{_SHORT[dtype]} {limit:g}" for dtype, limit in bound.limits)
    return f"{bound.measure} {numbers}{bound.chain_text}"


def counts() -> str:
    """Rows of each kind in each family, for a terminal."""
    lines = [f"{'family':14}" + "".join(f"{kind.value:>11}" for kind in _KINDS) + f"{'rows':>8}"]
    for family in sorted(families):
        count = Counter(row.kind for row in families[family])
        lines.append(
            f"{family:14}" + "".join(f"{count[k] or '':>11}" for k in _KINDS) + f"{len(families[family]):8}"
        )
    total = Counter(row.kind for row in TABLE.values())
    lines.append(f"{'all':14}" + "".join(f"{total[k]:>11}" for k in _KINDS) + f"{len(TABLE):8}")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _way(row: Row) -> str:
    if row.kind is Kind.KERNEL:
        return row.kernel_name
    return row.via if row.kind in (Kind.COMPOSITE, Kind.DYNAMIC) else ""


def expected_failures() -> list[tuple[str, str]]:
    """``tests/parity_failures.txt``: rows known to miss something, with the reason; tests fail when one is mended."""
    path = _ROOT / "tests" / "parity_failures.txt"
    if not path.exists():
        return []
    lines = [line.strip() for line in path.read_text().splitlines()]
    return [
        (a.strip(), b.strip()) for a, _, b in (x.partition(":") for x in lines if x and not x.startswith("#"))
    ]


_QUESTIONS = (
    "gradient", "second_order", "noncontiguous", "channels_last", "strides", "out", "inplace", "threads", "errors",
)  # fmt: skip
_MARKS = {"pass": "✓", "fail": "✗", "crash": "✗", "hang": "✗"}


def examination() -> list[str]:
    """PyTorch's operator database: rates against their bars, then a line for each entry. Empty without a record."""
    if not EXAMINATION.exists():
        return []
    record = json.loads(EXAMINATION.read_text())
    lines = [
        "## PyTorch's operator database",
        "",
        "`macatensor opinfo --write` asks every entry of PyTorch's OpInfo database on the device and on the CPU and "
        "writes this part. Shares count every task that asked something; an expected failure counts against.",
        "",
        "| question | asked | pass | share | bar |",
        "|---|---:|---:|---:|---:|",
    ]
    for rate in record["rates"]:
        share = rate["passed"] / rate["asked"] if rate["asked"] else 1.0
        bar = f"{rate['bar']:.0%}" if rate["bar"] else ""
        lines.append(f"| {rate['name']} | {rate['asked']} | {rate['passed']} | {share:.2%} | {bar} |")
    lines += [
        "",
        "*calls*: in the entry's typical dtype, by kind of row (k kernel, v view, c composite, d dynamic, h on the host). "
        "*ULP*: the largest distance from PyTorch's CPU result of that dtype. *layouts*: strided, transposed, offset, "
        "expanded; channels_last.",
        "",
        "| entry | dtypes | calls | ULP | backward | 2nd | layouts | NHWC | strides | out= | in place | threads | errors | not a pass |",
        "|---|---|---|---:|" + "---|" * 10,
    ]
    short = {"kernel": "k", "view": "v", "composite": "c", "dynamic": "d"}
    for name, entry in record["entries"].items():
        calls = [f"{n}{short[kind]}" for kind, n in sorted(entry["kinds"].items()) if kind in short]
        calls += [f"h: {', '.join(entry['on_cpu'])}"] if entry["on_cpu"] else []
        dtypes = dtypes_text(frozenset(entry["dtypes"]))
        reasons = ([f"fails in {', '.join(entry['failing'])}"] if entry["failing"] else []) + entry["reasons"]
        cells = [f"`{name}`", dtypes, " ".join(calls), f"{entry['max_ulp']:g}"]
        cells += [_MARKS.get(entry["answers"].get(q, ""), "") for q in _QUESTIONS]
        lines.append("| " + " | ".join(_cell(c) for c in [*cells, "; ".join(reasons)]) + " |")
    return [*lines, ""]


def page() -> str:
    """The page: the examination's record, counts, then a table for each family."""
    total = Counter(row.kind for row in TABLE.values())
    lines = [
        "# Operators",
        "",
        "Generated by `python -m op_table --write`; `--check` and the tests compare it with the table.",
        "",
        f"{len(TABLE)} rows. An operator's in-place and `out=` forms come from the same row. Operators without a row are "
        "taken apart by PyTorch, or run on the host, which is counted, warned of, and refusable.",
        "",
        "| kind | rows | meaning |",
        "|---|---:|---|",
        f"| kernel | {total[Kind.KERNEL]} | a kernel of the device library |",
        f"| view | {total[Kind.VIEW]} | metadata only |",
        f"| composite | {total[Kind.COMPOSITE]} | put together from other rows |",
        f"| dynamic | {total[Kind.DYNAMIC]} | the result's size depends on data |",
        f"| on_cpu | {total[Kind.ON_CPU]} | computed by PyTorch on the host |",
        "",
        "Bounds are against a float64 reference from the same inputs: *ulp* in units in the last place of the result, "
        "*per_term* the factor c of c · eps · Σ|terms|, *exact* the same bits. *chains of n*: or what a sum of the same terms "
        "rounds that is added up in the dtype in chains of n terms, six standard deviations and twice what all chains err "
        "alike (`macatensor/parity/chains.py`); *one chain*: in one.",
        "",
    ]
    lines += examination()
    failures = expected_failures()
    if failures:
        lines += [f"{len(failures)} expected failures of the parity tests:", ""]
        lines += [f"- `{name}`: {reason}" for name, reason in failures] + [""]
    for family in sorted(families):
        rows = sorted(families[family], key=lambda row: row.name)
        if not rows:
            continue
        lines += [
            f"## {family}",
            "",
            "| operator | kind | dtypes | kernel or way | bound | reason |",
            "|---|---|---|---|---|---|",
        ]
        for row in rows:
            stated = row.kind in (Kind.KERNEL, Kind.DYNAMIC)
            bound = (
                "the law"
                if row.random and row.kind is Kind.KERNEL
                else bound_text(row.bound)
                if stated
                else ""
            )
            cells = (
                f"`{row.name}`",
                row.kind.value,
                dtypes_text(row.dtypes),
                _way(row),
                bound,
                row.why or row.bound.why,
            )
            lines.append("| " + " | ".join(_cell(c) for c in cells) + " |")
        lines.append("")
    return "\n".join(lines)
