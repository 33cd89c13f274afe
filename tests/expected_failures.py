"""Rows that are known to miss something, each with a reason; a row that is mended fails the run until its line goes.

``parity_failures.txt`` has a line ``row: reason`` for each; the coverage page counts them.
"""

from __future__ import annotations

from pathlib import Path

REASONS = {
    line.partition(":")[0].strip(): line.partition(":")[2].strip()
    for line in (Path(__file__).parent / "parity_failures.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
}
