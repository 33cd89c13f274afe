"""`macatensor profile` names what slows a program down, with its line, and accuses no program without the fault."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from running import ROOT, run_python

import macatensor
from macatensor.bottlenecks import findings, page, program
from macatensor.bottlenecks.findings import Finding
from macatensor.bottlenecks.session import Session
from macatensor.bottlenecks.spans import clipped, covers, length, union
from macatensor.bottlenecks.summary import Summary

PROGRAMS = ROOT / "tests" / "slow_programs"
PLANTED = {
    "hidden_item": "waits",
    "tiny_kernels": "tiny kernels",
    "layout_conversion": "layout",
    "host_fallback": "host fallback",
    "starving_loader": "data loader",
    "unfused_optimizer": "unfused optimizer",
    "fragmentation": "fragmentation",
    "forgotten_no_grad": "forgotten no_grad",
    "new_tensors": "new tensors",
}


def profiled(script: Path, steps: int = 6, warm_up: int = 2) -> tuple[Summary, list[Finding], int]:
    torch.maca.empty_cache()
    session = Session(steps, warm_up)
    with macatensor.fallback("silent"):
        status = program.run(script, [], session)
    summary = Summary(session)
    return summary, findings.find(summary), status


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_bottleneck_is_named(name: str) -> None:
    summary, found, status = profiled(PROGRAMS / f"{name}.py")
    assert status == 0 and summary.session.is_stopped
    assert PLANTED[name] in {f.kind for f in found[:2]}, found
    named = next(f for f in found if f.kind == PLANTED[name])
    assert any("# FAULT" in line.code for line in named.lines), named


def test_a_compiled_model_stays_compiled(tmp_path: Path) -> None:
    script = tmp_path / "compiled.py"
    script.write_text(
        "import torch, macatensor\n"
        "model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).to('maca')\n"
        "compiled = torch.compile(model, fullgraph=True)\n"  # raises where a hook cannot be traced
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(9):\n"
        "    optimizer.zero_grad()\n"
        "    compiled(torch.randn(4, 8, device='maca')).sum().backward()\n"
        "    optimizer.step()\n"
    )
    torch.compiler.reset()
    summary, _, status = profiled(script)
    assert status == 0 and summary.session.clock.source == "optimizer.step()"


@pytest.fixture(scope="module")
def clean() -> tuple[Summary, list[Finding], int]:
    return profiled(PROGRAMS / "clean.py", steps=8)


def test_a_clean_program_is_not_accused(clean: tuple[Summary, list[Finding], int], tmp_path: Path) -> None:
    summary, found, _ = clean
    assert [f for f in found if f.kind in PLANTED.values()] == []
    shares = summary.shares
    assert abs(shares.kernel + shares.launch + shares.python + shares.idle - 1) < 1e-9
    assert min(shares.kernel, shares.launch, shares.python, shares.idle) >= 0
    assert {w.name for w in summary.operators} >= {"convolution", "convolution_backward", "addmm"}
    convolution = next(w for w in summary.operators if w.name == "convolution")
    assert convolution.flops > 2 * 16 * 24 * 24 * 32 * 27  # of the first layer alone
    written = page.write(tmp_path / "page.html", "clean.py", summary, found, None)
    text = written.read_text()
    assert "Nothing stands out" in text and text.count("<svg") == 4
    facts = json.loads(json.dumps(page.facts("clean.py", summary, found, None, written, 0)))
    assert facts["findings"] == [] and facts["steps"]["end"] == "optimizer.step()"


def test_what_lives_at_the_peak(clean: tuple[Summary, list[Finding], int]) -> None:
    summary, _, _ = clean
    held = {h.what for h in summary.at_peak}
    assert held >= {"parameters", "optimizer state", "convolution", "native_batch_norm"}
    assert sum(h.bytes for h in summary.at_peak) == summary.peak


def test_kernels_carry_their_operators(clean: tuple[Summary, list[Finding], int]) -> None:
    summary, _, _ = clean
    owned = sum(found.call is not None for found in summary.launched)
    assert owned >= 0.99 * len(summary.launched) > 0


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_steps_of_prof_step(tmp_path: Path) -> None:
    script = written(
        tmp_path / "own.py",
        """
