"""What was fused is said where somebody asks: ``macatensor compile --explain``, ``TORCH_LOGS=maca_fusion``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from running import run_python

PROGRAM = """
import torch, macatensor
compiled = torch.compile(lambda x: ((x @ x).relu_() * 2 + torch.rand(3, 3, device="maca")).softmax(-1))
torch.manual_seed(1)
x = torch.ones(3, 3, device="maca")
first = compiled(x)
torch.manual_seed(1)
assert torch.equal(first, compiled(x)) and bool((x == 1).all())  # to measure changes nothing
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_operators_are_listed_with_times(program: Path) -> None:
    command = [sys.executable, "-m", "macatensor", "compile", "--explain"]
    run = lambda *more: subprocess.run(  # noqa: E731
        [*command, *more, str(program)], capture_output=True, text=True, timeout=200, check=True
    )
    (graph,) = json.loads(run("--json").stdout)
    steps = graph["steps"]
    assert [s["kernel"] for s in steps if s["fused"] == 0][:2] == ["relu", "mul"]
    assert all(s["bytes"] > 0 for s in steps)
    assert graph["seconds"] > 0 and all(s["seconds"] > 0 for s in steps if s["kernel"])


def test_pytorchs_logs_show_programs(program: Path) -> None:
    """The name is known before the device is."""
    said = run_python(PROGRAM, TORCH_LOGS="maca_fusion").stderr
    assert re.search(r"aten.relu\S* +relu +program 0 +[\d.]+ KiB", said)
    assert "program" not in run_python(PROGRAM, TORCH_LOGS=None).stderr
