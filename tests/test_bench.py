"""The benchmarks run and say what they must; their times are for an idle machine."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from macatensor.bench import ceilings as ceilings_module
from macatensor.bench import distributed, kernels, memory, plain_algorithms, runner, stored
from macatensor.bench.baselines import Delegate, Floor
from macatensor.bench.ceilings import Ceilings, ceilings
from macatensor.bench.decoding import generate
from macatensor.bench.engines import engines
from macatensor.bench.measure import Timing, interleave, interleave_short, quartiles
from macatensor.bench.result import Rate, Result
from macatensor.cli import app, console
from macatensor.cli.bench import duration, value
from macatensor.demo.models import GPT, GPTConfig, resnet18, resnet50
from macatensor.dispatch.request import Declined

# what a result must beat, by case and what it is held against
BARS = {
    ("launch.add", "floor"): 1.25,
    ("launch.add", "lean delegate"): 0.8,
    ("launch.add.backward", "floor"): 1.3,
    ("launch.gradient", "native"): 3.0,
    ("launch.view.view", "floor"): 1.3,
    ("launch.view.select", "floor"): 1.3,
    ("launch.busy", "floor's factor"): 1.25,
    ("pointwise.gelu.16M", "native"): 1.05,
    ("pointwise.to_bfloat16.4M", "native"): 1.05,
    ("pointwise.where.1k", "native"): 4.0,
    ("pointwise.add.transposed", "native"): 1.1,
    ("reduction.var.nhwc", "native"): 1.05,
    ("reduction.cumsum.dim1", "native"): 1.05,
    ("gemm.float32.2048", "native"): 0.95,
    ("gemm.bfloat16.256", "native"): 1.05,
    ("gemm.batched", "native"): 1.05,
    ("conv.64x3x3", "native"): 1.0,
    ("norm.layer_norm", "native"): 1.05,
    ("attention.forward.4096", "native"): 1.0,
    ("attention.backward.512", "native"): 1.0,
    ("models.resnet18.inference.1x224", "native"): 0.77,
    ("models.resnet50.inference.8x64", "native"): 0.77,
    ("models.resnet18.training", "native"): 0.9,
    ("models.resnet50.training", "native"): 0.9,
    ("models.gpt.forward", "native"): 0.95,
    ("models.gpt.training", "native"): 0.95,
    ("models.gpt.decoding", "native"): 1.2,
    ("models.gpt2.decoding.float32.16", "native"): 0.7,
    ("models.lstm", "native"): 0.85,
    ("models.gru", "native"): 0.9,
    ("conv.depthwise5x5.backward", "native"): 0.9,
    ("index.unique.1M", "native"): 1.0,
    ("linalg.solve.256", "native"): 1.0,
    ("fft.real_lines", "native"): 1.0,
    ("graph.gpt", "native"): 0.5,
    ("quantized.decoding.int8", "float32"): 0.5,
    ("quantized.decoding.int4", "float32"): 0.4,
    ("quantized.decoding.bfloat16", "float32"): 0.65,
    ("quantized.int_mm.columns", "native"): 1.0,
}
WITH_TORCHVISION = {
    ("models.shufflenet.training", "native"): 0.85,
    ("vision.nms.1000", "plain C++"): 1.0,
    ("vision.nms.4000", "plain C++"): 1.0,
    ("vision.roi_align", "plain C++"): 1.0,
    ("vision.roi_align.backward", "plain C++"): 1.0,
    ("vision.deform_conv2d", "plain C++"): 1.0,
    ("vision.deform_conv2d.backward", "plain C++"): 1.0,
}
BARS[("serving.paged_attention", "plain C++")] = 1.0
if find_spec("torchvision"):
    BARS |= WITH_TORCHVISION
ABSENT = {case for case, _ in WITH_TORCHVISION.keys() - BARS.keys()}
MEASURED = [*kernels.SUITES, "launch", "models", "graph", "quantized", "serving", "vision"]


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, dict[tuple[str, str], Result]]:
    """What one quick run prints and stores. One thread: PyTorch's would wait for each other spinning."""
    path = tmp_path_factory.mktemp("bench") / "run.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(console.out, "width", 160)  # narrower ones, such as a test worker's, break headings
        done = invoke(*MEASURED, "--quick", "--repeat", 1, "--threads", 1, "--save", path)
    assert done.exit_code == 0, done.output
    results = stored.load(path).results
    return (
        done.stdout,
        path,
        {(r.case, r.baseline.partition(" NHWC")[0].partition(" NCHW")[0]): r for r in results},
    )


