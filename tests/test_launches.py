"""What is launched, and which algorithm the library chose, as users and reports see it."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import torch
from test_abi import CONTROLS, through
from typer.testing import CliRunner

import macatensor
from macatensor import accuracy, maca
from macatensor.cli import app


def test_launches_are_listed_with_their_implementation() -> None:
    a, b = maca(torch.rand(64, 64)), maca(torch.rand(64, 64))
    with macatensor.launches() as made:
        (a @ b).tanh()
        with macatensor.launches() as inner:
            a.add_(1)
    a + b
    assert [launch.operator for launch in made] == [
        "aten.mm.default",
        "aten.tanh.default",
        "aten.add_.Tensor",
    ]
    assert [launch.kernel for launch in made] == ["mm", "tanh", "add"] and inner == made[2:]
    assert made[0].implementation not in ("", "host")  # which product


def test_backward_on_another_thread_is_listed() -> None:
    x = maca(torch.rand(4)).requires_grad_()
    with macatensor.launches() as made:
        x.tanh().sum().backward()
    assert "tanh_backward" in [launch.kernel for launch in made]


def test_the_command_shows_what_is_chosen() -> None:
    done = CliRunner().invoke(app, ["ops", "mm", "--implementation", "--json"])
    found = json.loads(done.stdout)
    assert {f["row"] for f in found} >= {"mm", "addmm"} and all(
        f["calls"] > 0 and f["example"] for f in found
    )
    assert all(f["implementation"] for f in found if f["row"] == "mm")
    printed = CliRunner().invoke(app, ["ops", "tanh*", "--implementation"])
    assert printed.exit_code == 0 and "tanh_backward" in printed.output


def test_reports_name_the_implementation(interposer: Path) -> None:
    code = """
    from macatensor import accuracy
    spy.interposer_fault(b"matmul_transposed")
    a, b = maca(torch.rand(8, 8)), maca(torch.rand(8, 8))
    finding = accuracy.bisect(lambda: a @ b).finding
    assert finding.op == "mm" and finding.implementation, finding
    assert f"the library's implementation: {finding.implementation}" in str(finding)
    errors = accuracy.parity(lambda: a @ b)
    assert errors.first.implementation and f"by {errors.first.implementation}" in str(errors), errors
    assert errors.first.implementation in errors._repr_html_()
    """
    through(interposer, CONTROLS + textwrap.dedent(code))


def test_a_clean_report_has_implementations_too() -> None:
    a = maca(torch.rand(8, 8))
    errors = accuracy.parity(lambda: a @ a)
    assert errors.as_dicts()[0]["implementation"]
