"""Programs without a fault: neither bisecting nor parity nor a report of two runs finds one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from clean_programs import PROGRAMS

from macatensor import accuracy
from macatensor.accuracy.comparison.report import make_report


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_operator_breaks_its_bound(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    found = accuracy.bisect(lambda: PROGRAMS[name]("maca"), output_dir=tmp_path)
    assert found.finding is None, str(found)
    assert found.calls > 5
    torch.manual_seed(1)
    errors = accuracy.parity(lambda: PROGRAMS[name]("maca"))
    assert not errors.failures, errors.failures


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_runs_have_no_error(name: str, tmp_path: Path) -> None:
    for device in ("cpu", "maca"):
        torch.manual_seed(0)
        with accuracy.record(tmp_path / device, record_level=2):
            PROGRAMS[name](device)
    report = make_report(tmp_path / "cpu", tmp_path / "maca", tmp_path)
    assert report.verdict != "error", report.first
