"""The CUDA library, built for the emulator: it keeps to maca.h with warps of 32 and of 64, and its kernels are exact."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from macatensor.conformance import interface
from macatensor.conformance.kernels import ask_kernels
from macatensor.conformance.outcome import Line

ROOT = Path(__file__).parents[1]

# slots that maca.h lets a library leave out, and this one does
ABSENT = {"memory_reserve", "comm_id", "plan_candidates", "profile_set"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    subprocess.run(
        ["make", "-j2", "-C", ROOT / "libmaca_ffi" / "cuda", "emulated", f"BUILD={folder}"],
        check=True,
        capture_output=True,
        text=True,
    )
    return folder / "libmaca_cuda_emulated.so"


@pytest.fixture(params=[32, 64])
def warp(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("CUDA_EMULATOR_WARP", str(request.param))
    return int(request.param)


def _wrong(lines: list[Line]) -> list[str]:
    return [f"{line.name}: {line.text}" for line in lines if line.verdict == "FAIL"]


def test_it_keeps_every_rule(library: Path, warp: int) -> None:
    lines = list(interface.ask(library, [rule.name for rule in interface.rules()]))
    assert not _wrong(lines) and len(lines) > 50
    absent = [line.text for line in lines if line.verdict != "pass"]
    assert all(any(name in text for name in ABSENT) for text in absent), absent


def test_kernels_keep_their_bounds(library: Path, warp: int) -> None:
    rows = ["add.Tensor", "tanh", "where.self", "clone", "sum.dim_IntList", "amax", "addmm", "_softmax",
            "native_layer_norm", "index_select"]  # fmt: skip
    kernels = interface.kernels_of(library) or []
    lines = list(ask_kernels(library, kernels, rows, ["float32", "bfloat16", "int64"], ["sliced"], 1))
    assert not _wrong(lines) and len(lines) > 2 * len(rows)
    assert {line.name.partition(" ")[0] for line in lines if line.samples} == set(rows)


def test_programs_run_and_the_rest_is_counted(library: Path) -> None:
    program = """
import torch, warnings
import macatensor
from macatensor import maca
warnings.simplefilter("ignore")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
x = torch.rand(5, 8)
want = model(x).softmax(1).detach()
got = model.to("maca")(maca(x)).softmax(1)
torch.testing.assert_close(got.cpu(), want)
try:
    maca(torch.ones(4, 3)).index_select(0, maca(torch.tensor([7]))).cpu()
except IndexError as error:
    print(error)
"""
    environment = {**os.environ, "MACA_LIBRARY": str(library), "MACA_FALLBACK": "silent"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "index out of range in self" in done.stdout
