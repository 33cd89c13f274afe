"""Runs every model of the catalogue, each in a process of its own, and writes the table: ``python table.py [NAME ...]``.

    python -m venv models && models/bin/pip install torch==2.13.0 -c tests/other_models/constraints.txt \\
        transformers timm diffusers torch_geometric . && models/bin/python tests/other_models/table.py

With names (shell patterns) it prints what these give and writes nothing. Exit status 1 where a stage fails.
"""

from __future__ import annotations

import fnmatch
import importlib.metadata
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from catalogue import names
from rich.progress import Progress

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "models.md"
PACKAGES = ("torch", "transformers", "timm", "diffusers", "torch_geometric")
LIMIT = 600  # seconds for one model


def run(model: tuple[str, str]) -> dict[str, Any]:
    """The model's report; a process that crashed, or took too long, is a failure of its own."""
    found: dict[str, Any] = {"group": model[0], "name": model[1], "stages": {}}
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / "stages.py"), *model],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        )
    except subprocess.TimeoutExpired:
        return {**found, "stages": {"process": f"fail: no end within {LIMIT} s"}}
    try:
        said: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {**found, "stages": {"process": f"fail: ended with status {done.returncode}"}}
    return said


def failures(report: dict[str, Any]) -> list[str]:
    """Its stages that fail, and operators that the host had to compute."""
    found = [f"{stage}: {text[6:]}" for stage, text in report["stages"].items() if text.startswith("fail")]
    if report.get("fallbacks"):
        found.append(f"{report['fallbacks']} operators on the host")
    return found


def page(reports: list[dict[str, Any]]) -> str:
    """The page of the documentation."""
    versions = ", ".join(f"{p} {importlib.metadata.version(p).partition('+')[0]}" for p in PACKAGES)
    lines = [
        "# Other makers' models", "",
        "Tiny models of four packages, seeded and without downloads, on the CPU and on maca: forward, backward, two steps of",
        "SGD, bfloat16 autocast, a state saved and loaded, and text generated where a model does that. A stage passes where",
        "maca gives what the CPU gives. `tests/other_models/table.py` makes this page", f"({versions}).", "",
        "| package | models | stages that the CPU runs | pass | on the host |", "|---|---|---|---|---|",
    ]  # fmt: skip
    total = [0, 0, 0, 0]
    for group in dict.fromkeys(r["group"] for r in reports):
        mine = [r for r in reports if r["group"] == group and r["stages"]]
        asked = [t for r in mine for t in r["stages"].values() if not t.startswith("cpu")]
        row = [
            len(mine),
            len(asked),
            sum(t == "pass" for t in asked),
            sum(r.get("fallbacks", 0) for r in mine),
        ]
        total = [a + b for a, b in zip(total, row)]
        lines.append(f"| {group} | {row[0]} | {row[1]} | {row[2]} | {row[3]} |")
    lines.append(
        f"| all | {total[0]} | {total[1]} | {total[2]} ({total[2] / max(total[1], 1):.1%}) | {total[3]} |"
    )
    failing = [(r, text) for r in reports for text in failures(r)]
    if failing:
        lines += ["", "What fails:", "", *(f"- {r['group']}: `{r['name']}`, {text}" for r, text in failing)]
    for group in dict.fromkeys(r["group"] for r in reports):
        tried = " ".join(r["name"] for r in reports if r["group"] == group and r["stages"])
        lines += ["", f"**{group}**: {tried}"]
    return "\n".join(lines) + "\n"


def main(patterns: list[str]) -> int:
    models = [m for m in names() if not patterns or any(fnmatch.fnmatchcase(m[1], p) for p in patterns)]
    reports = []
    with Progress() as bar, ThreadPoolExecutor(os.cpu_count()) as pool:
        for report in bar.track(pool.map(run, models), total=len(models), description="models"):
            reports.append(report)
            for text in failures(report) or ([report["error"]] if report.get("error") else []):
                bar.console.print(
                    f"{report['group']}: {report['name']}: {text}", markup=False, highlight=False
                )
    if not patterns:
        PAGE.write_text(page(reports))
    return int(any(failures(r) for r in reports))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
