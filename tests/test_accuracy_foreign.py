"""Records of mcPyTorch's maca_tools and of msprobe; pickles that would do harm."""

from __future__ import annotations

import collections
import os
from pathlib import Path

import pytest
import torch
from foreign_records import Harm, X, dumped, maca_tools_module, recorded

from macatensor.accuracy import sources
from macatensor.accuracy.comparison.report import make_report
from macatensor.accuracy.foreign.restricted_pickle import elements_of, load


@pytest.fixture
def maca_tools(monkeypatch):
    return maca_tools_module(monkeypatch)


@pytest.mark.parametrize("level", [1, 2])
def test_maca_tools(tmp_path, maca_tools, monkeypatch, level):
    folder = recorded(tmp_path / "a" / "rank3", maca_tools, monkeypatch, level).parent
    (process,) = sources.read(folder).processes
    assert process.rank == 3
    linear, largest, backward = process.calls
    assert (linear.op, linear.direction, backward.forward) == ("torch.nn.Linear", "fwd", linear.number)
    assert process.stacks[linear.stack] == ["train.py:3 step", "model.py:7 forward"]
    tensors = {a.place: a.tensor for a in linear.inputs if a.tensor}
    assert set(tensors) == {"0", "weight", "bias"}
    assert (tensors["0"].shape, tensors["0"].stride, tensors["0"].dtype) == ([2, 3], [1, 2], "float32")
    assert [a.place for a in largest.outputs] == ["0", "1"] and largest.outputs[1].tensor.dtype == "int64"
    assert [a.place for a in backward.outputs if a.tensor] == ["0", "2"]
    if level == 1:
        assert (tensors["0"].min, tensors["0"].max) == (0, 5)
        with pytest.raises(ValueError, match="record_level=2"):
            process.tensor(tensors["0"])
    else:
        held = process.tensor(tensors["0"])
        assert torch.equal(held, X) and held.stride() == (1, 2)
        assert torch.equal(process.tensor(tensors["weight"]), torch.full((2, 3), 0.5))
        assert process.tensor(backward.outputs[2].tensor).dtype == torch.bfloat16


def test_reports_of_maca_tools_records(tmp_path, maca_tools, monkeypatch):
    for level in (1, 2):
        folders = [
            recorded(tmp_path / f"{level}{i}", maca_tools, monkeypatch, level, wrong=i / 4) for i in (0, 1)
        ]
        report = make_report(*folders, tmp_path / f"out{level}", cpu_against_cpu=True)
        assert report.verdict == "error" and report.first.call.name == "torch.nn.Linear.0.fwd"
        assert report.first.stacks[1][-1] == "model.py:7 forward"


@pytest.mark.parametrize(
    "function, args",
    [
        (os.system, ("touch harmed",)),
        (eval, ("open('harmed', 'w')",)),
        (getattr, ("x", "real")),
        (torch.load, ("x",)),
        (collections.namedtuple, ("A", "b")),
        (torch.serialization.os.system, ("touch harmed",)),
    ],
)
def test_a_pickle_that_calls_is_refused(tmp_path, monkeypatch, maca_tools, function, args):
    monkeypatch.chdir(tmp_path)
    folder = recorded(tmp_path / "a", maca_tools, monkeypatch)
    torch.save({"args": (Harm(function, *args),)}, folder / "torch.Tensor.max.1.fwd.input.pt")
    with pytest.raises(ValueError, match="refused"):
        sources.read(folder)
    torch.save([Harm(function, *args)], folder / "files_seqs.pt")
    with pytest.raises(ValueError, match="refused"):
        sources.read(folder)
    assert not (tmp_path / "harmed").exists()


def test_torch_modules_are_inert_other_classes_refused(tmp_path):
    torch.save(torch.nn.Conv2d(1, 2, 3), tmp_path / "m.pt")
    held = load(tmp_path / "m.pt")
    assert repr(held) == "<torch.nn.modules.conv.Conv2d>" and not isinstance(held, torch.nn.Module)
    weight = held.state["_parameters"]["weight"]
    assert weight.size == (2, 1, 3, 3) and elements_of(tmp_path / "m.pt", weight).shape == (2, 1, 3, 3)
    torch.save(Path("x"), tmp_path / "p.pt")
    with pytest.raises(ValueError, match="pathlib"):
        load(tmp_path / "p.pt")


