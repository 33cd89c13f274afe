"""The CUDA library, built for the emulator: it keeps to maca.h with warps of 32 and of 64, and its kernels are exact."""

from __future__ import annotations

import json
import os
import shutil
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


def test_three_models_train_as_on_the_host(library: Path, warp: int) -> None:
    def losses(**environment: str) -> dict[str, list[float]]:
        done = subprocess.run(
            [sys.executable, ROOT / "tests" / "cuda_programs" / "train.py"],
            env={**os.environ, **environment}, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        read: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
        return read

    want = losses()
    got = losses(MACA_LIBRARY=str(library), MACA_FALLBACK="error")  # nothing runs on the host
    for model, steps in want.items():
        assert got[model] == pytest.approx(steps, rel=1e-4), model


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


# What is planted in a kernel: the file, what stands there, what stands there then, the row and dtype that are asked, and
# who finds it with which words: the emulator, or the kit, which compares results and looks at what was written.
PLANTED = {
    "a missing tail": (
        "kernels/reduction.cu", "k < a.folded.count;", "k + 1 < a.folded.count;", "sum.dim_IntList", "float32", "",
    ),
    "a result that is not written": (
        "kernels/nll.cu", "for (int64_t c = 0; c < a.classes; ++c)", "for (int64_t c = 1; c < a.classes; ++c)",
        "nll_loss_backward", "float32", "",
    ),
    "a half taken for a float": (
        "kernels/indexing.cu", "case 2: return f(uint16_t{});", "case 2: return f(uint32_t{});",
        "index_select", "bfloat16", "",
    ),
    "a stride that is forgotten": (
        "kernels/softmax.cu", "at[1] + k * a.lines.strides[1]);", "at[1] + k);", "_softmax", "float32", "",
    ),
    "a barrier too few": (
        "kernels/tiles.h", "right[i][x]);\n      __syncthreads();", "right[i][x]);", "mm", "float32", "",
    ),
    "a grid one too large": (
        "kernels/pooling.cu", "i < count; i += element_step()", "i <= count; i += element_step()",
        "max_pool2d_with_indices", "float32", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("defect", PLANTED)
def test_what_is_planted_in_a_kernel_is_found(library: Path, tmp_path: Path, defect: str) -> None:
    file, right, wrong, row, dtype, words = PLANTED[defect]
    tree, build = tmp_path / "libmaca_ffi", tmp_path / "build"
    for folder in ("cuda", "shared", "include"):
        shutil.copytree(ROOT / "libmaca_ffi" / folder, tree / folder)
    shutil.copytree(library.parent, build)
    source = tree / "cuda" / file
    text = source.read_text()
    assert right in text
    source.write_text(text.replace(right, wrong, 1))
    for made in build.rglob("*.o"):  # what make would compile anew for a header, it need not
        unit = tree / "cuda" / "kernels" / f"{made.stem}.cu"
        changed = unit.exists() and (unit == source or f'#include "{source.name}"' in unit.read_text())
        os.utime(made, (0, 0) if changed else None)
    command = ["make", "-C", tree / "cuda", "emulated", f"BUILD={build}"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    planted = build / library.name
    found = _wrong(list(ask_kernels(planted, interface.kernels_of(planted) or [], [row], [dtype], [], 1)))
    assert found and words in found[0], found
