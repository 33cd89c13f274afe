"""The demo with tiny budgets: data, training, report. The whole of it is `make demo`."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import macatensor
from macatensor.cli import app
from macatensor.demo import digits, main, page, text
from macatensor.demo.models import GPT, GPTConfig, digits_resnet, resnet18
from macatensor.demo.plots import smoothed
from macatensor.demo.training import Training
from macatensor.parity.step import OpRecord

SMALL = GPTConfig(len(text.ALPHABET), layers=1, width=32, heads=2, context=16)


def test_digits_are_split_by_seed_and_scaled() -> None:
    x, y, x_test, y_test = digits.load(0)
    assert x.shape == (1437, 3, 8, 8) and x_test.shape == (360, 3, 8, 8)
    assert x.min() == -1 and x.max() == 1
    assert torch.equal(digits.load(0)[3], y_test) and not torch.equal(digits.load(1)[3], y_test)


def test_resnet_learns_digits_on_maca_without_fallback() -> None:
    with macatensor.fallback("error"):
        run = digits.train("maca", epochs=4, bar=0.9)
    assert run.met and run.value >= 0.9
    assert run.losses[-1][1] < run.losses[0][1]


def test_training_is_decided_by_the_seed() -> None:
    first = digits.train("maca", seed=3, epochs=1, bar=2.0)
    again = digits.train("maca", seed=3, epochs=1, bar=2.0)
    assert first.losses == again.losses and first.metrics == again.metrics


def test_corpus_is_the_standard_library() -> None:
    training, validation, modules = text.corpus()
    assert modules > 100 and len(training) > 2_000_000 and len(validation) > 100_000
    assert 0 <= int(training.min()) and int(training.max()) < len(text.ALPHABET)


def test_gpt_learns_text_on_maca_without_fallback() -> None:
    with macatensor.fallback("error"):
        run = text.train("maca", steps=30, bar=0.0, every=15, config=SMALL)
    assert run.metrics[-1][1] < math.log(len(text.ALPHABET)) - 0.3
    assert [s for s, _ in run.metrics] == [15, 30]
    assert run.sample.startswith("def ") and len(run.sample) == 244


def test_gpt_attention_is_causal() -> None:
    torch.manual_seed(0)
    model = GPT(SMALL).to("maca").eval()
    tokens = torch.randint(len(text.ALPHABET), (1, 16))
    other = tokens.clone()
    other[0, 10:] = 0
    with torch.inference_mode():
        first, second = model(tokens.to("maca")).cpu(), model(other.to("maca")).cpu()
    assert torch.equal(first[:, :10], second[:, :10]) and not torch.equal(first, second)


def test_models_have_the_sizes_of_the_papers() -> None:
    assert sum(p.numel() for p in resnet18().parameters()) == 11_689_512
    assert sum(p.numel() for p in digits_resnet().parameters()) < 100_000


@pytest.fixture(scope="module")
def found() -> main.Demo:
    return main.run(budget=main.Budget(epochs=1, accuracy=0.0, steps=4, loss=10.0, every=2))


def test_demo_checks_a_step_of_each_model(found: main.Demo) -> None:
    assert found.fallbacks == {}
    assert [len(records) > 5 for records in found.parity] == [True, True]
    assert found.failures == []
    convolutions = [r for r in found.parity[0] if r.op.startswith("convolution")]
    assert {r.op for r in convolutions} == {"convolution", "convolution_backward"}
    assert {r.layout_in for r in convolutions} == {"NHWC"}


def test_report_stands_alone(found: main.Demo, tmp_path: Path) -> None:
    path = page.write(found, tmp_path / "deep" / "report.html")
    html = path.read_text(encoding="utf-8")
    assert html.count("<svg") == 6
    assert "convolution_backward" in html and "validation loss" in html
    for outside in ("<link", "src=", "@import"):
        assert outside not in html
    json.dumps(main.facts(found, path))


def passing(records: list[OpRecord]) -> list[OpRecord]:
    return [r for r in records if not r.verdict.startswith("FAIL")]


def test_failures_say_which_bar(found: main.Demo) -> None:
    training = Training("ResNet", "test accuracy", 0.97, True, metrics=[(1, 0.5)])
    failing = main.Demo([training], [passing(found.parity[0])], {"aten.erf.default": 3})
    assert [f.split(":")[0] for f in failing.failures] == ["ResNet", "operators that ran on the host"]


def test_command_prints_tables_and_exits_by_the_bars(
    found: main.Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dataclasses.replace(found, parity=[passing(records) for records in found.parity], fallbacks={})
    monkeypatch.setattr(main, "run", lambda *a, **k: found)
    result = CliRunner().invoke(app, ["demo", "--output", str(tmp_path / "r.html")])
    assert result.exit_code == 0, result.output
    assert "fell back to the host: 0" in result.output and "r.html" in result.output
    result = CliRunner().invoke(app, ["demo", "--json", "--output", str(tmp_path / "r.html")])
    assert json.loads(result.stdout)["passed"] is True
    found.fallbacks["aten.erf.default"] = 1
    assert CliRunner().invoke(app, ["demo", "--output", str(tmp_path / "r.html")]).exit_code == 1


def test_small_things() -> None:
    assert smoothed([2.0, 2.0, 2.0]) == pytest.approx([2.0, 2.0, 2.0])
    assert page.error_text(None) == "" and page.error_text(0.0) == "0" and page.error_text(3e-7) == "3.0e-07"
    assert text.learning_rate(0, 1000) < text.learning_rate(49, 1000) > text.learning_rate(999, 1000)
