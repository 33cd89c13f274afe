"""What a record holds: names, levels, selection, forward and backward, on CPU and maca alike."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accuracy_records import at, calls_of, named
from running import threads_restored
from torch import nn
from torch import relu as imported_relu

from macatensor import accuracy, counters
from macatensor.accuracy.records import Process, read

DEVICES = ("cpu", "maca")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 3)
        self.act = nn.ReLU()
        self.head = nn.Linear(18, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.act(self.conv(x))
        return {"logits": self.head(y.flatten(1)), "hidden": y}


def step(device: str) -> float:
    torch.manual_seed(0)
    model = Net().to(device)
    x = torch.randn(2, 2, 8).to(device)
    loss = F.cross_entropy(model(x)["logits"], torch.tensor([1, 2]).to(device))
    loss.backward()
    assert model.conv.weight.grad is not None
    return float(loss)


@pytest.mark.parametrize("device", DEVICES)
def test_forward_and_backward_at_both_levels(device: str, tmp_path: Path) -> None:
    with accuracy.record(tmp_path, record_level=1):
        step(device)
    calls = calls_of(tmp_path)
    conv, function = named(calls, "torch.nn.Conv1d.0.fwd"), named(calls, "torch.nn.functional.conv1d.0.fwd")
    assert conv.module == "conv" and function.module == "conv" and function.parent == conv.number
    aten = named(calls, "aten.convolution.0.fwd")
    assert aten.parent == function.number and aten.op == "aten.convolution.default"
    assert at(conv.outputs, "0").tensor.hash == at(aten.outputs, "0").tensor.hash
    model = named(calls, "Net.0.fwd") if any(c.name == "Net.0.fwd" for c in calls) else None
    model = model or next(c for c in calls if c.op.endswith(".Net"))
    assert model.module == "" and {a.place for a in model.outputs} == {"logits", "hidden"}
    # dataflow: who made the input
    act = named(calls, "torch.nn.ReLU.0.fwd")
    assert at(act.inputs, "0").tensor.made_by == conv.number
    # backward: tied to its forward call and its stack
    back = named(calls, "torch.nn.Conv1d.0.bwd")
    assert back.forward == conv.number and back.stack == conv.stack and back.module == "conv"
    assert {a.place for a in back.outputs} == {"weight", "bias"}
    below = named(calls, "aten.convolution_backward.0.bwd")
    assert below.forward == aten.number and below.node == "ConvolutionBackward0" and below.stack == aten.stack
    assert below.parent == named(calls, "torch.nn.functional.conv1d.0.bwd").number
    gradients = {c.module: c for c in calls if c.op == "torch.autograd.AccumulateGrad"}
    assert set(gradients) == {"conv.weight", "conv.bias", "head.weight", "head.bias"}
    assert at(gradients["conv.weight"].outputs, "grad").tensor.hash == at(back.outputs, "weight").tensor.hash
    stacks = read(tmp_path).processes[0].stacks
    assert conv.stack is not None and any(
        "test_accuracy_record.py" in f and " forward" in f for f in stacks[conv.stack]
    )
    if device == "maca":
        assert at(conv.outputs, "0").tensor.device == "maca:0"


@pytest.mark.parametrize("device", DEVICES)
def test_levels(device: str, tmp_path: Path) -> None:
    x = torch.tensor([[1.0, math.nan, 3.0], [-math.inf, 2.0, 2.0]]).to(device)
    for level in (0, 1, 2):
        with accuracy.record(tmp_path / str(level), record_level=level):
            x.t() + 1
    tensors = [
        at(named(calls_of(tmp_path / str(n)), "torch.Tensor.add.0.fwd").inputs, "0").tensor for n in (0, 1, 2)
    ]
    for entry in tensors:
        assert (entry.dtype, entry.shape, entry.stride) == ("float32", [3, 2], [1, 3])
    assert tensors[0].hash is None and tensors[0].file is None
    for entry in tensors[1:]:
        assert (entry.min, entry.max, entry.mean, entry.nan, entry.inf) == (1.0, 3.0, 2.0, 1, 1)
        assert entry.norm == pytest.approx(math.sqrt(1 + 9 + 4 + 4)) and len(entry.hash) == 16
    assert tensors[1].file is None
    held = read(tmp_path / "2").processes[0].tensor(tensors[2])
    torch.testing.assert_close(held, x.cpu().t(), equal_nan=True)
    assert held.stride() == (1, 3)


def test_level_two_tensors_are_there_before_their_lines(tmp_path: Path) -> None:
    with accuracy.record(tmp_path):
        step("cpu")
    process = read(tmp_path).processes[0]
    some = 0
    for call in process.calls:
        for argument in [*call.inputs, *call.outputs]:
            if argument.tensor is not None and argument.tensor.file is not None:
                assert list(process.tensor(argument.tensor).shape) == argument.tensor.shape
                some += 1
    assert some > 50


def test_what_mcpytorch_misses(tmp_path: Path) -> None:
    """Chapter 5.4 of its manual: names bound at import, in-place operators, indexing, tuples, dictionaries."""
    x = torch.randn(4, 4)
    with accuracy.record(tmp_path, record_level=1):
        imported_relu(x)
        y = x.clone()
        y.add_(1)
        y[0] = 7
        y[1:, 2]
        torch.max(y, 0)
        y += 1
        torch.add(x, 1, out=y)
        torch.special.expit(x)
        x.T @ x
    calls = calls_of(tmp_path)
    assert named(calls, "torch.relu.0.fwd")
    inplace = named(calls, "torch.Tensor.add_.0.fwd")
    assert at(inplace.inputs, "0").tensor.mean == pytest.approx(float(x.mean()), abs=1e-6)
    assert at(inplace.outputs, "0").tensor.mean == pytest.approx(float(x.mean()) + 1, abs=1e-6)
    written = named(calls, "torch.Tensor.__setitem__.0.fwd")
    assert at(written.outputs, "0").tensor.max == 7 and at(written.inputs, "0").tensor.max < 7
    item = named(calls, "torch.Tensor.__getitem__.0.fwd")
    assert at(item.inputs, "0").tensor.made_by == written.number and at(item.outputs, "0").tensor.shape == [3]
    assert [a.place for a in named(calls, "torch.max.0.fwd").outputs] == ["0", "1"]
    assert named(calls, "torch.Tensor.add_.1.fwd")
    out = named(calls, "torch.add.0.fwd")
    assert at(out.outputs, "0").tensor.mean == pytest.approx(float(x.mean()) + 1, abs=1e-6)
    assert named(calls, "torch.special.expit.0.fwd") and named(calls, "torch.Tensor.T.0.fwd")


def test_names_count_each_operator(tmp_path: Path) -> None:
    x = torch.ones(3)
    with accuracy.record(tmp_path, record_level=0):
        for _ in range(3):
            torch.relu(x)
    names = [c.name for c in calls_of(tmp_path) if c.level == "api"]
    assert names == ["torch.relu.0.fwd", "torch.relu.1.fwd", "torch.relu.2.fwd"]


def test_any_number_of_sessions_and_nothing_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    for _ in range(3):
        accuracy.start_record(output_dir=tmp_path, record_level=0)
        torch.relu(torch.ones(2))
    accuracy.record_switch(False)
    torch.tanh(torch.ones(2))
    accuracy.record_switch(True)
    torch.sigmoid(torch.ones(2))
    accuracy.record_switch(False)
    assert (tmp_path / "mine.txt").read_text() == "keep"
    runs = sorted(p for p in tmp_path.iterdir() if p.is_dir())
    assert [p.name for p in runs] == ["run-000", "run-001", "run-002"]
    ops = [c.op for c in calls_of(runs[2]) if c.level == "api"]
    assert "torch.relu" in ops and "torch.sigmoid" in ops and "torch.tanh" not in ops
    with accuracy.record(tmp_path / "outer", record_level=0):
        torch.relu(torch.ones(2))
        with accuracy.record(tmp_path / "inner", record_level=1):
            torch.tanh(torch.ones(2))
    assert {c.op for c in calls_of(tmp_path / "outer") if c.level == "api"} == {
        "torch.ones", "torch.relu", "torch.tanh",
    }  # fmt: skip
    assert {c.op for c in calls_of(tmp_path / "inner") if c.level == "api"} == {"torch.ones", "torch.tanh"}


def test_nothing_is_left_when_it_is_off(tmp_path: Path) -> None:
    import multiprocessing.process

    def installed() -> tuple[Any, ...]:
        modules = torch.nn.modules.module
        return (
            torch._C._len_torch_function_stack(),
            torch._C._len_torch_dispatch_stack(),
            dict(modules._global_forward_hooks),
            dict(modules._global_forward_pre_hooks),
            threading.Thread.start,
            multiprocessing.process.BaseProcess.start,
            torch.autograd._engine_run_backward,
            torch.utils._python_dispatch.is_in_torch_dispatch_mode(),
        )

    before = installed()
    parameter = torch.ones(2, requires_grad=True)
    with accuracy.record(tmp_path, record_level=0):
        assert installed() != before
        (parameter * 2).sum().backward()
    assert installed() == before
    assert not parameter._post_accumulate_grad_hooks  # type: ignore[attr-defined]
    accuracy.start_record(output_dir=tmp_path, record_level=0)
    accuracy.record_switch(False)
    assert installed() == before


@pytest.mark.parametrize("device", DEVICES)
def test_recording_changes_no_result_and_no_counter(device: str, tmp_path: Path) -> None:
    def run() -> tuple[float, dict[str, int], torch.Tensor]:
        before = counters()
        loss = step(device)
        return loss, {k: v - before[k] for k, v in counters().items()}, torch.rand(3, device=device).cpu()

    run()
    plain = run()
    for level in (0, 1):
        with accuracy.record(tmp_path, record_level=level):
            recorded = run()
        assert recorded[0] == plain[0]
        assert recorded[1]["launches"] == plain[1]["launches"]
        assert recorded[1]["fallbacks"] == plain[1]["fallbacks"] == 0
        assert torch.equal(recorded[2], plain[2])


def test_random_state_is_recorded_at_level_two(tmp_path: Path) -> None:
    with accuracy.record(tmp_path):
        first = torch.rand(4)
    process = read(tmp_path).processes[0]
    call = next(c for c in process.calls if c.level == "aten" and c.random)
    from safetensors.torch import load_file

    state = load_file(process.folder / f"tensors/{call.number:06d}.safetensors")[str(call.random)]
    generator = torch.Generator()
    generator.set_state(state)
    assert torch.equal(torch.rand(4, generator=generator), first)


def test_environment(tmp_path: Path) -> None:
    torch.manual_seed(123)
    with accuracy.record(tmp_path, record_level=0, op_list=["relu"]):
        pass
    environment = read(tmp_path).processes[0].environment
    assert environment["random"]["torch"]["seed"] == 123
    assert environment["versions"]["torch"] == torch.__version__ and environment["rank"] == 0
    assert environment["recorder"]["op_list"] == ["relu"] and environment["argv"]


def test_a_crash_leaves_what_was_written(tmp_path: Path) -> None:
    from running import run_python

    program = (
        "import torch, os\nfrom macatensor import accuracy\n"
        f"accuracy.start_record(output_dir={str(tmp_path)!r}, record_level=1)\n"
        "for _ in range(5): torch.relu(torch.ones(3))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    run_python(program, expect=-9)
    process = read(tmp_path).processes[0]
    assert process.cut_off and sum(c.op == "torch.relu" for c in process.calls) == 5


@pytest.mark.parametrize("device", DEVICES)
def test_a_value_is_measured_once_and_never_stale(device: str, tmp_path: Path, monkeypatch: Any) -> None:
    from macatensor.accuracy.recording import describe

    measured: list[list[int]] = []
    measure = describe.measure

    def counted(tensor: torch.Tensor) -> Any:
        measured.append(list(tensor.shape))
        return measure(tensor)

    monkeypatch.setattr(describe, "measure", counted)
    x = torch.randn(5, 3).to(device)
    with accuracy.record(tmp_path, record_level=1):
        for _ in range(4):
            torch.relu(x)
        assert len(measured) == 1 + 4
        x.data.mul_(2)
        torch.relu(x)
    calls = calls_of(tmp_path)
    last, first = named(calls, "torch.relu.4.fwd"), named(calls, "torch.relu.0.fwd")
    assert at(last.inputs, "0").tensor.mean == pytest.approx(2 * at(first.inputs, "0").tensor.mean, rel=1e-5)


def test_writes_that_numpy_makes_are_seen(tmp_path: Path) -> None:
    x = torch.ones(3)
    with accuracy.record(tmp_path, record_level=1):
        torch.relu(x)
        x.numpy()[0] = 5
        torch.relu(x)
    calls = calls_of(tmp_path)
    assert at(named(calls, "torch.relu.1.fwd").inputs, "0").tensor.max == 5


def test_sparse_quantized_and_nested_tensors_by_parts(tmp_path: Path) -> None:
    sparse = torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse()
    csr = sparse.to_dense().to_sparse_csr()
    quantized = torch.quantize_per_tensor(torch.tensor([1.0, 2.0, 3.0]), 0.5, 1, torch.quint8)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    old = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with accuracy.record(tmp_path):
        torch.add(sparse, sparse)
        torch.neg(csr)
        quantized.clone()
        torch.sin(nested)
        torch.sin(old)
    process = read(tmp_path).processes[0]
    add = named(process.calls, "torch.add.0.fwd")
    entry = at(add.outputs, "0").tensor
    assert entry.layout == "sparse_coo" and entry.parts["values"].max == 6
    assert torch.equal(process.tensor(entry).to_dense(), 2 * sparse.to_dense())
    entry = at(named(process.calls, "torch.neg.0.fwd").inputs, "0").tensor
    assert entry.layout == "sparse_csr" and torch.equal(process.tensor(entry).to_dense(), csr.to_dense())
    entry = at(named(process.calls, "torch.Tensor.clone.0.fwd").outputs, "0").tensor
    assert entry.layout == "quantized" and torch.equal(process.tensor(entry).int_repr(), quantized.int_repr())
    entry = at(named(process.calls, "torch.sin.0.fwd").inputs, "0").tensor
    assert entry.layout == "jagged" and entry.parts["values"].shape == [5]
    entry = at(named(process.calls, "torch.sin.1.fwd").inputs, "0").tensor
    assert entry.layout == "nested" and len(process.tensor(entry).unbind()) == 2


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool, torch.complex64],
    ids=str,
)
def test_numbers_are_those_of_pytorch(dtype: torch.dtype) -> None:
    from macatensor.accuracy.recording import numbers, summary

    torch.manual_seed(0)
    x = (torch.randn(40, 50) * 20).to(dtype)
    for view in (
        x,
        x.t(),
        x[:, ::3],
        x[:0],
        x[3, 4],
        x[:1].expand(7, 50),
        x.view(2, 20, 5, 10).permute(0, 3, 1, 2),
    ):
        slow = numbers.by_operators(view)
        for tensor in (view, view.to("maca")):
            quick = summary.summarize(tensor)
            if quick is None:
                continue  # a library without the kernel: then the slow way is the way
            assert quick.hash == slow.hash and (quick.nan, quick.inf) == (slow.nan, slow.inf)
            for a, b in zip(quick[:4], slow[:4]):
                assert a is b is None or a == pytest.approx(b, rel=1e-9, abs=1e-9)


def test_numbers_do_not_depend_on_threads() -> None:
    from macatensor.accuracy.recording.summary import measure

    x = torch.randn(300_000)
    with threads_restored(1):
        one = measure(x)
    assert measure(x) == one


def test_numbers_in_a_forked_child() -> None:
    """It has none of the OpenMP threads that its parent had, and waiting for them would never end."""
    from macatensor.accuracy.recording.summary import measure

    x = torch.randn(1_000_000)
    expected = measure(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if measure(x) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_arguments_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="record_level"):
        accuracy.start_record(output_dir=tmp_path, record_level=3)
    with pytest.raises(ValueError, match="skip"):
        accuracy.start_record(output_dir=tmp_path, skip=-1)
    with pytest.raises(TypeError, match="op_list"):
        accuracy.start_record(output_dir=tmp_path, op_list="relu")
    assert not list(tmp_path.iterdir())


def test_no_pickle_is_written(tmp_path: Path) -> None:
    with accuracy.record(tmp_path):
        step("cpu")
    assert {p.suffix for p in tmp_path.rglob("*") if p.is_file()} == {".json", ".jsonl", ".safetensors"}
    for line in (read(tmp_path).processes[0].folder / "calls.jsonl").read_text().splitlines():
        json.loads(line)


def test_processes_read(tmp_path: Path) -> None:
    with accuracy.record(tmp_path, record_level=0) as session:
        pass
    process: Process = read(tmp_path).processes[0]
    assert process.calls == [] and not process.cut_off and session.folder == process.folder.parent
