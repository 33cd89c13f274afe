"""Runs what proves the project in parts and ends with a table of each part's result, time and budget.

    python3 .ci/parts.py ci          # what continuous integration runs: at most 75 minutes on two cores
    python3 .ci/parts.py long        # what takes longer; a part that passed at this commit on this machine is not run again
    python3 .ci/parts.py long demo   # the parts whose names contain a word; --again runs them in any case; --list

The standard library alone: the first part makes the environment that the others need. The last result of each long
part stays in ``tests/long_results.json``, with commit and machine. A budget is what a part takes on an idle machine with
room to spare: one that was exceeded is shown and fails nothing, since neighbours may have been busy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "tests" / "long_results.json"
LIMIT_MINUTES = 60  # a part that has not finished by then is ended


@dataclass(frozen=True)
class Part:
    """A command line of the shell, run in the root of the checkout with ``environment`` added."""

    name: str
    command: str
    budget: float  # minutes
    environment: dict[str, str] = field(default_factory=dict)


def level(name: str, command: str, budget: float, simd: str) -> Part:
    return Part(f"{name} at {simd}", command, budget, {"MACA_SIMD": simd})


CI = (
    Part("build", "make build", 12),
    Part("check", "make check", 3),
    Part("test", "make test", 30),
    Part("sanitizers", "make sanitize SHORT=1", 5),
    Part("levels", "make levels", 5),
    level("levels", "make levels", 5, "avx2"),
    level("levels", "make levels", 6, "baseline"),
    Part("demo", "make demo", 2),
    level("demo", "make demo", 2, "avx2"),
    level("demo", "make demo", 3, "baseline"),
    Part("docs", "make docs", 2),
)

PYTEST = ".venv/bin/python -m pytest"
LONG = (
    Part("build", "make build", 8),
    Part("metadata", f"{PYTEST} -n0 --timeout=3600 tests/test_metadata.py", 40, {"HYPOTHESIS_PROFILE": "long"}),
    Part("hypothesis", f"{PYTEST} -n2 --timeout=3600 tests/test_parity_hypothesis.py", 30, {"HYPOTHESIS_PROFILE": "wide"}),
    Part("products", f"{PYTEST} -n2 --timeout=3600 tests/test_products.py", 25, {"HYPOTHESIS_PROFILE": "long"}),
    *(
        Part(
            f"products at {simd}",
            f"{PYTEST} -n2 --timeout=3600 tests/test_products.py",
            25,
            {"HYPOTHESIS_PROFILE": "long", "MACA_SIMD": simd},
        )
        for simd in ("avx512", "avx2", "baseline")
    ),
    Part("faults", f"{PYTEST} -n0 --timeout=3600 tests/test_accuracy_faults.py", 15, {"HYPOTHESIS_PROFILE": "long"}),
    Part("failing calls", f"{PYTEST} -n2 --timeout=3600 tests/test_failing_calls.py", 20, {"HYPOTHESIS_PROFILE": "long"}),
    Part("interruptions", f"{PYTEST} -n2 --timeout=3600 tests/test_interruptions.py", 30, {"HYPOTHESIS_PROFILE": "long"}),
    Part("random calls", ".venv/bin/python tests/fuzz/run.py --calls 1000000 --minutes 50", 52),  # each time further
    Part("soak", ".venv/bin/python tests/soak/run.py --json build/soak.json", 25),
    Part("random programs", ".venv/bin/python tests/fuzz/sequences.py --programs 3000", 15),
    Part("conformance", f"{PYTEST} -n0 --timeout=3600 tests/test_conformance.py", 15, {"HYPOTHESIS_PROFILE": "long"}),
    Part("conformance of the host library", f"{PYTEST} -n0 --timeout=7200 --pyargs macatensor.conformance", 25),
    Part(
        "conformance of the interposer",
        f".venv/bin/python tests/interposer_library.py {PYTEST} -n0 --timeout=7200 --pyargs macatensor.conformance",
        25,
    ),
    level("test", "make test", 40, "baseline"),
    level("test", "make test", 25, "avx2"),
    level("test", "make test", 20, "avx512"),
    level("demo", "make demo", 8, "baseline"),
    level("demo", "make demo", 5, "avx2"),
    level("demo", "make demo", 5, "avx512"),
    Part("ranks", PYTEST + " -n0 --timeout=900 tests/test_distributed_{mixtures,accuracy}.py", 8, {"HYPOTHESIS_PROFILE": "long"}),
    Part("launchers", ".venv/bin/python tests/other_launchers/run.py", 10),
    Part("compiled models", ".venv/bin/python tests/other_models/compiled.py", 15),
    Part(
        "packages",
        f".venv/bin/pip install --quiet --no-compile -r tests/packages/requirements.txt && {PYTEST} -n0 tests/packages/{{programs,exports}}.py",
        15,
    ),
    Part("release", "make release", 45),
    Part("replay on other processors", "make replay", 35),
    Part("examination", ".venv/bin/macatensor opinfo", 30),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What running a part gave."""

    part: str
    result: str  # "passed", "failed", or why it was not run
    minutes: float
    budget: float


