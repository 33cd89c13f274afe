"""Bisecting: every planted fault is found by name, with a repro that fails on the faulty kernel alone."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from running import run_python
from typer.testing import CliRunner

import macatensor
from macatensor import accuracy, maca
from macatensor.accuracy.local.bisection import bisect_script
from macatensor.accuracy.local.op_call import OpCall
from macatensor.accuracy.local.shrink import shrink
from macatensor.cli import app
from macatensor.device import sanitizer
from macatensor.dispatch.signature import find_row
from op_table import TABLE

PROGRAMS = Path(__file__).parent / "faulty_programs.py"
TARGET = macatensor.device.library_info()["path"]

# fault -> the operator that it spoils, what kind of finding that is
FAULTS = {
    "batch_norm_epsilon": ("native_batch_norm", "bound"),
    "sum_in_float16": ("sum", "bound"),
    "padding_off_by_one": ("reflection_pad2d", "bound"),
    "swapped_strides": ("clone", "bound"),
    "division_gives_nan": ("div.Tensor", "NaN"),
    "tanh_backward_formula": ("tanh_backward", "bound"),
    "lost_update": ("scatter_add", "race"),
    "softmax_tail": ("_softmax", "bound"),
    "alpha_dropped": ("add.Tensor", "bound"),
    "stale_element": ("relu", "bound"),
    "cast_truncates": ("_to_copy", "bound"),
    "cast_rounds": ("_to_copy", "bound"),
    "index_off_by_one": ("embedding", "bound"),
    "matmul_transposed": ("mm", "bound"),
    "pooling_pads_with_zero": ("max_pool2d_with_indices", "bound"),
    "coarse_sigmoid": ("sigmoid", "bound"),
}

# Each fault in turn in one process: the command's own function, then its repro with the fault and without.
DRIVER = """
import contextlib, ctypes, io, json, os, runpy, sys, time
import torch, macatensor
from macatensor.runtime import plan_caches
from macatensor.accuracy.local.bisection import bisect_script
torch.set_num_threads(1)
library = ctypes.CDLL(os.environ["MACA_LIBRARY"])

def choose(fault):
    assert library.interposer_fault(fault.encode()), fault
    plan_caches.drop_plans()

def run(file):
    said = io.StringIO()
    argv, sys.argv = sys.argv, [str(file)]
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_path(str(file), run_name="__main__")
    except SystemExit as ended:
        return ended.code, said.getvalue()
    finally:
        sys.argv = argv

