"""The report of a device: each section is asked, what ends badly is said, and the file is there after each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from macatensor.bench.device import report
from macatensor.cli import app
from macatensor.device.properties import library_info

_LIBRARY = Path(str(library_info()["path"]))


def test_every_section_finds_what_it_is_for(tmp_path: Path) -> None:
    to = tmp_path / "report.json"
    done = CliRunner().invoke(app, ["bench", "--quick", "--device-report", str(to), "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(to.read_text())
    assert json.loads(done.stdout) == facts and facts["quick"]
    found = {name: section["found"] for name, section in facts["sections"].items()}
    assert found["library"]["kernel_count"] > 100
    assert all(line["verdict"] in ("pass", "n/a", "declined") for line in found["rules"]["lines"])
    steps = found["steps"]
    assert steps["on the host"] == {}
    for name in ("ResNet-50, bfloat16", "GPT, float32", "LSTM, float32"):
        assert 0 < steps[name] and 0 < steps[f"{name}, replayed"], steps
    assert not found["bandwidth"]["wrong"] and not found["products"]["wrong"]
    assert {row["verdict"] for row in found["rows"]} == {"pass"}
    assert {answer["verdict"] for answer in found["operators"]} <= {"pass", "empty", "xfail"}


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("import os; print('last words', flush=True); os.abort()", -6, "last words"),
        ("import time; print('waiting', flush=True); time.sleep(60)", None, "waiting"),
        ("raise SystemExit('no device')", 1, "no device"),
    ],
    ids=["crash", "hang", "refusal"],
)
def test_what_ends_badly_is_told(program: str, status: int | None, said: str) -> None:
    section = report.Section("bad", lambda _: ["-c", program], 0.05)
    result = report.run(section, _LIBRARY, quick=True)
    assert result["status"] == status and result["found"] is None
    assert said in str(result["said"])