import torch
profile = torch.profiler.profile()
x = torch.ones(8, device="maca")
for _ in range(30):
    x = x * 0.5
    profile.step()
""",
    )
    summary, _, _ = profiled(script)
    assert summary.session.clock.source == "prof.step()" and summary.launches == 1


def test_steps_of_a_model_alone(tmp_path: Path) -> None:
    script = written(
        tmp_path / "infer.py",
        """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).to("maca")
with torch.no_grad():
    for _ in range(30):
        model(torch.ones(2, 8, device="maca"))
""",
    )
    summary, found, _ = profiled(script)
    assert summary.session.clock.source == "call of the model"
    assert [f.kind for f in found] == []


def test_a_program_without_steps_is_one(tmp_path: Path) -> None:
    script = written(tmp_path / "plain.py", "import torch\n(torch.ones(4, device='maca') + 1).sum().item()\n")
    summary, _, _ = profiled(script)
    assert not summary.is_warm and {"add", "sum"} <= {w.name for w in summary.operators}
    assert [w.line.number for s in summary.traced for w in s.waits] == [2]


def test_exceptions_are_the_programs_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = written(tmp_path / "fails.py", "def f():\n    raise KeyError('mine')\n\nf()\n")
    assert profiled(script)[2] == 1
    told = capfd.readouterr().err
    assert "KeyError: 'mine'" in told and 'fails.py", line 4' in told
    assert "runpy" not in told and "bottlenecks" not in told


def test_a_program_that_catches_all_stops(tmp_path: Path) -> None:
    script = written(
        tmp_path / "stubborn.py",
        """
import torch
p = torch.nn.Parameter(torch.ones(2, device="maca"))
optimizer = torch.optim.SGD([p], lr=0.1)
for i in range(1000):
    try:
        p.sum().backward()
        optimizer.step()
    except BaseException:
        break
raise SystemExit(i)
""",
    )
    summary, _, status = profiled(script)
    assert status == 7 and len(summary.timed) + len(summary.traced) == 6


def test_the_command_keeps_the_exit_status(tmp_path: Path) -> None:
    script = written(
        tmp_path / "ends.py",
        "import sys, torch\nprint('mine', sys.argv[1:])\ntorch.ones(3, device='maca').exp()\nsys.exit(3)\n",
    )
    done = run_python(
        "import sys; from macatensor.cli import main; sys.argv[0] = 'macatensor'; main()",
        *(
            "profile",
            "--json",
            "--no-roofline",
            "-o",
            str(tmp_path / "out.html"),
            str(script),
            "--steps",
            "5",
        ),
        expect=3,
    )
    facts = json.loads(done.stdout)
    assert facts["exit_status"] == 3 and facts["page"] == str(tmp_path / "out.html")
    assert "mine ['--steps', '5']" in done.stderr
    assert "exp" in {w["name"] for w in facts["operators"]}


def test_nothing_is_left_behind() -> None:
    before = torch.optim.Optimizer.__init__, torch.profiler.profile.step, sys.argv, sys.path[:]
    profiled(PROGRAMS / "host_fallback.py", steps=2, warm_up=1)
    assert (torch.optim.Optimizer.__init__, torch.profiler.profile.step, sys.argv, sys.path[:]) == before


def test_spans() -> None:
    joined = union([(5, 7), (1, 3), (2, 4), (6, 6)])
    assert joined == [(1, 4), (5, 7)] and length(joined) == 5
    assert clipped(joined, (2, 6)) == [(2, 4), (5, 6)]
    assert [covers(joined, at) for at in (0, 1, 3, 4, 6, 7)] == [False, True, True, False, True, False]