def test_every_case_is_measured_and_has_its_bar(whole: Any) -> None:
    _, _, found = whole
    for key, bar in BARS.items():
        assert found[key].bar == bar, key
    assert all(
        r.value > 0 and (r.maca_seconds or r.unit != "x" or r.case == "attention.memory")
        for r in found.values()
    )
    measured = {case for case, _ in found}
    for name in set(runner.select(MEASURED)) - ABSENT:
        assert any(case == name or case.startswith(f"{name}.") for case in measured), name


def test_rates_are_held_against_their_ceilings(whole: Any) -> None:
    _, path, found = whole
    tops = stored.load(path).ceilings
    assert all(tops[name] for name in ("copy", "read", "multiply_add", "product"))
    for case, of in {
        "pointwise.exp.4M": "copy", "reduction.sum.dim0": "read", "reduction.softmax.dim0": "copy",
        "gemm.float32.512": "multiply-add", "conv.256x1x1": "multiply-add", "attention.backward.512": "multiply-add",
    }.items():  # fmt: skip
        rate = found[case, "native"].rate
        assert rate.of == of and rate.ceiling == tops[of.replace("-", "_")]
        assert rate.share == pytest.approx(rate.value / rate.ceiling) and rate.value > 0
    assert found["pointwise.add.1k", "native"].rate is None


def test_models_and_packages_do_not_touch_the_host(whole: Any) -> None:
    suites = "models.", "serving.", "vision."
    found = [r for r in whole[2].values() if r.case.startswith(suites)]
    assert len(found) == 26 - len(ABSENT) and all(r.fallbacks == 0 for r in found)


def test_other_makers_models_are_measured() -> None:
    of = {"mobilenet_v3_large": "torchvision", "bert_base_layer": "transformers"}
    done = invoke(*(f"others.{name}" for name in of), "--quick", "--repeat", 1, "--threads", 1, "--json")
    results = json.loads(done.stdout)["results"]
    there = {name for name, package in of.items() if find_spec(package)}
    assert {r["case"] for r in results} == {
        f"others.{name}.{way}" for name in there for way in ("inference", "training")
    }
    assert all(r["value"] > 0 and r["fallbacks"] == 0 for r in results)


def test_the_table_names_ratios_rates_bars_and_verdicts(whole: Any) -> None:
    page, _, found = whole
    for text in (
        "of ceiling",
        "GB/s",
        "GFLOP/s",
        "<= 0.77 x",
        "Ceilings of this run: copy",
        "quick",
        "bars met",
    ):
        assert text in page, text
    for case, _ in found:
        assert case in page
    assert any(word in page for word in ("met", "missed"))


def test_attention_and_training_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    (grown,) = memory.attention(1, quick=True)
    assert grown.bar == 2.2 and 1.5 < grown.value < 4  # quadratic in this length: 4 with the scores
    peaks = memory.probe_training("gpt", quick=True)
    assert 0 < peaks["requested"] <= peaks["reserved"] and peaks["allocations"] > 50
    assert memory.probe_flat("12", quick=True).keys() == {"tenth", "last"}
    (flat,) = memory.flat(1, quick=True)  # in a process of its own
    assert flat.bar == 0 and flat.unit == "B" and flat.value >= 0
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="probe_flat.*failed in its own process"):
        memory.flat(1, quick=True)


