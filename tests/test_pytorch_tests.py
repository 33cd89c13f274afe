"""PyTorch's own tests as tasks: what passes, fails, crashes or has nothing to say of the device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from macatensor.cli import app
from macatensor.examination import expectations, pytorch_tests
from macatensor.examination.expectations import Expectation, Reason
from macatensor.examination.task import Answer, Task

RUNNER = CliRunner()

MODULE = """
import os
import torch
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests, onlyCPU, onlyCUDA
from torch.testing._internal.common_utils import TestCase, skipIfGoneSince

class TestSmall(TestCase):
    @skipIfGoneSince
    @dtypes(torch.float32, torch.int64)
    def test_sum(self, device, dtype):
        self.assertEqual(torch.ones(3, device=device, dtype=dtype).sum().item(), 3)

    def test_device_is_the_cpu(self, device):
        self.assertEqual(torch.ones(2, device=device).device.type, "cpu")

    def test_fails_everywhere(self, device):
        self.fail()

    def test_ends_the_process(self, device):
        if device != "cpu":
            os._exit(3)

    @onlyCPU
    def test_host(self, device):
        pass

    @onlyCUDA
    def test_marked(self, device):
        self.assertEqual(torch.device(device).type, "maca")

    @onlyCUDA
    def test_names_cuda(self, device):
        self.assertEqual(torch.ones(2, device=device).cuda().sum(), 2)

    def test_strided_rows(self, device):
        torch.nested.nested_tensor([torch.ones(2, device=device), torch.ones(3, device=device)])

    def test_strided_rows_after_an_error(self, device):
        if device == "cpu":
            return
        try:
            raise RuntimeError("the first")
        except RuntimeError:
            torch.nested.nested_tensor([torch.ones(2, device=device), torch.ones(3, device=device)])

    def test_kernel_of_convolution(self, device):
        def chosen(device):
            x, weight = torch.ones(1, 1, 4, 4, device=device), torch.ones(1, 1, 3, 3, device=device)
            return torch._C._select_conv_backend(x, weight, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)

        self.assertEqual(chosen(device), chosen("cpu"))
        self.assertTrue(chosen(device) != torch._C._ConvBackend.Empty)

    def test_sparse(self, device):
        self.fail()

instantiate_device_type_tests(TestSmall, globals())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_view_ops.py").write_text(MODULE)
    return tmp_path


def test_each_outcome_is_told(folder: Path) -> None:
    tasks = pytorch_tests.tasks(folder, ["test_view_ops.py"])
    answers = list(pytorch_tests.answers(folder, tasks, workers=1))
    assert {a.task.entry.removeprefix("TestSmall::test_"): a.outcome for a in answers} == {
        "sum_float32": "pass",
        "sum_int64": "pass",
        "device_is_the_cpu": "fail",
        "fails_everywhere": "empty",
        "ends_the_process": "crash",
        "host": "empty",
        "marked": "pass",
        "kernel_of_convolution": "pass",
        "names_cuda": "empty",
        "strided_rows": "empty",  # refused by name
        "strided_rows_after_an_error": "empty",
    }
    details = {a.task.entry: a.detail for a in answers}
    assert "AssertionError" in details["TestSmall::test_device_is_the_cpu"]
    assert [(r.name, r.passed, r.asked) for r in pytorch_tests.rates(answers)] == [
        ("test_view_ops.py", 4, 6),
        ("all", 4, 6),
        ("all but 0 apart", 4, 6),
    ]


def test_failures_that_are_apart_are_counted_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = {"sparse": Reason.LAYOUT, "rounding": Reason.ROUNDING}
    lines = [Expectation("suite", f"Test::test_{n}", "*", reason, "so") for n, reason in reasons.items()]
    monkeypatch.setattr(expectations, "expectations", lambda: tuple(lines))
    answers = [
        Answer(Task("suite", "test_a.py", f"Test::test_{name}", ""), outcome)
        for name, outcome in (("sparse", "fail"), ("rounding", "fail"), ("good", "pass"))
    ]
    counted = [(r.name, r.passed, r.asked) for r in pytorch_tests.rates(answers)]
    assert counted == [("test_a.py", 1, 3), ("all", 1, 3), ("all but 1 apart", 1, 2)]


def test_folder_without_tests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="test_view_ops.py"):
        pytorch_tests.test_folder(tmp_path)


def test_file_that_fails_is_named(folder: Path) -> None:
    (folder / "test_broken.py").write_text("import nothing_of_this_name")
    with pytest.raises(ValueError, match="test_broken.py cannot be imported: ModuleNotFoundError"):
        pytorch_tests.tasks(folder, ["test_broken.py"])
    with pytest.raises(ValueError, match="holds no test_missing.py"):
        pytorch_tests.tasks(folder, ["test_missing.py"])


def test_command_prints_a_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch_tests, "FILES", ("test_view_ops.py",))
    monkeypatch.chdir(folder)  # answers are kept below
    command = ["opinfo", "--pytorch-tests", str(folder)]
    passing = RUNNER.invoke(app, [*command, "*sum_*"])
    assert passing.exit_code == 0
    assert "100.00%" in passing.output
    failing = RUNNER.invoke(app, [*command, "*cpu", "--json"])
    assert failing.exit_code == 1
    assert json.loads(failing.stdout)[0]["verdict"] == "fail"
    assert RUNNER.invoke(app, [*command, "nothing"]).exit_code == 2
    assert RUNNER.invoke(app, [*command, "--short"]).exit_code == 2
