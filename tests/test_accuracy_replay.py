"""Recorded operators run again on a device, judged against float64 and against what was recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from macatensor import accuracy
from macatensor.cli import app


def recorded(folder: Path, device: str, level: int = 2) -> Path:
    from macatensor.accuracy import record

    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Flatten(),
        torch.nn.Linear(4 * 36, 5),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.rand(2, 3, 8, 8).to(device), torch.tensor([0, 1]).to(device)
    with record(output_dir=str(folder), record_level=level):
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        torch.cat([y, y]).sum()
    return folder


@pytest.mark.parametrize("here, there", [("maca", "maca"), ("cpu", "maca"), ("maca", "cpu"), ("cpu", "cpu")])
def test_a_training_step_is_replayed(here: str, there: str, tmp_path: Path) -> None:
    report = accuracy.replay(recorded(tmp_path, here), device=there)
    assert not report.failures, str(report)
    done = {c.op: c for c in report.calls if c.verdict == "pass"}
    assert {"aten.convolution.default", "aten.native_batch_norm.default", "aten.cat.default"} <= set(done)
    assert any("backward" in op for op in done) and any(c.name.endswith(".bwd") for c in done.values())
    if here == there:
        assert all(c.recorded == "the same bits" for c in report.calls if c.verdict == "pass"), str(report)
    else:
        assert done["aten.convolution.default"].recorded in ("pass", "the same bits")
    # dropout's generator state is recorded: the same numbers on the same device, none on another
    drawn = [c for c in report.calls if "dropout.default" in c.op or "bernoulli" in c.op]
    assert drawn and all((c.verdict == "pass") == (here == there) for c in drawn), str(report)
    assert all(why for why in report.not_replayed.values())


def changed(folder: Path, op: str) -> None:
    """Adds one to the recorded result of an operator."""
    from safetensors.torch import load_file, save_file

    process = next(folder.glob("**/process-*"))
    for line in (process / "calls.jsonl").read_text().splitlines():
        call = json.loads(line).get("call")
        if call and call["op"] == op:
            entry = call["outputs"][0]["tensor"]
            tensors = load_file(process / entry["file"])
            tensors[entry["key"]] += 1
            save_file(tensors, process / entry["file"])
            return
    raise AssertionError(f"no {op} in the record")


def test_a_wrong_recorded_result_is_found(tmp_path: Path) -> None:
    changed(recorded(tmp_path, "cpu"), "aten.addmm.default")
    report = accuracy.replay(tmp_path)
    wrong = [c for c in report.failures if c.op == "aten.addmm.default"]
    assert len(wrong) == 1 and wrong[0].verdict == "pass" and wrong[0].recorded.startswith("FAIL: ")
    assert wrong[0].recorded_share > 1 > wrong[0].share and any(__file__ in frame for frame in wrong[0].stack)
    result = CliRunner().invoke(app, ["accuracy", "replay", str(tmp_path), "--json"])
    assert result.exit_code == 1
    said = json.loads(result.stdout)
    assert said["device"] == "maca" and len(said["calls"]) == len(report.calls)
    assert "wrong" in CliRunner().invoke(app, ["accuracy", "replay", str(tmp_path), "--device", "cpu"]).stdout


def test_records_that_cannot_be_replayed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no record"):
        accuracy.replay(tmp_path)
    recorded(tmp_path, "cpu", level=1)
    with pytest.raises(ValueError, match="holds no whole tensors .*record_level=2"):
        accuracy.replay(tmp_path)
    with pytest.raises(ValueError, match="accepted: maca, cuda, cpu"):
        accuracy.replay(tmp_path, device="x")
    result = CliRunner().invoke(app, ["accuracy", "replay", str(tmp_path / "none")])
    assert result.exit_code == 2


def test_a_damaged_file_is_one_operators_reason(tmp_path: Path) -> None:
    recorded(tmp_path, "cpu")
    files = sorted(tmp_path.glob("**/tensors/*.safetensors"))
    files[0].write_bytes(b"not a tensor")
    report = accuracy.replay(tmp_path)
    assert any("cannot read" in c.verdict for c in report.calls)
    assert any(c.verdict == "pass" for c in report.calls)
    for file in files:
        file.unlink()
    with pytest.raises(ValueError, match="none of the .* could be replayed; .*cannot read"):
        accuracy.replay(tmp_path)
    assert CliRunner().invoke(app, ["accuracy", "replay", str(tmp_path)]).exit_code == 2


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"5\n{}\n", b'{"call": {"strange": 1}}\n{}\n', b'{"stack": 1}\n{}\n']
)
def test_calls_that_are_no_record_are_named(content: bytes, tmp_path: Path) -> None:
    recorded(tmp_path, "cpu")
    (calls,) = tmp_path.glob("**/calls.jsonl")
    calls.write_bytes(content)
    with pytest.raises(ValueError, match=f"accuracy: {calls.parent}"):
        accuracy.replay(tmp_path)


def test_a_file_for_a_folder_is_refused_first(tmp_path: Path) -> None:
    recorded(tmp_path / "a", "cpu")
    recorded(tmp_path / "b", "cpu")
    file, ran = tmp_path / "file", []
    file.write_text("")
    for place in (file, file / "below"):
        for call in (
            lambda place: accuracy.bisect(lambda: ran.append(1), output_dir=place),
            lambda place: accuracy.gen_report(tmp_path / "a", tmp_path / "b", output_dir=place),
            lambda place: recorded(place, "cpu"),
        ):
            with pytest.raises(ValueError, match=f"cannot be a folder: {file} is a file"):
                call(place)
    assert not ran