def test_distributed() -> None:
    done = invoke("distributed", "--quick", "--repeat", 1, "--threads", 1, "--json")
    found = {r["case"]: r for r in json.loads(done.stdout)["results"]}
    one_host = {f"distributed.{case}" for case in distributed.BARS if not case.startswith("hosts.")}
    two_hosts = {f"distributed.{case}" for case in distributed.BARS} - one_host
    assert set(found) in (one_host, one_host | two_hosts)  # namespaces may be refused
    held, _ = (found.pop(f"distributed.fsdp.{bytes_of}") for bytes_of in ("held", "peak"))
    assert held["verdict"] == "met" and held["baseline_seconds"] is None  # bytes, the same in every run
    assert all(r["baseline_seconds"] > 0 for r in found.values())
    found.pop("distributed.ddp.exposed")  # a difference of two times
    assert all(r["maca_seconds"] > 0 for r in found.values())


def test_leak_and_import() -> None:
    done = invoke("leak", "import", "--quick", "--repeat", 1, "--threads", 1, "--json")
    assert done.exit_code == 0, done.output
    found = {r["case"]: r for r in json.loads(done.stdout)["results"]}
    assert set(found) == {"leak.signatures", "leak.launches", "leak.device", "import"}
    assert found["leak.device"]["value"] == 0


# The kernels of the diagnostics measure what they say.


def test_multiply_adds_take_the_time_of_their_number() -> None:
    from macatensor.dispatch.named_kernels import launch

    def seconds(repeat: int, operations: int) -> float:
        return ceilings_module._best(
            repeat, lambda: launch("arithmetic_peak", [], [], {"operations": operations})
        )

    # 1,024 times the work. The small one is done in 40 us; of a few such on a busy machine each may lose 4 ms to others.
    assert seconds(2, 1 << 32) > 8 * seconds(50, 1 << 22)
    with pytest.raises(Exception, match="1 operation or more"):
        launch("arithmetic_peak", [], [], {"operations": 0})


def test_without_multiply_adds_a_product_is_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def declines(*_: object) -> None:
        raise Declined("no such kernel")

    monkeypatch.setattr("macatensor.dispatch.named_kernels.launch", declines)
    found = ceilings.__wrapped__(1, True)
    assert found.multiply_add is None and found.arithmetic == (found.product, "product")
    assert Ceilings(1, 1, 5, 2).arithmetic == (5, "multiply-add")


@pytest.mark.parametrize("device", ["cpu", "maca"])
def test_decoding_writes_what_the_whole_context_gives(device: str) -> None:
    torch.manual_seed(1)
    model = GPT(GPTConfig(vocabulary=20, layers=2, width=32, heads=2, context=24)).eval().to(device)
    prompt = torch.randint(20, (2, 4)).to(device)
    written = generate(model, prompt, 24)
    assert written.shape == (2, 24) and torch.equal(written[:, :4], prompt)
    with torch.inference_mode():
        logits = model(written).cpu()
    best, chosen = logits.max(-1).values[:, 3:-1], logits[:, 3:-1].gather(-1, written[:, 4:, None].cpu())
    torch.testing.assert_close(chosen[..., 0], best)  # a tie may go either way


def test_residual_networks_have_torchvisions_sizes() -> None:
    with torch.device("meta"):
        counts = [sum(p.numel() for p in model().parameters()) for model in (resnet18, resnet50)]
    assert counts == [11_689_512, 25_557_032]


def test_baselines_compute_what_they_say() -> None:
    a, b = torch.rand(16), torch.rand(16)
    assert torch.equal((Delegate(a) + Delegate(b)).inner, a + b)
    floor = Floor((16,)) + Floor((16,))
    assert type(floor) is Floor and floor.shape == (16,) and floor.device.type == "maca"


def test_cases_may_keep_their_operands_layout() -> None:
    cases = {case.name: case for suite in kernels.SUITES.values() for case in suite(True)}
    q = cases["attention.forward.512"].make()[0]
    assert kernels._moved(q, True).is_contiguous() and not kernels._moved(q, False).is_contiguous()
    assert set(cases) == set(kernels.names())


