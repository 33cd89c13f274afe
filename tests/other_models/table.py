"""Runs every model of the catalogue, each in a process of its own, and writes the table: ``python table.py [NAME ...]``.

    make .venv/.models && .venv/bin/python tests/other_models/table.py

With names (shell patterns) it prints what these give and writes no page. Each report is kept as soon as it is there, in
``build/other_models.jsonl``: a run that was interrupted goes on where it stopped, and a model of which something failed
runs again. ``--again`` runs all. Exit status 1 where a stage fails.
"""

from __future__ import annotations

import argparse
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
KEPT = HERE.parents[1] / "build" / "other_models.jsonl"
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


def runs(report: dict[str, Any]) -> bool:
    """Whether the CPU runs a stage of it."""
    return not all(text.startswith("cpu") for text in report["stages"].values())


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
        "maca gives what the CPU gives. Some networks enlarge rounding (batch normalization over two values, a ReLU at 0): there",
        "maca may be twice as far from the CPU as the CPU moves when weights and inputs move by one unit in the last place.",
        "Results that another seed changes on the CPU too need only be finite; these count as passed and stand in a column of",
        f"their own. `tests/other_models/table.py` makes this page ({versions}).", "",
        "| package | models | stages that the CPU runs | pass | of these random, finite | on the host |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    total = [0, 0, 0, 0, 0]
    for group in dict.fromkeys(r["group"] for r in reports):
        mine = [r for r in reports if r["group"] == group and runs(r)]
        asked = [t for r in mine for t in r["stages"].values() if not t.startswith("cpu")]
        row = [
            len(mine),
            len(asked),
            sum(t in ("pass", "finite") for t in asked),
            asked.count("finite"),
            sum(r.get("fallbacks", 0) for r in mine),
        ]
        total = [a + b for a, b in zip(total, row)]
        lines.append(f"| {group} | {row[0]} | {row[1]} | {row[2]} | {row[3]} | {row[4]} |")
    lines.append(
        f"| all | {total[0]} | {total[1]} | {total[2]} ({total[2] / max(total[1], 1):.1%}) | {total[3]} | {total[4]} |"
    )
    failing = [(r, text) for r in reports for text in failures(r)]
    if failing:
        lines += ["", "What fails:", "", *(f"- {r['group']}: `{r['name']}`, {text}" for r, text in failing)]
    for group in dict.fromkeys(r["group"] for r in reports):
        tried = " ".join(r["name"] for r in reports if r["group"] == group and runs(r))
        lines += ["", f"**{group}**: {tried}"]
    return "\n".join(lines) + "\n"


def kept() -> dict[tuple[str, str], dict[str, Any]]:
    """Reports of earlier runs by group and name, the last of each; nothing of those that failed."""
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    reports = {(r["group"], r["name"]): r for r in map(json.loads, lines)}
    return {model: r for model, r in reports.items() if not failures(r)}


def run_and_keep(model: tuple[str, str]) -> dict[str, Any]:
    report = run(model)
    with KEPT.open("a") as file:
        file.write(json.dumps(report) + "\n")
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument(
        "patterns", nargs="*", metavar="NAME", help="shell patterns of models; all without any"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="models at a time, each on one thread"
    )
    parser.add_argument("--again", action="store_true", help="run models of which a report is kept, too")
    asked = parser.parse_args()
    models = [
        m for m in names() if not asked.patterns or any(fnmatch.fnmatchcase(m[1], p) for p in asked.patterns)
    ]
    KEPT.parent.mkdir(exist_ok=True)
    if asked.again and not asked.patterns:
        KEPT.unlink(missing_ok=True)
    known = {} if asked.again else kept()
    reports = []
    with Progress() as bar, ThreadPoolExecutor(asked.jobs) as pool:
        found = pool.map(lambda model: known.get(model) or run_and_keep(model), models)
        for report in bar.track(found, total=len(models), description="models"):
            reports.append(report)
            for text in failures(report) or ([report["error"]] if report.get("error") else []):
                bar.console.print(
                    f"{report['group']}: {report['name']}: {text}", markup=False, highlight=False
                )
    if not asked.patterns:
        PAGE.write_text(page(reports))
    return int(any(failures(r) for r in reports))


if __name__ == "__main__":
    sys.exit(main())
