"""Findings of a comparison in a line each, as every report says them."""

from __future__ import annotations

from collections import Counter

from macatensor.accuracy.comparison.columns import status
from macatensor.accuracy.comparison.compare import Comparison
from macatensor.accuracy.comparison.rows import CallRow


def describe(row: CallRow) -> str:
    """A call in one line."""
    where = f" in {row.call.module}" if row.call.module else ""
    return f"{row.call.name}{where} (call {row.call.number}, rank {row.rank}): {row.judged.rule or row.judged.verdict}"


def unpaired(comparison: Comparison) -> list[tuple[str, str, int]]:
    """Operators that only one run has: in which, the operator, how many calls; most first. API calls only."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in comparison.calls:
        if row.call.level == "api" and status(row).startswith("only") and row.tensors:
            counts[status(row), row.call.op] += 1
    return [(where, op, n) for (where, op), n in counts.most_common()]