def test_timing_is_by_round() -> None:
    timing = Timing({"ours": [2.0, 9.0, 4.0, 6.0], "theirs": [1.0, 3.0, 4.0, 1.0]})
    assert timing.ratio("ours", "theirs") == 2.5 and timing.spread("ours", "theirs") == (1.0, 6.0)
    assert timing.middle("ours", "theirs") == (2.0, 3.0) and quartiles([5.0]) == (5.0, 5.0)
    for found in (
        interleave({"x": lambda: None}, rounds=2, seconds=1e-5, settle=0),
        interleave_short({"x": lambda: None}, rounds=2, blocks=2, seconds=1e-5),
    ):
        assert len(found.rounds["x"]) == 2


def test_verdicts_and_what_is_stored_of_a_result() -> None:
    assert Result("a", "b", 1.0, 1.0).verdict == "met"
    assert Result("a", "b", 1.1, 1.0).verdict == "missed"
    assert Result("a", "b", 1.1, None).verdict == "report"
    assert Result("a", "b", 0.1, 1.0, fallbacks=1).verdict == "missed"
    assert Result("a", "native", 2.0, 1.05, is_at_ceiling=True).verdict == "met"
    made = Result("a", "native", 2.0, 1.05, spread=(1.0, 3.0), middle=(1.5, 2.5), rate=Rate(1e9, 2e9, "copy"))
    assert Result.of(json.loads(json.dumps(made.facts()))) == made and made.facts()["share"] == 0.5


def test_selection_and_words() -> None:
    assert runner.select([]) == list(runner.CASES)
    assert runner.select(["models.resnet18.t*"]) == ["models.resnet18.training"]
    assert runner.select(["models.gpt.*", "leak"]) == [
        "models.gpt.forward", "models.gpt.training", "models.gpt.decoding", "leak",
    ]  # fmt: skip
    assert set(runner.suites()) >= {*kernels.SUITES, "launch", "models", "memory"}
    assert all(
        name.startswith("norm") for name in runner.select(["norm"])
    )  # a suite, not a part of other names
    with pytest.raises(ValueError, match="no benchmark matches 'nothing'.*launch, pointwise"):
        runner.select(["nothing"])
    assert duration(1.5) == "1.5 s" and duration(0.0123) == "12.3 ms" and duration(4.2e-6) == "4.2 us"
    assert value(0.5, "x") == "0.50 x" and value(3 << 20, "B") == "3.0 MiB"


# Stored runs


def made(*results: Result, **facts: Any) -> stored.Run:
    described = SimpleNamespace(
        threads=2, rounds=7, quick=False, pytorch="2.13", simd="avx2", processor="X", cores=2
    )
    return stored.Run(results, device="host", **{**vars(described), **facts})


def near(case: str, ratio: float, spread: float = 0.01, **more: Any) -> Result:
    low, high = ratio * (1 - spread), ratio * (1 + spread)
    return Result(
        case, "native", ratio, 1.0, 1.0, ratio, spread=(low / 2, 2 * high), middle=(low, high), **more
    )


def written(folder: Path, name: str, run: stored.Run) -> Path:
    stored.save(run, folder / name)
    return folder / name