assert not library.interposer_fault(b"unknown")
found = {}
for fault in json.loads(sys.argv[3]):
    start = time.perf_counter()
    choose(fault)
    result = bisect_script(sys.argv[1], [fault], output_dir=os.path.join(sys.argv[2], fault), seconds=2, try_repro=False)
    finding = result.finding
    faulty = run(finding.repro)
    choose("")
    found[fault] = {
        "op": finding.op, "kind": finding.kind, "rate": finding.rate, "line": finding.origin.line, "text": str(finding),
        "direction": finding.origin.direction, "faulty": faulty, "right": run(finding.repro),
        "elements": finding.call.elements, "original": finding.original.elements,
        "repro": str(finding.repro), "seconds": time.perf_counter() - start,
    }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(interposer: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    folder = tmp_path_factory.mktemp("repros")
    done = run_python(
        DRIVER, str(PROGRAMS), str(folder), json.dumps(list(FAULTS)), MACA_LIBRARY=interposer,
        MACA_INTERPOSER_TARGET=TARGET, timeout=200,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found_with_a_repro(fault: str, found: dict[str, dict[str, object]]) -> None:
    one = found[fault]
    op, kind = FAULTS[fault]
    assert (one["op"], one["kind"]) == (op, kind), one["text"]
    assert one["line"].startswith(f"{PROGRAMS}:") and one["line"].endswith(f" {fault}")
    assert one["direction"] == ("bwd" if "backward" in fault else "fwd")
    assert one["elements"] <= one["original"]
    status, said = one["faulty"]
    assert status == 1 and "WRONG" in said and "expected" in said, said
    status, said = one["right"]
    assert status == 0 and "right" in said, said


def test_a_race_has_a_failure_rate(found: dict[str, dict[str, object]]) -> None:
    race = found["lost_update"]
    assert 0.05 < race["rate"] < 0.95
    said = race["faulty"][1]
    rate = int(said.partition("failure rate: ")[2].partition(" of 200 runs")[0])
    assert 20 < rate < 180
    assert "failure rate: 0 of 200 runs" in race["right"][1]


def test_inputs_are_shrunk_to_what_the_fault_needs(found: dict[str, dict[str, object]]) -> None:
    assert found["division_gives_nan"]["elements"] == 1
    assert found["tanh_backward_formula"]["elements"] == 2
    assert found["matmul_transposed"]["elements"] == 6  # 1 x 2 times 2 x 2
    assert found["stale_element"]["elements"] == 9  # the fault is there above 8


def test_the_command(interposer: Path, tmp_path: Path) -> None:
    code = "import sys; from macatensor.cli import main; sys.argv = ['macatensor', *sys.argv[1:]]; main()"
    arguments = [
        "accuracy",
        "bisect",
        "--json",
        "--seconds",
        "2",
        "-o",
        str(tmp_path),
        str(PROGRAMS),
        "softmax_tail",
    ]
    done = run_python(
        code, *arguments, expect=1,
        MACA_LIBRARY=interposer, MACA_INTERPOSER_TARGET=TARGET, MACA_INTERPOSER_FAULT="softmax_tail",
    )  # fmt: skip
    said = json.loads(done.stdout)
    assert said["op"] == "_softmax" and said["repro"] == str(tmp_path / "repro__softmax.py")
    repro = (tmp_path / "repro__softmax.py").read_text()
    assert "torch.ops.aten._softmax.default" in repro and "Run: python repro__softmax.py" in repro
    right = CliRunner().invoke(app, arguments)
    said = json.loads(right.stdout)
    assert right.exit_code == 0 and said["op"] is None and said["calls"] > 1


# --- no finding where there is none


def _resnet_step(kind: torch.dtype | None):
    from macatensor.demo.models import digits_resnet

    model = maca(digits_resnet())
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.rand(4, 3, 8, 8).maca(), torch.randint(0, 10, (4,)).maca()

    def step() -> None:
        with torch.autocast("maca", kind or torch.bfloat16, enabled=kind is not None):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def _gpt_step(kind: torch.dtype | None):
    from macatensor.demo.models import GPT, GPTConfig

    model = maca(GPT(GPTConfig(20, layers=2, width=32, heads=2, context=16)))
    optimizer = torch.optim.AdamW(model.parameters())
    text = torch.randint(0, 20, (2, 16)).maca()

    def step() -> None:
        with torch.autocast("maca", kind or torch.bfloat16, enabled=kind is not None):
            loss = torch.nn.functional.cross_entropy(model(text).flatten(0, 1), text.flatten())
        loss.backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("make", [_resnet_step, _gpt_step])
@pytest.mark.parametrize("kind", [None, torch.bfloat16, torch.float16])
def test_clean_training_steps_have_no_finding(make, kind: torch.dtype | None, tmp_path: Path) -> None:
    result = accuracy.bisect(make(kind), output_dir=tmp_path)
    assert not result, str(result)
    assert result.calls > 100 and result.clean > result.judged > 10
    assert not list(tmp_path.iterdir())


def test_the_sanitizer_makes_a_race_certain() -> None:
    side = torch.maca.Stream()

    def program() -> None:
        x = torch.ones(4, device="maca") * 2
        with torch.maca.stream(side):
            y = x + 1
        y * 2

    def ordered() -> None:
        x = torch.ones(4, device="maca") * 2
        side.wait_stream(torch.maca.current_stream())
        with torch.maca.stream(side):
            y = x + 1
        torch.maca.current_stream().wait_stream(side)
        y * 2

    sanitizer.enable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sanitizer.StreamHazardWarning)
            for _ in range(3):
                sanitizer.enable()  # a pair of places is reported once
                result = accuracy.bisect(program)
                assert result and result.finding is None
                assert "aten.add.Tensor on stream" in str(result)
            assert not accuracy.bisect(ordered)
    finally:
        sanitizer.disable()
        sanitizer.hazards.clear()
    assert not accuracy.bisect(program)


# --- shrinking


def test_shrinking_keeps_the_failure_and_gives_plain_strides() -> None:
    x = torch.randn(6, 40).t()
    call = OpCall(torch.ops.aten.exp.default, TABLE["exp"], (x,))

    def fails(one: OpCall) -> bool:
        t = one.args[0]
        return t.numel() >= 6 and bool((t > 0.5).any())

    small = shrink(call, fails).args[0]
    assert fails(OpCall(call.func, call.row, (small,)))
    assert small.numel() <= 8 and small.is_contiguous()
    assert set(small.unique().tolist()) <= {0.0, 1.0, 2.0, 3.0}


def test_judging_a_call_leaves_the_plans_of_others() -> None:
    call = OpCall(torch.ops.aten.exp.default, TABLE["exp"], (torch.randn(10),))
    call.judge("maca")
    macatensor.reset_counters()
    call.judge("maca")
    assert macatensor.counters()["plan_misses"] == 0


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(5, 6).t(),
        torch.randn(3).expand(4, 3),
        torch.randn(40)[3::4],
        torch.randn(2, 3, dtype=torch.complex64),
        torch.tensor([True, False]),
        torch.zeros(0, 3),
        torch.tensor(2.5),
        torch.arange(6, dtype=torch.uint8),
    ],
    ids=lambda x: f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)} {x.stride()}",
)
def test_right_kernels_keep_to_their_memory(x: torch.Tensor) -> None:
    for func, args in (
        (torch.ops.aten.mul.Tensor, (x, x.clone())),
        (torch.ops.aten.clone.default, (x,)),
        (torch.ops.aten.sum.default, (x,)),
        (torch.ops.aten.copy_.default, (x.clone(), x)),
    ):
        call = OpCall(func, find_row(func)[0], args)
        assert call.trespasses() == []


