"""Runs a short suite with an installed wheel on several versions of Python and PyTorch: ``make versions``.

    .venv/bin/python .ci/versions.py 3.11/2.13.0 3.11/2.14.1 3.12/2.13.0

Each pair gets a fresh environment, which is removed afterwards: most builds of PyTorch take gigabytes. It holds the wheel of
``dist/`` (``make wheel``), and the tests are copied to where the checkout's own packages are not found. What was run,
where and when stays in ``tests/versions.json``, and the table in docs/installing.md is made of it. Never part of CI.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import parts

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "tests" / "versions.json"
PAGE = ROOT / "docs" / "installing.md"
ROWS = 500  # of the op table, evenly
SUITE = [
    "launches", "launcher", "tapes",  # launches and plans
    "tensor", "convert", "device_copies",  # the tensor, transfers
    "autograd_ops", "double_backward",
    "device_functions", "stream", "graphs",  # torch.maca
    "autocast", "modules", "serialization", "optimizers",
    "compile_programs", "compile_steps",
    "distributed_groups",
    "autoload", "pytorch_facts",
]  # fmt: skip


def wheel() -> Path:
    found = sorted((ROOT / "dist").glob(f"macatensor-*_{platform.machine()}.whl"))
    if not found:
        raise SystemExit("dist/ holds no wheel: make release")
    return found[-1]


def rows(binaries: Path, folder: Path) -> list[str]:
    """Every so many of the op table's rows, as tests."""
    program = "from op_table import TABLE; print('\\n'.join(TABLE))"
    said = subprocess.run(
        [binaries / "python", "-c", program], cwd=folder, capture_output=True, text=True, check=True
    )
    names = said.stdout.split()
    return [f"tests/test_parity.py::test_row[{n}]" for n in names[:: max(1, len(names) // ROWS)][:ROWS]]


def run(python: str, torch: str) -> dict[str, object]:
    """Makes the environment, runs the suite in it and removes it."""
    folder = ROOT / "build" / "versions" / f"{python}-{torch}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "libmaca_ffi" / "include", folder / "libmaca_ffi" / "include")
    shutil.copy(ROOT / "pyproject.toml", folder)
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("MACA_", "PYTHON")) and k != "VIRTUAL_ENV"
    }
    try:
        subprocess.run([f"python{python}", "-m", "venv", folder / "venv"], env=environment, check=True)
        binaries = folder / "venv" / "bin"
        subprocess.run(
            [binaries / "pip", "install", "--quiet", "--upgrade", "pip"], env=environment, check=True
        )
        subprocess.run(
            [binaries / "pip", "install", "--quiet", "--no-compile", f"torch=={torch}", f"{wheel()}[test]"],
            env=environment,
            check=True,
        )
        files = [f"tests/test_{name}.py" for name in SUITE]
        done = subprocess.run(
            [binaries / "pytest", "-p", "no:cacheprovider", "-n0", "-rf", *files, *rows(binaries, folder)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        print(done.stdout[-3000:], done.stderr[-2000:], flush=True)
        program = "import platform, torch; print(platform.python_version(), torch.__version__)"
        said = subprocess.run(
            [binaries / "python", "-c", program], env=environment, capture_output=True, text=True, check=True
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    counts = {kind: int(n) for n, kind in re.findall(r"(\d+) (passed|failed|error|xfailed)", done.stdout)}
    exact_python, exact_torch = said.stdout.split()
    return {
        "python": exact_python,
        "torch": exact_torch,
        "passed": counts.get("passed", 0),
        "expected_failures": counts.get("xfailed", 0),
        "failed": [
            re.sub(r" - .*", "", line).removeprefix("FAILED ").removeprefix("ERROR ")
            for line in done.stdout.splitlines()
            if line.startswith(("FAILED tests/", "ERROR tests/"))
        ],
        "finished": done.returncode in (0, 1) and bool(counts),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "commit": parts.commit(),
        "machine": parts.machine(),
    }


def in_order(pair: str) -> list[list[int]]:
    return [[int(x) for x in version.split(".")] for version in pair.split("/")]


def table(results: dict[str, dict[str, object]]) -> str:
    """The page's table of what was run."""
    lines = ["| Python | PyTorch | passed | failed | date |", "|---|---|---:|---:|---|"]
    for name in sorted(results, key=in_order):
        r = results[name]
        failed = r["failed"]
        assert isinstance(failed, list)
        lines.append(f"| {r['python']} | {r['torch']} | {r['passed']} | {len(failed)} | {r['date']} |")
    return "\n".join(lines)


def sentence(results: dict[str, dict[str, object]]) -> str:
    """README's short form of the table: the versions of Python that each PyTorch ran with."""
    pythons: dict[str, list[str]] = {}
    for name in sorted(results, key=in_order):
        pythons.setdefault(str(results[name]["torch"]).partition("+")[0], []).append(
            str(results[name]["python"])
        )
    return ", ".join(
        f"PyTorch {torch} with Python {', '.join(found)}" for torch, found in sorted(pythons.items())
    )


def write_page(results: dict[str, dict[str, object]]) -> None:
    text = PAGE.read_text()
    begin, end = "<!-- versions: .ci/versions.py writes this -->", "<!-- end -->"
    head, rest = text.split(begin)
    PAGE.write_text(f"{head}{begin}\n\n{table(results)}\n\n{end}{rest.split(end)[1]}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", nargs="+", metavar="PYTHON/PYTORCH", help="such as 3.12/2.13.0")
    pairs = [pair.split("/") for pair in parser.parse_args().pairs]
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    good = True
    for python, torch in pairs:
        print(f"\n=== Python {python}, PyTorch {torch}", flush=True)
        outcome = run(python, torch)
        results[f"{python}/{torch}"] = outcome
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        write_page(results)
        good &= bool(outcome["finished"]) and not outcome["failed"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