def test_compare_takes_both_runs_spread_into_account(tmp_path: Path) -> None:
    old = made(
        near("same", 0.9), near("noisy", 0.9, 0.2), near("worse", 0.9), near("better", 0.9), near("gone", 1)
    )
    new = made(
        near("same", 0.93), near("noisy", 1.1, 0.2), near("worse", 1.1), near("better", 0.5), near("added", 1)
    )
    paths = written(tmp_path, "old.json", old), written(tmp_path, "new.json", new)
    assert stored.load(paths[0]) == stored.Run(**{**vars(old), "results": list(old.results)})

    done = invoke("--load", paths[1], "--compare", paths[0], "--json")
    assert done.exit_code == 1, done.output
    said = json.loads(done.stdout)
    verdicts = {c["case"]: c["verdict"] for c in said["changes"]}
    assert verdicts == {"same": "same", "noisy": "same", "worse": "slower", "better": "faster"}
    assert said["slower"] == 1 and not said["passed"] and not said["differences"]
    assert said["only_old"] == ["gone"] and said["only_new"] == ["added"]
    (worse,) = (c for c in said["changes"] if c["case"] == "worse")
    assert worse["factor"] == pytest.approx(1.1 / 0.9) and worse["note"] == "the bar is missed now"
    assert invoke("--load", paths[1], "--compare", paths[0], "--tolerance", 0.3).exit_code == 0

    page = invoke("--load", paths[1], "--compare", paths[0]).stdout
    for text in (
        "1.222",
        "slower",
        "within the spread",
        "Only in the baseline: gone",
        "1 slower, 1 faster, 2 same",
    ):
        assert text in page, text
    assert invoke("--load", paths[1], "--compare", paths[1]).exit_code == 0


def test_compare_of_machines_is_by_ratio_only(tmp_path: Path) -> None:
    layouts = Result("conv", "native NHWC", 0.5, 1.0), Result("conv", "native NCHW", 0.5, 1.0)
    seconds = [Result("import", "torch", s, 1.0, unit="s") for s in (0.1, 0.4)]
    grown = [Result("leak", "launches", b, 10, unit="B") for b in (0, 4096)]
    old = made(layouts[0], seconds[0], grown[0], near("host", 0.5, fallbacks=0))
    new = made(layouts[1], seconds[1], grown[1], near("host", 0.5, fallbacks=3), processor="Y", threads=4)
    paths = written(tmp_path, "old.json", old), written(tmp_path, "new.json", new)
    done = invoke("--load", paths[1], "--compare", paths[0])
    assert done.exit_code == 1
    assert "processor differs: X there, Y here. Only ratios are compared." in done.stderr
    assert "threads differs: 2 there, 4 here" in done.stderr
    said = json.loads(invoke("--load", paths[1], "--compare", paths[0], "--json").stdout)
    assert {c["case"]: c["verdict"] for c in said["changes"]} == {
        "conv": "same", "import": "not compared", "leak": "slower", "host": "slower",
    }  # fmt: skip
    assert said["differences"] == {"processor": ["X", "Y"], "threads": [2, 4]}
    here = written(tmp_path, "here.json", made(seconds[1]))
    assert json.loads(invoke("--load", here, "--compare", paths[0], "--json").stdout)["slower"] == 1


