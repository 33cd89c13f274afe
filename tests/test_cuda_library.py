"""The CUDA library, built for the emulator: it keeps to maca.h with warps of 32 and of 64, and its kernels are exact."""

from __future__ import annotations

import fcntl
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
from op_table import TABLE, Kind

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.timeout(900)  # the first test compiles the library: two minutes, more beside others

# slots that maca.h lets a library leave out, and this one does
ABSENT = {"memory_reserve", "comm_id", "plan_candidates", "profile_set"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once for all workers of a run: whoever comes later waits and finds it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cuda_library"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
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


# A row or two of every engine; those whose blocks work together are asked with both sizes of a warp.
TOGETHER = [
    "mse_loss", "var.correction", "linalg_vector_norm", "logsumexp", "aminmax", "_safe_softmax", "cumsum", "cummax",
    "logcumsumexp", "sort", "topk", "nanmedian.dim", "mode", "masked_scatter",
]  # fmt: skip
ALONE = [
    "binary_cross_entropy_backward", "glu_backward", "_prelu_kernel_backward", "frexp.Tensor", "nextafter",
    "upsample_bicubic2d", "upsample_trilinear3d_backward", "_upsample_bilinear2d_aa_backward",
    "_upsample_nearest_exact1d", "reflection_pad2d_backward", "replication_pad3d", "avg_pool3d_backward",
    "adaptive_max_pool2d", "fractional_max_pool2d", "max_unpool2d", "grid_sampler_2d_backward", "grid_sampler_3d",
    "im2col", "col2im", "unfold_backward", "pixel_shuffle", "block_diag", "linspace", "linalg_cross",
    "addr", "index_add", "index_reduce", "scatter_reduce.two", "put", "take", "searchsorted.Tensor",
    "_embedding_bag", "_embedding_bag_dense_backward", "embedding_renorm_", "_cdist_backward", "_pdist_forward",
    "digamma", "igamma", "erfinv", "special_bessel_y1", "special_hermite_polynomial_h", "normal.Tensor_Tensor",
    "binomial", "multinomial", "log_normal",
]  # fmt: skip


def _ask(library: Path, rows: list[str], dtypes: list[str]) -> None:
    lines = list(ask_kernels(library, interface.kernels_of(library) or [], rows, dtypes, ["sliced"], 1))
    assert not _wrong(lines)
    assert {line.name.partition(" ")[0] for line in lines} >= set(rows)


def test_blocks_that_work_together_are_exact(library: Path, warp: int) -> None:
    _ask(library, TOGETHER, ["float32", "int64"])


def test_every_other_engine_is_exact(library: Path) -> None:
    _ask(library, ALONE, ["float32", "bfloat16"])


def test_nine_rows_of_ten_have_a_kernel(library: Path) -> None:
    rows = [row for row in TABLE.values() if row.kind is Kind.KERNEL]
    have = set(interface.kernels_of(library) or [])
    assert sum(row.kernel_name in have for row in rows) >= 0.9 * len(rows)


# Each part with one of the sizes of a warp: minutes in all.
EXTENTS = {
    "pointwise": 64,
    "across": 32,
    "reductions": 32,
    "lines": 64,
    "channels": 32,
    "windows": 64,
    "lists": 32,
}


@pytest.mark.parametrize("part", EXTENTS)
def test_odd_extents_are_exact(library: Path, part: str) -> None:
    environment = {
        **os.environ, "MACA_LIBRARY": str(library), "MACA_FALLBACK": "error", "CUDA_EMULATOR_WARP": str(EXTENTS[part])
    }  # fmt: skip
    program = ROOT / "tests" / "cuda_programs" / "extents.py"
    done = subprocess.run(
        [sys.executable, program, part], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["asked"] >= 70 and not said["wrong"]


def test_long_lines_are_ordered_and_chosen_from(library: Path, warp: int) -> None:
    program = """
import torch
import macatensor
from macatensor import maca
torch.manual_seed(0)
x, u = torch.randn(3, 5000), torch.randint(0, 50, (4000,))
x[1, 7], x[2, 9] = float("nan"), float("-inf")
same = torch.testing.assert_close
for got, want in zip(maca(x).sort(1), x.sort(1)):
    same(got.cpu(), want, equal_nan=True)
same(maca(x).flatten().topk(7).values.cpu(), x.flatten().topk(7).values, equal_nan=True)
same(maca(x).nanmedian().cpu(), x.nanmedian())
for name in ("var", "norm", "cumsum", "logsumexp"):
    for row, dim in ((0, 0), (2, 0)):
        call = getattr(torch, name)
        same(call(maca(x)[row], dim=dim).cpu(), call(x[row].double(), dim=dim).float(), equal_nan=True)
for got, want in zip(maca(u).unique(return_inverse=True, return_counts=True), u.unique(return_inverse=True, return_counts=True)):
    same(got.cpu(), want)
same(maca(u > 25).nonzero().cpu(), (u > 25).nonzero())
same(maca(u)[maca(u > 25)].cpu(), u[u > 25])
"""
    environment = {**os.environ, "MACA_LIBRARY": str(library), "MACA_FALLBACK": "error"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


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


# Stand-ins of the vendors' libraries, by the file names under which those are looked for.
STAND_INS = {"vendor_products.cpp": "libcublasLt.so.13", "vendor_convolutions.cpp": "libcudnn.so.9"}
PROGRAMS = ROOT / "tests" / "cuda_programs"


@pytest.fixture(scope="module")
def vendors(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vendors")
    for source, name in STAND_INS.items():
        command = ["g++", "-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
        command += [str(PROGRAMS / source), str(library), "-o", str(folder / name)]
        subprocess.run(command, check=True)
    return folder


def _ran(program: str | Path, library: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    given = [str(program)] if isinstance(program, Path) else ["-c", program]
    more = ["--small"] if isinstance(program, Path) else []
    return subprocess.run(
        [sys.executable, *given, *more], capture_output=True, text=True, timeout=600,
        env={**os.environ, "MACA_LIBRARY": str(library), "MACA_FALLBACK": "error", **environment},
    )  # fmt: skip


def test_vendors_libraries_are_called_with_care(library: Path, vendors: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = _ran(
        ROOT / "macatensor" / "bench" / "device" / "products.py",
        library,
        MACA_VENDOR_FOLDER=str(vendors),
        STAND_IN_LOG=str(log),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["libraries"].endswith("cuBLAS 13.2.3, cuDNN 9.19.5") and said["results"] > 500
    ways = {(w["call"].split()[0], w["implementation"]) for w in said["worst"]}
    products = {"mm", "bmm", "addmm", "baddbmm", "mv"}
    assert {(name, "cuBLAS") for name in products} | {("convolution", "cuDNN"), ("gradient", "cuDNN")} <= ways
    calls = [line.split(", ") for line in log.read_text().splitlines()]
    seen = {part for call in calls for part in call}
    wanted = "NN, NT, TN, TT, alone, bias, added, onto itself, forward, backward data, backward filter, format 0, format 1"
    assert set(wanted.split(", ")) <= seen
    # float32 is neither TF32 nor of halves; sums of halves are floats; addresses that are not aligned are said to be so
    of = {
        kind: {tuple(call[-2:]) for call in calls if kind in call} for kind in seen if kind.startswith("type")
    }
    assert {("compute 68", "alignment 4"), ("compute 68", "alignment 16"), ("4 groups", "engine 3")} <= of[
        "type 0"
    ]
    assert {("compute 68", "alignment 2"), ("compute 68", "alignment 16")} <= of["type 14"]
    assert ("4 groups", "engine 2") in of["type 9"] and ("compute 70", "alignment 8") in of["type 1"]
    assert "engine 2" not in {call[-1] for call in of["type 0"]}  # which is for tensor cores


CONVOLVED = """
import torch
from macatensor import maca
x, w, g = (torch.randint(-4, 5, s).float() for s in ((2, 4, 9, 9), (6, 2, 3, 3), (2, 6, 4, 4)))  # sums are exact
how = [2, 2], [0, 0], [1, 1], False, [0, 0], 2
for dtype in (torch.float32, torch.bfloat16, torch.float64):
    there = [t.to(dtype) for t in (x, w, g)]
    want = [torch.ops.aten.convolution(*there[:2], None, *how)]
    want += torch.ops.aten.convolution_backward(there[2], *there[:2], None, *how, [True, True, False])[:2]
    here = [maca(t) for t in there]
    got = [torch.ops.aten.convolution(*here[:2], None, *how)]
    got += torch.ops.aten.convolution_backward(here[2], *here[:2], None, *how, [True, True, False])[:2]
    torch.testing.assert_close([t.cpu() for t in got], want)
"""


def test_convolutions_without_graphs_take_the_older_functions(
    library: Path, vendors: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    environment = {
        "MACA_VENDOR_FOLDER": str(vendors),
        "STAND_IN_LOG": str(log),
        "STAND_IN_HAS_NO_GRAPHS": "1",
    }
    done = _ran(CONVOLVED, library, **environment)
    assert done.returncode == 0, done.stderr
    calls = [line.split(", ") for line in log.read_text().splitlines()]
    assert {(call[0], call[1], call[-1]) for call in calls} == {
        (name, kind, math)
        for name in ("forward", "backward data", "backward filter")
        for kind, math in (("type 0", "math 3"), ("type 9", "math 0"), ("type 1", "math 0"))
    }


PADDED = """
import torch
from macatensor import maca
# a rounding to bfloat16, and sums of 1024 terms in float32 of two orders
near = dict(rtol=2**-7, atol=1024 * 2**-22)
a, b = torch.randn(1024, 528).bfloat16().t(), torch.randn(1024, 1001).bfloat16()
torch.testing.assert_close((maca(a) @ maca(b)).cpu(), a @ b, **near)
torch.testing.assert_close((maca(b).t() @ maca(a).t()).cpu(), b.t() @ a.t(), **near)
small = b[:9, :7].contiguous()
torch.testing.assert_close((maca(small).t() @ maca(small)).cpu(), small.t() @ small, **near)
"""


def test_long_products_of_odd_lines_are_padded(library: Path, vendors: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = _ran(PADDED, library, MACA_VENDOR_FOLDER=str(vendors), STAND_IN_LOG=str(log))
    assert done.returncode == 0, done.stderr
    long, turned, small = (line.split(", ") for line in log.read_text().splitlines())
    assert "1008 x 528 x 1024" in long and "528 x 1008 x 1024" in turned and "7 x 7 x 9" in small


ASKED = """
import torch
from macatensor import maca
from macatensor.runtime.launches import implementations, launches
with launches() as made:
    got = maca(torch.ones(8, 4)) @ maca(torch.ones(4, 8)), torch.conv2d(maca(torch.ones(1, 2, 4, 4)), maca(torch.ones(2, 2, 3, 3)))
    print([float(t.cpu().sum()) for t in got], implementations(made))
print(torch.maca.library_info()["libraries"])
"""


def test_without_vendors_libraries_there_are_tiles(library: Path, vendors: Path, tmp_path: Path) -> None:
    sums = "[256.0, 144.0]"
    with_them = _ran(ASKED, library, MACA_VENDOR_FOLDER=str(vendors)).stdout
    assert sums in with_them and "cuBLAS, cuDNN" in with_them
    off = _ran(ASKED, library, MACA_VENDOR_FOLDER=str(vendors), MACA_VENDOR_LIBRARIES="0").stdout
    assert sums in off and "tiles" in off and "cu" not in off.lower().replace("cuda", "")
    for name in STAND_INS.values():  # libraries of those names that lack the functions
        subprocess.run(["gcc", "-shared", "-o", tmp_path / name, "-x", "c", os.devnull], check=True)
    empty = _ran(ASKED, library, MACA_VENDOR_FOLDER=str(tmp_path)).stdout
    assert sums in empty and "tiles" in empty


def test_errors_of_vendors_libraries_are_named(library: Path, vendors: Path) -> None:
    for call, words in (
        ("maca(torch.ones(8, 4)) @ maca(torch.ones(4, 8))", "cuBLAS fails with CUBLAS_STATUS_NOT_SUPPORTED"),
        ("torch.conv1d(maca(torch.ones(1, 1, 4)), maca(torch.ones(1, 1, 3)))", "cuDNN fails with CUDNN_STATUS_NOT_SUPPORTED"),
    ):  # fmt: skip
        program = f"import torch\nfrom macatensor import maca\n{call}\ntorch.maca.synchronize()"
        done = _ran(program, library, MACA_VENDOR_FOLDER=str(vendors), STAND_IN_FAILS="1")
        assert done.returncode == 1 and f"RuntimeError: {words}" in done.stderr, done.stderr


LISTS = """
import torch
from macatensor import maca
from macatensor.runtime.launches import implementations, launches
shapes = [(3,), (0,), (7, 9), (4097,), (), (10000,)] + [(5,)] * 90
for dtype in (torch.float32, torch.bfloat16):
    xs, ys = ([maca(torch.randn(s).to(dtype) + 3) for s in shapes] for _ in range(2))
    number = maca(torch.tensor(1.37, dtype=dtype))
    for of_lists, of_each in (
        (lambda: torch._foreach_add(xs, ys, alpha=-0.3), lambda x, y: torch.add(x, y, alpha=-0.3)),
        (lambda: torch._foreach_sub(xs, 1.7), lambda x, y: x - 1.7),
        (lambda: torch._foreach_div(xs, ys), lambda x, y: x / y),
        (lambda: torch._foreach_mul(xs, number), lambda x, y: x * number),
    ):
        with launches() as made:
            got = of_lists()
        assert implementations(made) == "many tensors in a launch"
        assert all(torch.equal(g.cpu(), of_each(x, y).cpu()) for g, x, y in zip(got, xs, ys))
"""


def test_lists_of_tensors_are_few_launches(library: Path) -> None:
    done = _ran(LISTS, library)
    assert done.returncode == 0, done.stderr


# What is planted in a kernel: the file, what stands there, what stands there then, the row and dtype that are asked, and
# who finds it with which words: the emulator, or the kit, which compares results and looks at what was written.
PLANTED = {
    "a missing tail": (
        "kernels/reduction.cu", "k < end; k += stride)", "k + 1 < end; k += stride)", "sum.dim_IntList", "float32", "",
    ),
    "a result that is not written": (
        "kernels/nll.cu", "        if (clear)\n", "        if (clear && !l.kernel)\n", "nll_loss_backward", "float32", "",
    ),
    "a half taken for a float": (
        "kernels/indexing.cu", "case 2: return f(uint16_t{});", "case 2: return f(uint32_t{});",
        "index_select", "bfloat16", "",
    ),
    "a stride that is forgotten": (
        "kernels/softmax.cu", "at[1] + k * a.lines.strides[1]);", "at[1] + k);", "_softmax", "float32", "",
    ),
    "a barrier too few": (
        "kernels/tiles.h", "      }\n      __syncthreads();\n    }", "      }\n    }", "mm", "float32", "",
    ),
    "a grid one too large": (
        "kernels/pooling.cu", "i < a.walk.count; i += element_step()", "i <= a.walk.count; i += element_step()",
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
    command = ["make", "-C", str(tree / "cuda"), "emulated", f"BUILD={build}"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    planted = build / library.name
    found = _wrong(list(ask_kernels(planted, interface.kernels_of(planted) or [], [row], [dtype], [], 1)))
    assert found and words in found[0], found
