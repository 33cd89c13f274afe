"""Mistakes of a program, not of an operator: the report of two runs says so in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from macatensor import accuracy
from macatensor.accuracy.comparison.report import Report, make_report, summary


def _program(device: str, mistake: str = "") -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm1d) and norm.running_mean is not None
    for step in range(3):
        x, y = torch.randn(12, 8).to(device), torch.randint(0, 4, (12,)).to(device)
        if mistake != "zero_grad":
            optimizer.zero_grad()
        if mistake == "buffer":
            norm.running_mean.add_(0.5)
        if mistake == "input":
            x.mul_(1.01)
        model.train(mistake != "eval" or step == 0)
        loss = nn.functional.cross_entropy(model(x), y)
        if mistake == "scale":
            loss = loss * 2
        loss.backward()
        if mistake == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


def _report(folder: Path, mistake: str) -> Report:
    for device, made in (("cpu", ""), ("maca", mistake)):
        with accuracy.record(folder / device, record_level=1):
            _program(device, made)
    return make_report(folder / "cpu", folder / "maca", folder)


LINES = {"buffer": "Tensor.add_", "input": "Tensor.mul_", "scale": "Tensor.mul", "clip": "_foreach_norm"}


@pytest.mark.parametrize("mistake", LINES)
def test_a_line_of_one_run_is_named(mistake: str, tmp_path: Path) -> None:
    (note,) = _report(tmp_path, mistake).comparison.notes
    assert note.startswith("only run 1 has calls at test_accuracy_mistakes.py:")
    assert LINES[mistake] in note


def test_a_forgotten_zero_grad_is_an_error(tmp_path: Path) -> None:
    report = _report(tmp_path, "zero_grad")
    assert report.verdict == "error"
    assert report.first is not None
    assert "AccumulateGrad" in report.first.call.name
    assert "was zero_grad() called in both runs?" in report.first.judged.rule


def test_another_flag_is_named(tmp_path: Path) -> None:
    (note,) = _report(tmp_path, "eval").comparison.notes
    assert "batch_norm" in note
    assert "training: True against False, at test_accuracy_mistakes.py:" in note


def test_the_same_program_has_no_mistake(tmp_path: Path) -> None:
    report = _report(tmp_path, "")
    assert not report.comparison.notes
    assert report.verdict != "error"


def test_a_report_prints_as_its_summary(tmp_path: Path) -> None:
    report = _report(tmp_path, "scale")
    assert repr(report) == str(report) == summary(report)
    assert len(repr(report)) < 3000
