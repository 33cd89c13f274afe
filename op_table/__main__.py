"""``python -m op_table``: prints coverage; ``--write`` writes docs/coverage.md, ``--check`` fails when it is out of date."""

from __future__ import annotations

import argparse
import sys

from op_table.coverage import PAGE, counts, page


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m op_table", description="Coverage of the op table.")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    group.add_argument(
        "--check", action="store_true", help=f"exit with status 1 when {PAGE.name} is out of date"
    )
    group.add_argument("--page", action="store_true", help="print the page")
    chosen = parser.parse_args()
    if chosen.page:
        print(page())
        return 0
    print(counts())
    if chosen.write:
        PAGE.write_text(page())
        print(f"wrote {PAGE}")
    elif not PAGE.exists() or PAGE.read_text() != page():
        print(f"{PAGE.name} is out of date: run `python -m op_table --write`", file=sys.stderr)
        return 1 if chosen.check else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