def commit() -> str:
    """The checked-out commit, with ``+`` where the tree differs from it."""
    said = [
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()
        for words in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", ".", f":!{RESULTS.relative_to(ROOT)}"])
    ]  # fmt: skip
    return said[0] + ("+" if said[1] else "")


def of_processor(fact: str) -> str:
    """What the kernel says of the first processor; empty where it says nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(fact)), "")


def best_of(flags: str) -> str:
    """The last extension that kernels are chosen by."""
    has = flags.split()
    return next((f for f in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if f in has), platform.machine())


def machine() -> str:
    """The processor's name, what tells apart those that virtual machines call alike, and number of cores."""
    name = of_processor("model name") or platform.machine()
    return f"{name} with {best_of(of_processor('flags'))}, {os.cpu_count()} cores"


def is_own_level(part: Part) -> bool:
    """Whether the part asks for the best that this processor has, at which the same tests run anyway."""
    return part.environment.get("MACA_SIMD") == best_of(of_processor("flags"))


def run(part: Part) -> Outcome:
    """Runs a part, its output going where ours goes."""
    print(f"\n=== {part.name}: {part.command}", flush=True)
    start = time.monotonic()
    process = subprocess.Popen(
        ["bash", "-c", part.command],
        cwd=ROOT,
        env={**os.environ, "ISAS": "all", **part.environment},
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # so that what it started can be ended with it
    )
    try:
        result = "failed" if process.wait(LIMIT_MINUTES * 60) else "passed"
    except subprocess.TimeoutExpired:
        result = f"ended after {LIMIT_MINUTES} minutes"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Outcome(part.name, result, (time.monotonic() - start) / 60, part.budget)


def table(outcomes: list[Outcome]) -> str:
    """Part, result, minutes and budget in columns, with their sums."""
    rows = [("part", "result", "minutes", "budget", "")]
    rows += [
        (o.part, o.result, f"{o.minutes:.1f}", f"{o.budget:g}", "over" if o.minutes > o.budget else "")
        for o in outcomes
    ]
    rows += [
        ("all", "", f"{sum(o.minutes for o in outcomes):.1f}", f"{sum(o.budget for o in outcomes):g}", "")
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join(
        "  ".join(cell.rjust(w) if 1 < i < 4 else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths))).rstrip()
        for row in rows
    )  # fmt: skip


def in_turn(parts: list[Part], kept: dict[str, dict[str, object]] | None, again: bool) -> list[Outcome]:
    """Every part's outcome; nothing runs without a build. ``kept`` holds last results, of parts that have them kept."""
    outcomes: list[Outcome] = []
    here: dict[str, object] = {"commit": commit(), "machine": machine()}
    for part in parts:
        last = (kept or {}).get(part.name, {})
        if last.get("result") == "passed" and here.items() <= last.items() and not again:
            outcomes.append(Outcome(part.name, f"passed before ({last['when']})", 0.0, part.budget))
        elif outcomes and outcomes[0].part == "build" and outcomes[0].result != "passed":
            outcomes.append(Outcome(part.name, "not run", 0.0, part.budget))
        else:
            outcomes.append(run(part))
            if kept is not None and part.name != "build":
                kept[part.name] = {
                    "result": outcomes[-1].result,
                    "minutes": round(outcomes[-1].minutes, 1),
                    "when": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M"),
                    **here,
                }
                RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=["ci", "long"])
    parser.add_argument("words", nargs="*", help="parts whose names contain one of them")
    parser.add_argument("--again", action="store_true", help="run parts that passed here before, too")
    parser.add_argument("--list", action="store_true", help="show the parts and their last results")
    arguments = parser.parse_args()
    long = arguments.suite == "long"
    parts = [
        part
        for part in (LONG if long else (p for p in CI if not is_own_level(p)))
        if not arguments.words or part.name == "build" or any(word in part.name for word in arguments.words)
    ]
    kept: dict[str, dict[str, object]] | None = None
    if long:
        kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if arguments.list:
        for part in parts:
            last = (kept or {}).get(part.name)
            said = f"{last['result']}, {last['when']}, {last['commit']}, {last['machine']}" if last else ""
            print(f"{part.name:20}  {part.budget:4g} minutes  {said}")
        return 0
    outcomes = in_turn(parts, kept, arguments.again)
    print(f"\n{table(outcomes)}")
    return 0 if all(o.result.startswith("passed") for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
