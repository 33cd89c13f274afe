"""Which tensor of a record is which: structures and makers stay right where what was found before is used again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import handle_torch_function, has_torch_function_unary

from macatensor import accuracy

DEVICES = ("cpu", "maca")


def lines_of(folder: Path) -> dict[str, Any]:
    """The calls of the only process, by name."""
    (path,) = folder.glob("run-*/process-*/calls.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["call"]["name"]: line["call"] for line in lines if "call" in line}


def shape(entries: list[Any], place: str) -> list[int]:
    return next(e["tensor"]["shape"] for e in entries if e["place"] == place)


@pytest.mark.parametrize("device", DEVICES)
def test_an_operator_resizes_its_functions_operand(device: str, tmp_path: Path) -> None:
    a, out = torch.ones(4, device=device), torch.empty(0, device=device)
    with accuracy.record(str(tmp_path), record_level=1):
        torch.add(a, 1, out=out)
        torch.mul(out, 2)
    calls = lines_of(tmp_path)
    for name in ("torch.add.0.fwd", "aten.add.0.fwd"):
        assert shape(calls[name]["inputs"], "out") == [0]
        assert shape(calls[name]["outputs"], "0") == [4]
        assert calls[name]["outputs"][0]["tensor"]["max"] == 2
    assert calls["torch.mul.0.fwd"]["inputs"][0]["tensor"]["made_by"] == calls["torch.add.0.fwd"]["number"]


@pytest.mark.parametrize("device", DEVICES)
def test_an_operator_that_writes_in_place(device: str, tmp_path: Path) -> None:
    a = torch.ones(2, 3, device=device)
    with accuracy.record(str(tmp_path), record_level=1):
        for factor in (2, 3):
            a.t_().mul_(factor)
    calls = lines_of(tmp_path)
    for count, (before, after, sizes) in enumerate(((1, 2, [3, 2]), (2, 6, [2, 3]))):
        for level in ("torch.Tensor", "aten"):
            call = calls[f"{level}.mul_.{count}.fwd"]
            (given,), (made,) = [
                [e["tensor"] for e in call[s] if "tensor" in e] for s in ("inputs", "outputs")
            ]
            assert (given["shape"], given["max"], made["shape"], made["max"]) == (sizes, before, sizes, after)
            assert given["made_by"] == calls[f"{level}.t_.{count}.fwd"]["number"]


def _shortened(x: torch.Tensor) -> torch.Tensor:
    """Changes its argument where no mode sees it, and then calls an operator."""
    if has_torch_function_unary(x):
        return handle_torch_function(_shortened, (x,), x)  # type: ignore[no-any-return]
    x.data = x.data[:2]
    return torch.relu(x)


def test_a_function_that_changes_its_argument(tmp_path: Path) -> None:
    with accuracy.record(str(tmp_path), record_level=1):
        x = torch.arange(4.0)
        _shortened(x)
    calls = lines_of(tmp_path)
    (name,) = [n for n in calls if "_shortened" in n]
    assert shape(calls[name]["inputs"], "0") == [4]
    assert shape(calls["aten.relu.0.fwd"]["inputs"], "0") == [2]
    assert shape(calls[name]["outputs"], "0") == [2]


def test_tensors_of_kinds_that_dlpack_lacks(tmp_path: Path) -> None:
    """After a few of them tensors are asked one thing after another: they stay the same ones."""
    sparse, meta = torch.eye(3).to_sparse(), torch.ones(2, device="meta")
    with accuracy.record(str(tmp_path), record_level=1):
        y = torch.ones(2, 3)[:, 1:].exp()
        for _ in range(20):
            torch.neg(sparse), torch.neg(meta)
        torch.relu(y)
        torch.cos(y.view(4))
    calls = lines_of(tmp_path)
    made = calls["torch.Tensor.exp.0.fwd"]
    assert calls["torch.relu.0.fwd"]["inputs"][0]["tensor"]["made_by"] == made["number"]
    assert "parts" in calls["torch.neg.0.fwd"]["inputs"][0]["tensor"]
    assert shape(calls["torch.cos.0.fwd"]["inputs"], "0") == [4]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.complex64])
def test_equal_sizes_of_other_dtypes_are_others(dtype: torch.dtype, tmp_path: Path) -> None:
    x = torch.ones(2, 2)
    with accuracy.record(str(tmp_path), record_level=0):
        torch.t(x), torch.t(x.to(dtype)), torch.t(x.to(dtype).view(4)[:2])
    calls = lines_of(tmp_path)
    kinds = [calls[f"torch.t.{i}.fwd"]["inputs"][0]["tensor"]["dtype"] for i in range(3)]
    assert kinds == ["float32"] + [str(dtype).removeprefix("torch.")] * 2