def test_evaluated_names_and_reaching_storages_are_refused(tmp_path):
    import zipfile

    def archive(data):
        with zipfile.ZipFile(tmp_path / "x.pt", "w") as file:
            file.writestr("x/data.pkl", data)
            file.writestr("x/data/0", b"\0" * 8)
        return tmp_path / "x.pt"

    evaluated = b"\x80\x02cdill._dill\n_eval_repr\nX\x0c\x00\x00\x00__import__()\x85R."
    with pytest.raises(ValueError, match="not evaluated"):
        load(archive(evaluated))
    dotted = b"\x80\x04\x8c\x10torch.nn.modules\x8c\x17module.warnings.os.fork\x93."
    with pytest.raises(ValueError, match="refused|cannot be read"):
        load(archive(dotted))
    pid = b"\x80\x02(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + pid[2:] + b"K\x00K\x03\x85K\x01\x85\x89Ntr"
    tensor = b"\x80\x02" + tensor[:-1] + b"R."
    held = load(archive(tensor))
    with pytest.raises(ValueError, match="cut off"):
        elements_of(tmp_path / "x.pt", held)


def test_damaged_maca_tools_records(tmp_path, maca_tools, monkeypatch):
    folder = recorded(tmp_path / "a", maca_tools, monkeypatch)
    last = folder / "torch.nn.Linear.0.bwd.output.pt"
    last.write_bytes(last.read_bytes()[:200])
    (process,) = sources.read(folder).processes
    assert process.cut_off and process.calls[-1].outputs == []
    first = folder / "torch.nn.Linear.0.fwd.input.pt"
    first.write_bytes(first.read_bytes()[:200])
    with pytest.raises(ValueError, match="no complete file"):
        sources.read(folder)
    torch.save(["../x.1.fwd.input.pt"], folder / "files_seqs.pt")
    with pytest.raises(ValueError, match="no file of a call"):
        sources.read(folder)


# -- msprobe ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("old_stack", [False, True])
def test_msprobe(tmp_path, old_stack):
    dumped(tmp_path / "d" / "step0" / "rank1", old_stack=old_stack)
    dumped(tmp_path / "d" / "step10" / "rank1")
    dumped(tmp_path / "d" / "step2" / "rank1")
    dumped(tmp_path / "d" / "step0" / "rank0")
    run = sources.read(tmp_path / "d")
    assert [p.rank for p in run.processes] == [0, 1] and [len(p.calls) for p in run.processes] == [4, 12]
    process = run.processes[1]
    module, relu, backward, grads = process.calls[:4]
    assert (module.op, module.module, relu.op) == ("torch.nn.ReLU", "net.act", "torch.nn.functional.relu")
    assert relu.parent == module.number and backward.forward == relu.number and grads.forward == module.number
    assert process.stacks[relu.stack] == ["train.py:3 step", "model.py:7 forward"]
    assert [a.place for a in relu.inputs] == ["0", "1", "2.0", "3", "inplace"]
    assert relu.inputs[0].tensor.norm == pytest.approx(float(X.norm()))
    assert [a.place for a in module.inputs if a.tensor] == ["0", "weight"]
    assert [a.place for a in grads.outputs] == ["weight.0"]


@pytest.mark.parametrize("tensors", [False, True])
def test_reports_of_msprobe_dumps(tmp_path, tensors):
    left = dumped(tmp_path / "a" / "proc11", tensors).parent
    right = dumped(tmp_path / "b" / "proc12", tensors, wrong=1.0).parent
    report = make_report(left, right, tmp_path / "out")
    assert report.first.call.op == "torch.nn.functional.relu"
    (output,) = [t for t in report.first.tensors if t.role == "output"]
    assert (output.distance.diff2 is not None) == tensors
    assert make_report(left, dumped(tmp_path / "c"), tmp_path / "out").verdict == "pass"


def test_damaged_msprobe_dumps(tmp_path):
    folder = dumped(tmp_path / "a", tensors=True)
    (process,) = sources.read(folder).processes
    entry = process.calls[1].outputs[0].tensor
    torch.save(Harm(os.system, "touch harmed"), folder / entry.file)
    with pytest.raises(ValueError, match="refused: it names posix.system"):
        process.tensor(entry)
    text = (folder / "dump.json").read_text()
    for bad, match in (
        (text[:100], "cut off"),
        ("[]", "no JSON object"),
        ("{}", 'no object "data"'),
        (text.replace('"pytorch"', '"mindspore"'), "only dumps of PyTorch"),
        (text.replace("Functional.relu.0.forward.output", "../../x"), "no name of a file"),
        (text.replace("Functional.relu.0.forward", "relu"), "no name of a call"),
    ):
        (folder / "dump.json").write_text(bad)
        with pytest.raises(ValueError, match=match):
            sources.read(folder)