def test_shrinking_is_bounded() -> None:
    call = OpCall(torch.ops.aten.exp.default, TABLE["exp"], (torch.randn(1000),))
    tries = 0

    def fails(one: OpCall) -> bool:
        nonlocal tries
        tries += 1
        return bool((one.args[0] > 1).any())

    shrink(call, fails, tries=25)
    assert tries <= 25


# --- repros of every kind of operand


@pytest.mark.parametrize(
    "name, args",
    [
        ("add.Tensor", (torch.tensor([1.5, float("nan"), float("inf")]), 2)),
        ("mul.Tensor", (torch.randn(4, 3).t(), torch.randn(4).expand(3, 4))),
        ("mul.Tensor", (torch.randn(3, dtype=torch.complex64), 2.0)),
        ("cat", ([torch.randn(2, 3), torch.randn(1, 3)], 0)),
        ("sum.dim_IntList", (torch.randn(40, 20).bfloat16(), [1], False)),
        ("add.Tensor", (torch.zeros(0, 3), torch.zeros(()))),
        ("native_layer_norm", (torch.randn(3, 5), [5], None, torch.randn(5), 1e-5)),
        # 0.1 in one chain: further off than the number of its row
        (
            "index_add",
            (torch.zeros(2, 3), 0, torch.zeros(16384, dtype=torch.int64), torch.full((16384, 3), 0.1)),
        ),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_repro_of_a_right_call_is_right(
    name: str, args: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from macatensor.accuracy.local.repro import write_repro

    packet, _, overload = name.partition(".")
    func = getattr(getattr(torch.ops.aten, packet), overload or "default")
    call = OpCall(func, TABLE[name], args)
    file = write_repro(tmp_path / "repro.py", call, "nothing", "a test", "maca")
    monkeypatch.setattr(sys, "argv", [str(file)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(file), run_name="__main__")
    assert ended.value.code == 0
    assert write_repro(tmp_path / "repro.py", call, "nothing", "a test", "maca").name == "repro_2.py"


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_repro_of_attention_is_plain_torch(
    kind: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from macatensor.accuracy.local.repro import write_repro
    from macatensor.parity.watch import NamedKernel, row_of_kernel

    q, k, v, grad = (torch.randn(1, 2, 3, 4).to(kind) for _ in range(4))
    options = {"is_causal": True, "scale": 0.5}
    forward = OpCall(
        NamedKernel("sdpa_forward"), row_of_kernel("sdpa_forward"), (q, k, v, None), options,
        made=(kind, torch.float32),
    )  # fmt: skip
    results, _ = forward.run("maca")
    backward = OpCall(
        NamedKernel("sdpa_backward"), row_of_kernel("sdpa_backward"), (grad, q, k, v, None, *results), options,
        made=(kind,) * 3,
    )  # fmt: skip
    for call in (forward, backward):
        assert call.judge("maca").text == "pass"
        file = write_repro(tmp_path / "repro.py", call, "nothing", "a test", "maca")
        assert "torch.nn.functional.scaled_dot_product_attention" in file.read_text()
        monkeypatch.setattr(sys, "argv", [str(file)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(file), run_name="__main__")
        assert ended.value.code == 0


# --- bad input


def test_programs_that_cannot_be_examined(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read the script .*nowhere.py: No such file"):
        bisect_script(tmp_path / "nowhere.py")
    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n")
    with pytest.raises(ValueError, match="broken.py is no Python program: invalid syntax"):
        bisect_script(broken)
    empty = tmp_path / "empty.py"
    empty.write_text("import torch; torch.ones(2) + 1\n")
    with pytest.raises(
        ValueError, match=r"empty.py runs no operator on a maca tensor; move its tensors there"
    ):
        bisect_script(empty)
    raising = tmp_path / "raising.py"
    raising.write_text("import torch\ntorch.ones(2, device='maca') @ torch.ones(3, device='maca')\n")
    with pytest.raises(
        RuntimeError, match="raising.py failed before an operator broke its bound: RuntimeError: "
    ):
        bisect_script(raising)
    with pytest.raises(ValueError, match="no operator 'reluu'; near it: relu"):
        accuracy.bisect(lambda: None, op_list=["reluu"])
    with pytest.raises(ValueError, match="device got 'tpu'; accepted: maca, cuda, cpu"):
        accuracy.bisect(lambda: None, device="tpu")


def test_the_command_refuses_bad_input(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["accuracy", "bisect", "--json", str(tmp_path / "nowhere.py")])
    assert result.exit_code == 2 and "No such file" in json.loads(result.stdout)["error"]


def test_cpu_programs_and_scripts_with_exit_status(tmp_path: Path) -> None:
    script = tmp_path / "one.py"
    script.write_text(
        "import sys, torch\nassert sys.argv[1:] == ['--n', '3']\n(torch.rand(3, 4) @ torch.rand(4, 3)).sum()\nsys.exit(0)\n"
    )
    assert bisect_script(script, ["--n", "3"], device="cpu").calls == 2
    script.write_text("import sys, torch\ntorch.ones(2) + 1\nsys.exit(3)\n")
    with pytest.raises(RuntimeError, match="ended with exit status 3"):
        bisect_script(script, device="cpu")


def test_nothing_is_left_behind() -> None:
    from macatensor.dispatch import named_kernels
    from macatensor.runtime.tensor import MacaTensor

    before = MacaTensor.__dict__["__torch_dispatch__"], named_kernels.launch
    accuracy.bisect(lambda: torch.ones(3, device="maca") + 1)
    with pytest.raises(ZeroDivisionError):
        accuracy.bisect(lambda: 1 / 0)
    assert (MacaTensor.__dict__["__torch_dispatch__"], named_kernels.launch) == before
    assert not torch.is_anomaly_enabled()


def test_the_repro_is_plain_torch(tmp_path: Path) -> None:
    from macatensor.accuracy.local.repro import write_repro

    call = OpCall(torch.ops.aten.exp.default, TABLE["exp"], (torch.randn(3),))
    file = write_repro(tmp_path / "repro.py", call, "nothing", "a test", "maca")
    imports = [
        line.split()[1] for line in file.read_text().splitlines() if line.strip().startswith("import ")
    ]
    assert sorted(imports) == ["macatensor", "sys", "torch"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--select", "E9,F", str(file)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_complex_references_see_lazy_conjugates() -> None:
    x = torch.randn(7, dtype=torch.complex64).to("maca").requires_grad_()
    found = accuracy.bisect(lambda: torch.tanh(x).abs().sum().backward())
    assert found.finding is None, str(found)
