"""Which calls a record holds: ``op_range``, ``op_list``, ``skip``, and arguments in mcPyTorch's order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accuracy_records import calls_of, named
from torch import nn

from macatensor import accuracy

DEVICES = ("cpu", "maca")


def test_arguments_in_the_order_of_mcpytorch(tmp_path: Path) -> None:
    with accuracy.record(True, str(tmp_path / "a"), 1) as session:
        torch.ones(2).relu()
    assert session.settings.record_level == 1 and session.folder.parent == tmp_path / "a"
    with accuracy.record(False, str(tmp_path / "b")) as session:
        torch.ones(2).relu()
    assert not session.enabled
    with pytest.raises(TypeError, match="by name"), accuracy.record(str(tmp_path), str(tmp_path)):
        pass


def test_an_op_list_without_calls_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match=r"no call was of op_list \['tanh'\]"),
        accuracy.record(tmp_path, op_list=["tanh"]),
    ):
        torch.ones(2).relu()


def test_op_range_is_half_open(tmp_path: Path) -> None:
    x = torch.ones(3)

    def run(**options: Any) -> list[str]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        with accuracy.record(folder, record_level=0, **options):
            torch.relu(x)
            torch.tanh(x)
            torch.relu(x)
            torch.sigmoid(x)
        return [c.name for c in calls_of(folder) if c.level == "api"]

    everything = ["torch.relu.0.fwd", "torch.tanh.0.fwd", "torch.relu.1.fwd", "torch.sigmoid.0.fwd"]
    assert run() == everything
    assert run(op_range=["torch.tanh.0.fwd", "torch.sigmoid.0.fwd"]) == everything[1:3]
    assert run(op_range=["torch.tanh.0.fwd", None]) == everything[1:]
    assert run(op_range=[None, "torch.relu.1.fwd"]) == everything[:2]
    with pytest.raises(ValueError, match=r"torch.relu.7.fwd.*the nearest: torch.relu"):
        run(op_range=["torch.relu.7.fwd", None])
    with pytest.raises(ValueError, match=r"no 'torch.reluu'.*torch.relu"):
        run(op_range=["torch.reluu.7.fwd", None])
    with pytest.raises(ValueError, match="names no call"):
        run(op_range=["torch.relu", None])
    with pytest.raises(ValueError, match="holds no call"):
        run(op_range=["torch.relu.0.fwd", "torch.relu.0.fwd"])


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_of_maca_tools_count_every_operator(device: str, tmp_path: Path) -> None:
    from macatensor.maca_tools import accuracy as theirs

    assert theirs.bisect is accuracy.bisect and set(theirs.__all__) <= set(dir(theirs))
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU()).to(device)
    x = torch.ones(1, 2, device=device)

    def run(*op_range: str | None) -> list[str]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        with theirs.record(True, str(folder), 0, op_range=list(op_range)):
            torch.tanh(model(x)).sum().backward()
        return [c.name for c in calls_of(folder) if c.level == "api" and "torch.nn.functional" not in c.name]

    # Linear 0, ReLU 1, Linear 2, ReLU 3, tanh 4, sum 5, backward 6; what runs within a ReLU has its number
    assert run("torch.nn.Linear.2.fwd", "torch.tanh.4.fwd") == [
        "torch.nn.Linear.1.fwd",
        "torch.nn.ReLU.1.fwd",
    ]
    assert run("torch.nn.ReLU.3.fwd", "torch.Tensor.sum.5.fwd") == ["torch.nn.ReLU.1.fwd", "torch.tanh.0.fwd"]
    assert run("torch.nn.functional.relu.3.fwd", "torch.tanh.4.fwd") == []
    backward = [c for c in run("torch.tanh.4.bwd", "torch.nn.ReLU.1.bwd") if "AccumulateGrad" not in c]
    assert backward == ["torch.tanh.0.bwd", "torch.nn.ReLU.1.bwd", "torch.nn.Linear.1.bwd"]
    with pytest.raises(ValueError, match=r"torch.nn.Linear.1.fwd.*not called.*torch.nn.Linear.2.fwd"):
        run("torch.nn.Linear.1.fwd", None)
    with pytest.raises(ValueError, match="numbering is 'operator' or 'execution'"):
        accuracy.start_record(output_dir=tmp_path, numbering="order")  # type: ignore[arg-type]


@pytest.mark.parametrize("device", DEVICES)
def test_op_list_by_kind_and_by_name(device: str, tmp_path: Path) -> None:
    x = torch.randn(3, requires_grad=True)
    m = nn.ReLU().to(device)

    def program() -> None:
        y = x.to(device)
        z = torch.relu(y) + y.relu() + F.relu(y) + m(y) + (y * 1).relu_()
        torch.tanh(z).sum().backward()

    with accuracy.record(tmp_path / "kind", record_level=1, op_list=["relu"]):
        program()
    calls = calls_of(tmp_path / "kind")
    api = {c.name for c in calls if c.level == "api"}
    for name in ("torch.relu.0", "torch.Tensor.relu.0", "torch.nn.functional.relu.0", "torch.nn.ReLU.0"):
        assert {f"{name}.fwd", f"{name}.bwd"} <= api
    assert "torch.Tensor.relu_.0.fwd" in api and not any("tanh" in n or "add" in n for n in api)
    aten = {c.op.split(".")[1] for c in calls if c.level == "aten"}
    assert {"relu", "relu_", "threshold_backward"} <= aten and not aten & {"tanh", "sum"}

    with accuracy.record(tmp_path / "name", record_level=1, op_list=["torch.tanh", "aten.add.Tensor"]):
        program()
    assert {c.op for c in calls_of(tmp_path / "name") if c.direction == "fwd"} == {
        "torch.tanh", "aten.tanh.default", "aten.detach.default", "aten.add.Tensor",
    }  # fmt: skip
    with pytest.raises(ValueError, match="no 'torch.reluu'"):
        accuracy.start_record(output_dir=tmp_path, op_list=["torch.reluu"])


def test_skip_takes_inputs_and_outputs_together(tmp_path: Path) -> None:
    x = torch.ones(3)
    with accuracy.record(tmp_path, record_level=0, skip=1):
        for _ in range(4):
            torch.relu(x)
    calls = calls_of(tmp_path)
    assert [c.name for c in calls if c.level == "api"] == ["torch.relu.0.fwd", "torch.relu.2.fwd"]
    assert [c.name for c in calls if c.level == "aten"] == ["aten.relu.0.fwd", "aten.relu.2.fwd"]
    assert all(c.inputs and c.outputs for c in calls)


def test_inputs_outputs_and_stacks_can_be_left_out(tmp_path: Path) -> None:
    options = {"record_stack": False, "record_input": False, "record_output": False}
    for name in options:
        with accuracy.record(tmp_path / name, record_level=0, **{name: False}):
            torch.relu(torch.ones(3))
    call = {name: named(calls_of(tmp_path / name), "torch.relu.0.fwd") for name in options}
    assert call["record_stack"].stack is None and call["record_input"].stack is not None
    assert not call["record_input"].inputs and call["record_input"].outputs
    assert not call["record_output"].outputs and call["record_output"].inputs