def test_compare_measures_the_cases_of_its_baseline(whole: Any, tmp_path: Path) -> None:
    run = stored.load(whole[1])
    few = [r for r in run.results if r.case in ("gemm.float32.256", "index.sort", "pointwise.add.row")]
    path = written(tmp_path, "few.json", stored.Run(**{**vars(run), "results": few}))
    done = invoke("--compare", path, "--quick", "--repeat", 1, "--threads", 1, "--tolerance", 1e9, "--json")
    assert done.exit_code == 0, done.output
    assert [c["case"] for c in json.loads(done.stdout)["changes"]] == [r.case for r in few]


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "No such file"),
        ("{", "is not JSON"),
        ("[]", "has no schema; expected 'macatensor.bench/2'"),
        ('{"results": [], "passed": true}', "a run of an older version"),
        ('{"schema": "macatensor.bench/9"}', "schema 'macatensor.bench/9'"),
        (
            '{"schema": "macatensor.bench/2", "results": [{"case": "a"}]}',
            "results.0: expected the key 'baseline', 'value', 'bar' too",
        ),
        ('{"schema": "macatensor.bench/2", "results": []}', "is damaged: expected the key 'threads'"),
    ],
)
def test_files_that_are_no_run_are_refused(content: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    done = invoke("--compare", path, "gemm")
    assert done.exit_code == 2 and words in done.stderr and "x.json" in done.stderr


def test_runs_without_a_common_case_are_refused(tmp_path: Path) -> None:
    paths = [written(tmp_path, f"{name}.json", made(near(name, 1.0))) for name in ("here", "there")]
    done = invoke("--load", paths[0], "--compare", paths[1])
    assert done.exit_code == 2
    assert "no case in common: there there, here here" in done.stderr
    assert invoke("--load", paths[0], "nothing").exit_code == 2
    assert (
        invoke("gemm.batched", "--quick", "--save", tmp_path / "no" / "x.json").exit_code == 2
    )  # before measuring


# Pictures


def test_a_plot_of_sixty_cases_is_readable(tmp_path: Path) -> None:
    results = [
        near(f"suite{i // 20}.case{i}", 0.1 + i / 20, rate=Rate(i * 1e8, 5e9, "copy") if i % 2 else None)
        for i in range(60)
    ]
    run = written(tmp_path, "run.json", made(*results, Result("leak", "launches", 0, 0, unit="B")))
    done = invoke("--load", run, "--plot", tmp_path / "out.svg")
    assert done.exit_code == 1  # bars are missed
    assert "out.svg: 60 cases" in done.stderr
    picture = (tmp_path / "out.svg").read_text()
    assert "leak" not in picture and picture.count("<svg") == 1
    assert all(f"<!-- suite{i // 20}.case{i} -->" in picture for i in range(60))
    assert invoke("--load", run, "suite1", "--plot", tmp_path / "out.png").exit_code == 1
    head = (tmp_path / "out.png").read_bytes()[:24]
    assert head.startswith(b"\x89PNG") and int.from_bytes(head[16:20], "big") == 1320  # 11 inches


def test_plots_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = written(tmp_path, "run.json", made(near("a", 1.0)))
    for name, words in (("out.nothing", "accepted"), ("no/out.png", "there is no folder")):
        for measured_or_stored in (("gemm",), ("--load", run)):  # measured: refused before that
            done = invoke(*measured_or_stored, "--plot", tmp_path / name)
            assert done.exit_code == 2 and words in done.stderr
    none = written(tmp_path, "none.json", made(Result("leak", "launches", 0, 0, unit="B")))
    done = invoke("--load", none, "--plot", tmp_path / "out.png")
    assert done.exit_code == 2 and "no case of this run has a ratio" in done.stderr
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = invoke("gemm", "--plot", tmp_path / "out.png")  # refused before anything is measured
    assert done.exit_code == 2 and "macatensor[bench]" in done.stderr


def test_engines_that_are_absent_have_no_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("macatensor.bench.engines._NEEDED", {"onnxruntime": ("onnx", "not_installed_here")})
    assert engines(torch.nn.Linear(2, 2), torch.ones(1, 2)) == {}


def test_engines_that_compute_otherwise_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def maker(path: Path, x: torch.Tensor) -> Any:
        made.append(path.exists())
        return lambda: x.numpy() * 0 + 7

    monkeypatch.setattr("macatensor.bench.engines._NEEDED", {"onnxruntime": ("onnx", "onnxscript")})
    monkeypatch.setattr("macatensor.bench.engines._MAKERS", {"onnxruntime": maker})
    with pytest.raises(RuntimeError, match="onnxruntime is .* from PyTorch"):
        engines(torch.nn.Linear(2, 2), torch.ones(1, 2))
    assert made == [True]


def test_plain_algorithms_need_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_algorithms.compiled.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    done = invoke("serving", "--quick", "--repeat", 1, "--threads", 1, "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["results"] == []
    assert "serving.paged_attention: not measured" in done.stderr and "no-such-compiler" in done.stderr


def test_plain_algorithms_that_compute_otherwise_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_algorithms, "paged_attention", lambda query, *_: query * 7)
    with pytest.raises(AssertionError, match="serving.paged_attention: .*not close"):
        runner.CASES["serving.paged_attention"](1, True)
