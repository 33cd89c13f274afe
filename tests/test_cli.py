"""The command line: every command, its JSON, its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from running import LEVELS
from typer.testing import CliRunner

import macatensor
from macatensor.cli import app
from macatensor.cli.ops import bound_text, matches, short_dtypes
from op_table import TABLE, row

run = CliRunner().invoke


def test_help_lists_the_commands() -> None:
    result = run(app, ["--help"])
    assert result.exit_code == 0
    for name in ("check", "demo", "ops", "parity", "bench", "compile", "migrate"):
        assert name in result.stdout
        assert run(app, [name, "--help"]).exit_code == 0


def test_version() -> None:
    result = run(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"macatensor {macatensor.__version__}, PyTorch {torch.__version__}\n"


def test_check_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_DEFAULT_NCHW", "1")
    monkeypatch.delenv("MACA_LAUNCH_BLOCKING", raising=False)
    result = run(app, ["check", "--json"])
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert facts["proof"] == "tensor([1., 1.], device='maca:0')"
    assert facts["library"]["abi"].startswith("2.")
    assert facts["device"]["kernel_count"] > 0 and facts["device"]["simd"] in LEVELS
    assert facts["switches"]["PYTORCH_DEFAULT_NCHW"]["value"] == "1"
    assert facts["switches"]["PYTORCH_DEFAULT_NCHW"]["origin"] == "environment"
    assert facts["switches"]["MACA_LAUNCH_BLOCKING"]["value"] is None
    assert facts["switches"]["MACA_LAUNCH_BLOCKING"]["origin"] == "default"
    assert facts["unknown_switches"] == {}
    assert set(facts["switches"]) >= {"MACA_LIBRARY", "MACA_DEVICE_MEMORY", "MACA_FALLBACK", "MACA_SIMD"}
    assert sum(facts["rows"].values()) == len(TABLE)


def test_check_shows_names_that_nothing_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MACA_FALBACK", "error")
    assert "MACA_FALBACK" in run(app, ["check"]).stdout
    facts = json.loads(run(app, ["check", "--json"]).stdout)
    assert facts["unknown_switches"] == {"MACA_FALBACK": "MACA_FALLBACK"}


def test_check_prints_the_proof() -> None:
    result = run(app, ["check"])
    assert result.exit_code == 0
    assert "tensor([1., 1.], device='maca:0')" in result.stdout
    assert "MACA_VISIBLE_DEVICES" in result.stdout


def test_ops_json_has_every_row() -> None:
    # in a process of its own: other tests define operators, and load PyTorch's
    done = subprocess.run(
        [sys.executable, "-m", "macatensor", "ops", "--json"], capture_output=True, text=True, check=True
    )
    rows = json.loads(done.stdout)
    assert {r["operator"] for r in rows} == set(TABLE)
    add = next(r for r in rows if r["operator"] == "add.Tensor")
    assert add["kind"] == "kernel" and add["kernel"] == "add" and "float32" in add["dtypes"]


def test_ops_pattern_and_no_match() -> None:
    found = json.loads(run(app, ["ops", "conv*", "--json"]).stdout)
    assert found and all(r["operator"].startswith("conv") for r in found)
    assert "convolution_backward" in run(app, ["ops", "convolution"]).stdout
    assert run(app, ["ops", "no_such_operator"]).exit_code == 1


@pytest.mark.parametrize("words", [["ops", "sum*"], ["check"]], ids=lambda words: words[0])
def test_tables_show_styles_and_not_their_names(words: list[str]) -> None:
    done = run(app, words)
    assert "kernel" in done.output and "[/]" not in done.output


def test_ops_kernels_says_what_libraries_are_asked() -> None:
    found = {k["operator"]: k for k in json.loads(run(app, ["ops", "--kernels", "--json"]).stdout)}
    assert len(found) == sum(row.kind.value == "kernel" for row in TABLE.values())
    add = found["aten.add.Tensor"]
    assert add["kernel"] == "add" and add["operands"] == ["self", "other"] and add["scalars"] == ["alpha"]
    assert "bias?" in found["aten.convolution.default"]["operands"]
    assert "stride: List[int]" in found["aten.convolution.default"]["attributes"]
    page = run(app, ["ops", "--kernels"]).stdout
    assert "add <- aten.add.Tensor(self, other)  -> Tensor  scalars: alpha" in page
    assert "of the runtime itself:" in page and " gate " in page


def test_ops_words() -> None:
    assert matches("add.Tensor", None) and matches("add.Tensor", "add*") and matches("add.Tensor", "add")
    assert matches("_foreach_add.List", "foreach") and not matches("add.Tensor", "mul*")
    assert short_dtypes(row.ALL) == "all" and short_dtypes(row.FLOATING) == "floating"
    assert short_dtypes(frozenset({"float32", "bool"})) == "bool float32"
    assert bound_text(row.exact()) == "exact"
    assert bound_text(row.ulp(f32=1, f64=1)) == "1 ulp"
    assert bound_text(row.per_term(f32=2, bf16=4)) == "2 eps per term (bfloat16 4)"


def test_parity_json() -> None:
    result = run(app, ["parity", "neg", "--dtype", "float32", "--json"])
    assert result.exit_code == 0, result.stdout
    assert json.loads(result.stdout)


@pytest.mark.timeout(0)  # the examiner bounds the task by what it computes
def test_examination_of_one_entry(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(app, ["opinfo", "--short", "neg", "--question", "forward", "--json"])
    assert result.exit_code == 0, result.output
    (answer,) = json.loads(result.stdout)
    assert answer["verdict"] == "pass" and answer["task"]["entry"] == "neg" and answer["samples"] >= 1
    assert run(app, ["opinfo", "neg", "--write"]).exit_code == 2  # a part is no record
    earlier = run(app, ["parity", "--short", "neg", "--question", "forward", "--json"])
    assert json.loads(earlier.stdout)[0]["samples"] == answer["samples"]
    assert "are `macatensor opinfo` now" in earlier.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--question", "no_such_question"], "accepted: forward"),
        (["gelu"], "near: _refs.nn.functional.gelu, nn.functional.gelu"),
        (["neg", "--short", "--dtype", "float99"], "'float99'; accepted: bfloat16"),
        (["neg", "--dtype", "float64", "--question", "gradient", "--workers", "0"], "--workers"),
        (["neg", "--layout", "sliced"], "No such option"),
    ],
)
def test_opinfo_refuses_what_it_would_not_heed(arguments: list[str], said: str) -> None:
    for command in (["opinfo", *arguments], ["parity", *arguments, "--all"]):
        result = run(app, command, env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"})
        assert result.exit_code == 2
        assert said in result.output, result.output


def test_compile_shows_what_was_fused(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import sys, torch, macatensor\n"
        "torch._dynamo.reset()\n"
        "f = torch.compile(lambda x: (x @ x * 2 + 1).relu())\n"
        "assert sys.argv[1:] == ['--fast']\n"
        "f(torch.ones(3, 3, device='maca'))\n"
    )
    done = run(app, ["compile", "--json", str(script), "--fast"])
    (graph,) = json.loads(done.stdout)
    assert [step["fused"] for step in graph["steps"]] == [None, 0, 0, 0] and graph["launches"] == 2
    assert "aten.mm" in graph["steps"][0]["operator"]
    shown = run(app, ["compile", str(script), "--fast"])
    assert "program 0" in shown.stdout and "2 launches" in shown.stdout
    for name in ("graphs.svg", "graphs.html"):
        assert run(app, ["compile", "--picture", str(tmp_path / name), str(script), "--fast"]).exit_code == 0
        picture = (tmp_path / name).read_text()
        ElementTree.fromstring(picture[picture.index("<svg") :])
        assert "graph 0: 4 operators, 2 launches, 1 of them fused" in picture and "program 0" in picture
    assert run(app, ["compile", "--picture", "graphs.txt", str(script)]).exit_code == 2
    script.write_text("print('nothing')")
    assert "No graph" in run(app, ["compile", "--check", str(script)]).stdout


def test_bench_list_and_unknown_case() -> None:
    result = run(app, ["bench", "--list", "--json"])
    assert result.exit_code == 0
    assert "models.resnet18.training" in json.loads(result.stdout)
    assert run(app, ["bench", "no_such_case"]).exit_code == 2


def test_ops_fit_eighty_columns() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "macatensor.cli", "ops", "gelu"],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["gelu", "kernel", "floating"] and max(map(len, lines)) <= 80
    assert "PyTorch's own 1 + erf(x) cancels" in " ".join(done.stdout.split())


def test_module_entry_reports_a_missing_library_plainly() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from macatensor.cli import main; main()", "--help"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "demo" in done.stdout
    done = subprocess.run(
        [sys.executable, "-m", "macatensor", "check"],
        env={**os.environ, "MACA_LIBRARY": "/nowhere/libmaca.so"},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "/nowhere/libmaca.so" in done.stderr
