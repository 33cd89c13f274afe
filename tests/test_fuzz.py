"""Random calls of every overload: none crashes or hangs, or differs from the host without a reason in fuzz/reasons.py.

conftest.py deals the parts out one by one: each runs in processes of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parent / "fuzz"
CALLS = 20_000  # each overload seven times
PART = 2_000  # 20 seconds of an idle core, three times that beside the other worker


@pytest.mark.parametrize("first", range(0, CALLS, PART))
def test_random_calls_differ_only_for_written_reasons(first: int, tmp_path: Path) -> None:
    """`make long` asks far more, and whether numbers differ from those of this processor's kernels."""
    done = subprocess.run(
        [sys.executable, FUZZ / "run.py", f"--first={first}", f"--calls={PART}", "--jobs=1", "--any-numbers",
         f"--kept={tmp_path / 'fuzz.jsonl'}"],
        capture_output=True, text=True, timeout=3600, env=_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


@pytest.mark.parametrize("kind", ["sequences", "other_layouts", "convolutions", "products"])
def test_random_programs_agree_line_by_line(kind: str) -> None:
    """Views and writes of dense tensors; sparse and jagged ones, which the host computes nothing of; convolutions, products."""
    done = subprocess.run(
        [sys.executable, FUZZ / f"{kind}.py", "--programs=1000"], capture_output=True, text=True, timeout=1200,
        env=_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


def test_a_seed_is_always_the_same_call() -> None:
    code = (
        "import json; from dataclasses import asdict; from calls import draw\n"
        "print(json.dumps([asdict(draw(seed)) for seed in range(50)]))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=FUZZ, capture_output=True, text=True, check=True,
            env={**_environment(), "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1


def _environment() -> dict[str, str]:
    """Without the switches of the tests, which refuse the host."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("MACA_", "PYTORCH_"))}
