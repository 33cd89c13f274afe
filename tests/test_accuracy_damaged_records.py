"""Records changed at random: reading one ends in a report, or in a ValueError that names the file."""

from __future__ import annotations

import copy
import json
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from accuracy_records import Record
from foreign_records import dumped, maca_tools_module, recorded

from macatensor.accuracy import sources
from macatensor.accuracy.comparison.compare import compare
from macatensor.accuracy.comparison.report import make_report
from macatensor.accuracy.elements import TensorEntry
from macatensor.accuracy.local.replaying import replay
from macatensor.accuracy.records import tensors_of

EXAMPLES = 120  # of each kind
DEEP: Any = "deep"  # stands for lists in lists, which json.dumps itself cannot write
HOSTILE = [
    None, True, -1, 0, 7, 10**12, 2**63, 10**30, 1.5, float("nan"), float("-inf"), "", "x", "=1+1", "\0", "\ud800",
    "../../secret.safetensors", "/etc/passwd", "tensors/000099.safetensors", "float16", "sparse_coo", "quantized",
    "aten.relu.default", "aten._softmax_backward_data.default", [], {}, [-1], [10**12], [2, 3], [2**62, 2**62],
    {"type": "torch.dtype", "repr": "torch.nn"}, {"dtype": "float32"}, [[[[]]]], DEEP,
]  # fmt: skip


def ours(folder: Path, wrong: float) -> Path:
    x = torch.arange(6.0).reshape(2, 3)
    record = Record(folder, level=2, seed=wrong, flags={"cudnn": {"allow_tf32": False}})
    record.stack(0, "train.py:3 step", "model.py:7 forward")
    y = x.relu() + wrong
    above = record.call("torch.nn.ReLU", {"0": x}, {"0": y}, module="act", stack=0)
    record.call("aten.relu.default", {"0": x}, {"0": y}, parent=above)
    z = y.sum(1)
    record.call("aten.sum.dim_IntList", {"0": y}, {"0": z}, values={"1": [1]})
    record.call("aten.mul.Tensor", {"0": z, "1": z}, {"0": z * z})
    record.close()
    return folder


def of_maca_tools(folder: Path, wrong: float) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        return recorded(folder, maca_tools_module(patch), patch, wrong=wrong)


def of_msprobe(folder: Path, wrong: float) -> Path:
    return dumped(folder, tensors=True, wrong=wrong)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for k, v in inside for p in _places(v, (*path, k)))]


def _json_changed(text: str, chance: random.Random) -> str:
    """A value, a key or an entry of a JSON text replaced, removed or doubled."""
    value = json.loads(text)
    *path, last = chance.choice(_places(value)[1:])
    node = value
    for key in path:
        node = node[key]
    way = chance.random()
    if way < 0.7:
        node[last] = copy.deepcopy(chance.choice(HOSTILE))
    elif way < 0.85:
        del node[last]
    elif isinstance(node, list):
        node.append(node[last])
    else:
        node[str(chance.choice(HOSTILE))] = node.pop(last)
    return json.dumps(value).replace('"deep"', "[" * 100_000 + "]" * 100_000)


def _bytes_changed(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    way = chance.randrange(5)
    if way == 0:
        return data[:at]
    if way == 1:
        return data[:at] + data[at + chance.randrange(1, 40) :]
    if way == 2:
        return data[:at] + chance.randbytes(chance.randrange(1, 9)) + data[at:]
    if way == 3:
        return data[:at] + bytes(chance.randrange(1, 40)) + data[at + 8 :]
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        changed[chance.randrange(min(len(changed), chance.choice([64, 400, 1 << 30])))] = chance.randrange(
            256
        )
    return bytes(changed)


def _archive_changed(path: Path, chance: random.Random) -> None:
    """The pickle of an archive changed, its checksum right; now and then it, or the elements, compressed."""
    with zipfile.ZipFile(path) as archive:
        held = {info.filename: archive.read(info) for info in archive.infolist()}
    method = zipfile.ZIP_DEFLATED if chance.random() < 0.05 else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in held.items():
            archive.writestr(name, _bytes_changed(data, chance) if name.endswith("data.pkl") else data)


def damage(folder: Path, chance: random.Random) -> None:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    path = chance.choice(files + [p for p in files if p.suffix in (".json", ".jsonl")] * 4)
    try:
        if path.suffix == ".json" and chance.random() < 0.8:
            path.write_text(_json_changed(path.read_text(), chance))
            return
        if path.suffix == ".jsonl" and chance.random() < 0.9:
            lines = path.read_text().splitlines()
            at = chance.randrange(len(lines))
            lines[at] = _json_changed(lines[at], chance)
            path.write_text("\n".join(lines) + "\n")
            return
        if path.suffix == ".pt" and chance.random() < 0.8:
            _archive_changed(path, chance)
            return
    except (OSError, ValueError, IndexError, RecursionError, zipfile.BadZipFile):
        pass  # it was changed before, and is no such file any more
    path.write_bytes(_bytes_changed(path.read_bytes(), chance))


def _entries(entry: TensorEntry) -> list[TensorEntry]:
    return [entry, *(e for part in (entry.parts or {}).values() for e in _entries(part))]


def examine(folder: Path, reference: Path, output: Path, whole: bool) -> list[str]:
    """Everything that is done with a record; the texts of the ValueErrors."""
    said = []

    def attempt(what: Any) -> Any:
        try:
            return what()
        except ValueError as error:
            said.append(str(error))
            return None

    attempt(lambda: replay(folder))
    run = attempt(lambda: sources.read(folder))
    if run is None:
        return said
    for process in run.processes:
        for call in process.calls:
            for _, entry in (*tensors_of(call.inputs), *tensors_of(call.outputs)):
                for each in _entries(entry):
                    if each.file is not None:
                        attempt(lambda: process.tensor(each))  # noqa: B023 - called at once
    if whole:
        attempt(lambda: make_report(folder, reference, output, cpu_against_cpu=True))
    else:
        attempt(lambda: compare(run, sources.read(reference)))
    return said


@pytest.mark.parametrize("write", [ours, of_maca_tools, of_msprobe])
def test_a_damaged_record_is_reported_or_refused(tmp_path: Path, write: Any) -> None:
    reference = write(tmp_path / "reference", 0.0)
    whole = write(tmp_path / "whole", 0.5)
    secret = tmp_path / "secret.safetensors"
    secret.write_text("not to be read")
    there = sorted(tmp_path.iterdir())
    refused = 0
    for seed in range(EXAMPLES):
        chance = random.Random(f"{write.__name__} {seed}")
        folder, output = tmp_path / "damaged", tmp_path / "reports"
        shutil.copytree(whole, folder)
        for _ in range(chance.randrange(1, 3)):
            damage(folder, chance)
        try:
            said = examine(folder, reference, output, seed % 8 == 0)
        except Exception as error:
            raise AssertionError(f"example {seed}: {type(error).__name__}: {error}") from error
        assert all(str(folder) in text or "raises" in text for text in said), (seed, said)
        assert "not to be read" not in "".join(said)
        refused += bool(said)
        shutil.rmtree(folder)
        shutil.rmtree(output, ignore_errors=True)
        assert sorted(tmp_path.iterdir()) == there, seed
    assert EXAMPLES / 4 < refused
