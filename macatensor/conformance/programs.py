"""Levels 4 and 5: the examination by PyTorch's operator database, models and their speed, each a command of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from macatensor.conformance.outcome import DECLINED, FAIL, PASS, Line

_HOUR = 3600.0


def _run(library: Path, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    """The command line on the library; None when it took an hour."""
    environment = {**os.environ, "MACA_LIBRARY": str(library), "MACA_FALLBACK": "silent"}
    command = [sys.executable, "-m", "macatensor", *arguments]
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_HOUR)
    except subprocess.TimeoutExpired:
        return None


def database(library: Path) -> Iterator[Line]:
    """A line for each question of `macatensor opinfo --short`."""
    done = _run(library, "opinfo", "--short", "--json")
    if done is None or not done.stdout.lstrip().startswith("["):
        said = (
            "no answer within an hour" if done is None else f"status {done.returncode}: {done.stderr[-300:]}"
        )
        yield Line("opinfo", 4, "PyTorch's database", FAIL, said, remedy="macatensor opinfo --short")
        return
    answers = json.loads(done.stdout)
    counts: dict[str, Counter[str]] = {}
    first: dict[str, str] = {}
    for answer in answers:
        question = answer["task"]["question"]
        counts.setdefault(question, Counter())[answer["verdict"]] += 1
        if answer["verdict"] in ("fail", "crash", "hang"):
            first.setdefault(
                question, f"{answer['task']['entry']} {answer['task']['dtype']}: {answer['detail']}"[:300]
            )
    for question, count in sorted(counts.items()):
        wrong = sum(count[v] for v in ("fail", "crash", "hang"))
        text = f"{wrong} wrong; {first[question]}" if wrong else ""
        yield Line(
            question, 4, "PyTorch's database", FAIL if wrong else PASS, text, samples=sum(count.values()),
            remedy="macatensor opinfo --short --question " + question if wrong else "",
        )  # fmt: skip


def models(library: Path) -> Iterator[Line]:
    """`macatensor demo`: a ResNet and a GPT, trained, and every operator of a step checked."""
    done = _run(library, "demo", "--json")
    if done is None or done.returncode not in (0, 1):
        said = (
            "no answer within an hour" if done is None else f"status {done.returncode}: {done.stderr[-300:]}"
        )
        yield Line("demo", 5, "models", FAIL, said, remedy="macatensor demo")
        return
    wrong = done.returncode != 0
    text = (done.stderr or done.stdout)[-300:].strip() if wrong else ""
    yield Line("demo", 5, "models", FAIL if wrong else PASS, text, remedy="macatensor demo" if wrong else "")


def speed(
    library: Path, cases: Sequence[str] = ("models",), rounds: int = 3, quick: bool = False
) -> Iterator[Line]:
    """`macatensor bench models`: a line for each case, its time over that of PyTorch on the host.

    No ratio is wrong, as each device has its own; a case with calls on the host is declined, one that does not run fails.
    """
    with tempfile.TemporaryDirectory(prefix="macatensor-conform-") as folder:
        path = Path(folder) / "bench.json"  # written anew after each case: an hour's end loses one
        done = _run(
            library, "bench", *cases, "--repeat", str(rounds), "--save", str(path), *["--quick"] * quick
        )
        results = json.loads(path.read_text())["results"] if path.exists() else []
    for result in results:
        seconds, fallbacks = result["maca_seconds"], result["fallbacks"]
        text = f"{result['value']:.2f} of {result['baseline']}'s time, {seconds * 1e3:.1f} ms"
        if fallbacks:
            text += f"; {fallbacks} calls of two steps ran on the host"
        yield Line(
            result["case"], 5, "speed", DECLINED if fallbacks else PASS, text, seconds=seconds, samples=rounds
        )
    if done is None or done.returncode not in (0, 1) or not results:
        said = (
            "no answer within an hour" if done is None else f"status {done.returncode}: {done.stderr[-300:]}"
        )
        yield Line("bench", 5, "speed", FAIL, said, remedy="macatensor bench models")
