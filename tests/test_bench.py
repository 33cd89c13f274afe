"""The benchmarks run and say what they must; their times are for an idle machine."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from macatensor.bench import kernels, runner
from macatensor.bench.baselines import Delegate, Floor
from macatensor.bench.measure import Timing, interleave, interleave_short
from macatensor.bench.result import Result
from macatensor.cli import app
from macatensor.cli.bench import duration, value

BARS = {
    ("launch.add", "floor"): 1.4,
    ("launch.add", "lean delegate"): 0.8,
    ("view.view", "floor"): 1.3,
    ("view.transpose", "floor"): 1.3,
    ("view.slice", "floor"): 1.3,
    ("view.select", "floor"): 1.3,
    ("busy.add", "itself alone"): 1.5,
}


def run(*cases: str) -> dict[tuple[str, str], dict[str, object]]:
    result = CliRunner().invoke(app, ["bench", *cases, "--quick", "--repeat", "1", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert {"pytorch", "device", "simd", "threads", "rounds", "results", "passed"} <= set(report)
    return {(r["case"], r["baseline"]): r for r in report["results"]}


def test_launch_cases_have_both_baselines_and_their_bars() -> None:
    found = run("launch", "view", "busy")
    for key, bar in BARS.items():
        assert found[key]["bar"] == bar
    for name in ("add", "relu", "mul_number", "add_"):
        assert (f"launch.{name}", "native") in found
    assert all(r["value"] > 0 and r["maca_seconds"] > 0 for r in found.values())  # type: ignore[operator]


def test_graphs_are_measured_and_judged() -> None:
    found = run("graph")
    assert found["graph.launch", "seconds a launch"]["bar"] == 0.5e-6
    assert found["graph.gpt", "native"]["bar"] == 0.5
    assert all(r["value"] > 0 for r in found.values())  # type: ignore[operator]


@pytest.mark.parametrize("suite", list(kernels.SUITES))
def test_suites_of_kernels_run(suite: str) -> None:
    found = run(f"{suite}")
    assert found and all(case.startswith(f"{suite}.") for case, _ in found)
    assert all(r["value"] > 0 and r["maca_seconds"] > 0 for r in found.values())  # type: ignore[operator]
    if suite in ("pointwise", "gemm", "conv", "norm"):
        assert all(
            "of the ceiling" in str(r["note"]) for (case, _), r in found.items() if not case.endswith("1k")
        )


def test_a_kernel_at_the_ceiling_passes_whatever_the_ratio() -> None:
    assert Result("a", "native", 2.0, 1.05, is_at_ceiling=True).verdict == "pass"
    assert Result("a", "native", 2.0, 1.05).verdict == "FAIL"


@pytest.mark.parametrize(
    "case, bar",
    [
        ("resnet18.inference", 1.0),
        ("resnet18.training", 1.25),
        ("gpt.forward", 1.1),
        ("gpt.training", 1.25),
        ("lstm", None),
    ],
)
def test_models_run_without_fallback(case: str, bar: float | None) -> None:
    (result,) = run(case).values()
    assert result["fallbacks"] == 0
    assert result["bar"] == bar


def test_leak_and_import() -> None:
    found = run("leak", "import")
    names = {case for case, _ in found}
    assert names == {"leak.signatures", "leak.launches", "leak.device", "import"}
    assert found["leak.device", "device memory over both"]["value"] == 0


def test_baselines_compute_what_they_say() -> None:
    a, b = torch.rand(16), torch.rand(16)
    assert torch.equal((Delegate(a) + Delegate(b)).inner, a + b)
    floor = Floor((16,)) + Floor((16,))
    assert type(floor) is Floor and floor.shape == (16,) and floor.device.type == "maca"


def test_timing_is_by_round() -> None:
    timing = Timing({"ours": [2.0, 9.0, 4.0], "theirs": [1.0, 3.0, 4.0]})
    assert timing.ratio("ours", "theirs") == 2.0 and timing.spread("ours", "theirs") == (1.0, 3.0)
    for found in (
        interleave({"x": lambda: None}, rounds=2, seconds=1e-5, settle=0),
        interleave_short({"x": lambda: None}, rounds=2, blocks=2, seconds=1e-5),
    ):
        assert len(found.rounds["x"]) == 2


def test_verdicts() -> None:
    assert Result("a", "b", 1.0, 1.0).verdict == "pass"
    assert Result("a", "b", 1.1, 1.0).verdict == "FAIL"
    assert Result("a", "b", 1.1, None).verdict == "report"
    assert Result("a", "b", 0.1, 1.0, fallbacks=1).verdict == "FAIL"


def test_selection_and_words() -> None:
    assert runner.select([]) == list(runner.CASES)
    assert runner.select(["resnet18"]) == ["resnet18.inference", "resnet18.training"]
    assert runner.select(["gpt.*", "leak"]) == ["gpt.forward", "gpt.training", "leak"]
    with pytest.raises(ValueError, match="no benchmark matches 'nothing'"):
        runner.select(["nothing"])
    assert duration(1.5) == "1.5 s" and duration(0.0123) == "12.3 ms" and duration(4.2e-6) == "4.2 us"
    assert value(0.5, "x") == "0.50 x" and value(3 << 20, "B") == "3.0 MiB"
