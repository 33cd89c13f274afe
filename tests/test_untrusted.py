"""Files of others that mean harm: paths out of the folder, formulas, bombs, programs in pickles."""

from __future__ import annotations

import csv
import json
import os
import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from accuracy_records import Record
from foreign_records import X, dumped, maca_tools_module, recorded
from openpyxl import load_workbook
from typer.testing import CliRunner

from macatensor.accuracy import sources
from macatensor.accuracy.comparison.report import make_report
from macatensor.accuracy.foreign.restricted_pickle import elements_of, load
from macatensor.accuracy.local.replaying import replay
from macatensor.accuracy.records import CALLS, ENVIRONMENT, read
from macatensor.bench import stored
from macatensor.cli import app
from macatensor.examination.kept import read_answers
from macatensor.files.untrusted import DEPTH, ELEMENTS, leaves, member, readable
from macatensor.migrate.project import Migration
from macatensor.migrate.report import write as write_lists
from macatensor.migrate.rules import Change, Finding, RulesError, UserRules

DEEP = "[" * 100_000 + "]" * 100_000


def record(folder: Path, wrong: float = 0.0, name: str = "relu", **more: Any) -> Path:
    made = Record(folder)
    made.call(f"torch.{name}", {"0": X}, {"0": X.relu() + wrong}, **more)
    made.call("aten.relu.default", {"0": X}, {"0": X.relu() + wrong})
    made.close()
    return made.folder


def changed(process: Path, old: str, new: str, file: str = CALLS) -> None:
    text = (process / file).read_text()
    assert old in text
    (process / file).write_text(text.replace(old, new, 1))


# -- paths
@pytest.mark.parametrize(
    "file", ["../../x.safetensors", "{outside}", "tensors/../../x.safetensors", "calls.jsonl"]
)
def test_a_record_names_files_of_its_own_only(tmp_path: Path, file: str) -> None:
    process = record(tmp_path / "a")
    os.rename(process / "tensors/000000.safetensors", tmp_path / "a" / "x.safetensors")
    outside = file.format(outside=tmp_path / "a" / "x.safetensors")
    changed(process, "tensors/000000.safetensors", outside)
    with pytest.raises(ValueError, match=rf"line 1 .*{re.escape(outside)}"):
        read(tmp_path / "a")


def test_links_out_of_a_record_are_not_followed(tmp_path: Path) -> None:
    process = record(tmp_path / "a")
    file = process / "tensors/000001.safetensors"
    os.rename(file, tmp_path / "secret.safetensors")
    file.symlink_to(tmp_path / "secret.safetensors")
    (found,) = read(tmp_path / "a").processes
    with pytest.raises(ValueError, match=r"000001.safetensors lies outside of"):
        found.tensor(found.calls[1].inputs[0].tensor)
    with pytest.raises(ValueError, match="lies outside of"):
        replay(tmp_path / "a", device="cpu")
    os.rename(process / CALLS, tmp_path / CALLS)
    (process / CALLS).symlink_to(tmp_path / CALLS)
    with pytest.raises(ValueError, match=f"{CALLS} lies outside of"):
        read(tmp_path / "a")
    os.rename(process, tmp_path / "process-0-1")
    process.symlink_to(tmp_path / "process-0-1")
    with pytest.raises(ValueError, match="lies outside of"):
        read(tmp_path / "a")


def test_links_within_and_to_a_record_are_followed(tmp_path: Path) -> None:
    process = record(tmp_path / "a")
    os.rename(process / "tensors", process / "elsewhere")
    (process / "tensors").symlink_to("elsewhere")
    (tmp_path / "latest").symlink_to(tmp_path / "a")
    (found,) = read(tmp_path / "latest").processes
    assert torch.equal(found.tensor(found.calls[0].inputs[0].tensor), X)


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    process = record(tmp_path / "a")
    (process / CALLS).unlink()
    os.mkfifo(process / CALLS)
    with pytest.raises(ValueError, match=f"{CALLS} is no file"):
        read(tmp_path / "a")
    for name in ("a\0b", 3, None):
        with pytest.raises(ValueError, match="no name of a file"):
            member(tmp_path, name)
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(ValueError, match="round"):
        member(tmp_path, "round/x")


def test_links_of_other_tools_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = dumped(tmp_path / "d", tensors=True)
    data = next((dump / "dump_tensor_data").iterdir())
    os.rename(data, tmp_path / "secret.pt")
    data.symlink_to(tmp_path / "secret.pt")
    (process,) = sources.read(dump).processes
    entry = next(a.tensor for c in process.calls for a in c.inputs + c.outputs
                 if a.tensor is not None and a.tensor.file and a.tensor.file.endswith(data.name))  # fmt: skip
    with pytest.raises(ValueError, match=f"{data.name} lies outside of"):
        process.tensor(entry)
    folder = recorded(tmp_path / "m", maca_tools_module(monkeypatch), monkeypatch)
    name = "torch.Tensor.max.1.fwd.input.pt"
    os.rename(folder / name, tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} lies outside of"):
        sources.read(folder)


# -- JSON
WRONG = ["null", "[]", "7", '"x"', "NaN", "-1", DEEP, "1" * 5000, '{"x": 1}', "1e999"]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: w[:12])
@pytest.mark.parametrize("key", ["number", "inputs", "op", "name", "dtype", "shape", "place"])
def test_errors_name_file_line_and_key(tmp_path: Path, key: str, wrong: str) -> None:
    if (key, wrong) in {("number", "7"), ("inputs", "[]"), ("shape", "[]")} or (wrong == '"x"' and key not in
                                                                             ("number", "inputs", "shape")):  # fmt: skip
        return
    process = record(tmp_path / "a")
    line = json.loads((process / CALLS).read_text().splitlines()[0])
    call = line["call"]
    holder = {
        "dtype": call["inputs"][0]["tensor"],
        "shape": call["inputs"][0]["tensor"],
        "place": call["inputs"][0],
    }
    holder.get(key, call)[key] = "WRONG"
    (process / CALLS).write_text(json.dumps(line).replace('"WRONG"', wrong) + '\n{"end": true}\n')
    with pytest.raises(ValueError) as refused:
        read(tmp_path / "a")
    text = str(refused.value)
    assert f"{CALLS}, line 1" in text
    assert key in text or wrong in (DEEP, "1" * 5000)


def test_other_damage_of_a_record(tmp_path: Path) -> None:
    for i, (old, new, match) in enumerate(
        (
            ('"shape":[2,3]', '"shape":[2,-3]', r"line 1 .*integers from 0"),
            ('"shape":[2,3]', f'"shape":[{2**40},{2**40}]', "no tensor has the sizes"),
            ('"op":"torch.relu",', "", "line 1 .*the key 'op' too"),
            ('"number":1', '"number":0', "line 2 .*there twice"),
            ('"number":1', '"number":1,"parent":1', "line 2 .*parent 1"),  # which would be walked up for ever
            ('"number":1', '"number":1,"unheard":1', "line 2 .*one of the keys"),
            ('"direction":"fwd"', '"direction":"up"', "direction: expected 'fwd' or 'bwd'"),
        )
    ):
        process = record(tmp_path / f"{i}")
        changed(process, old, new)
        with pytest.raises(ValueError, match=match):
            read(tmp_path / f"{i}")
    for i, text in enumerate(
        (DEEP, "[]", '{"rank": "0"}', '{"rank": null}', '{"format": []}', '{"flags": [1]}')
    ):
        process = record(tmp_path / f"e{i}")
        (process / ENVIRONMENT).write_text(text)
        with pytest.raises(ValueError, match=ENVIRONMENT):
            read(tmp_path / f"e{i}")


def test_half_a_surrogate_pair_becomes_a_question_mark(tmp_path: Path) -> None:
    folders = []
    for name, wrong in (("a", 0.0), ("b", 1.0)):
        process = record(tmp_path / name, wrong)
        changed(process, '"op":"torch.relu"', r'"op":"torch.relu","module":"m\ud800"')
        folders.append(tmp_path / name)
    report = make_report(*folders, tmp_path / "out", cpu_against_cpu=True)
    assert report.rows[0]["module"] == "m?"


def test_damaged_dumps_runs_rules_and_answers(tmp_path: Path) -> None:
    dump = dumped(tmp_path / "d")
    whole = (dump / "dump.json").read_text()
    for bad, match in (
        (DEEP, "nested too deeply"),
        (whole.replace("[2, 3]", "[2, NaN]", 1), "is damaged: expected a list of integers"),
        (whole.replace("[2, 3]", "{}", 1), "is damaged: expected a list of integers"),
        (whole.replace('"torch.float32"', "[]", 1), "dtype: expected a text"),
        (whole.replace("null, [{", "[" * 500 + "]" * 500 + ", [{", 1), "nested"),
    ):
        assert bad != whole
        (dump / "dump.json").write_text(bad)
        with pytest.raises(ValueError, match=rf"dump.json.*{match}"):
            sources.read(dump)
    path = tmp_path / "x.json"
    head = '{"schema": "macatensor.bench/2", "results": '
    for bad in (DEEP, head + "7}", head + "[[]]}", head + '[{"case": "a", "baseline": "b", "value": "1", "bar": 1}]}',
                head + '[{"case": "a", "baseline": "b", "value": 1, "bar": 1, "spread": [1]}]}'):  # fmt: skip
        path.write_text(bad)
        with pytest.raises(ValueError, match="x.json"):
            stored.load(path)
        with pytest.raises(RulesError, match="x.json"):
            UserRules.load(path)
    good = json.dumps(
        {"task": {"question": "forward", "database": "operators", "entry": "add", "dtype": "float32"}}
    )
    lines = [DEEP, "[]", '{"task": 7}', good[:-1] + ', "wrong": "1"}', good[:-1] + ', "kinds": []}', good]
    path.write_text("\n".join(["stamp", *lines]))
    assert list(read_answers(path, "stamp")) == ["forward operators add float32"]


# -- tables and pages
FORMULAS = ["=1+1", "+1", "-1+cmd|' /C calc'!A0", "@SUM(A1)", "\tx", "\rx"]


@pytest.mark.parametrize("text", FORMULAS)
def test_texts_of_a_report_are_no_formulas(tmp_path: Path, text: str) -> None:
    for i in (0, 1):
        record(tmp_path / f"{i}", float(i) if i else 0.0, module=text)
    report = make_report(tmp_path / "0", tmp_path / "1", tmp_path / "out", cpu_against_cpu=True)
    with report.paths["csv"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["module"] == f"'{text}"
    assert rows[0]["min 0"] == "0.0" and float(rows[0]["error"] or 0) >= 0
    sheet = load_workbook(report.paths["xlsx"])["tensors"]
    (cell,) = [c for c in sheet[2] if sheet.cell(1, c.column).value == "module"]
    assert cell.data_type == "s" and cell.quotePrefix
    assert cell.value.replace("\n", "\r").lstrip("\r\t") == text.lstrip(
        "\r\t"
    )  # XML has one kind of line's end
    assert any(c.data_type == "n" and c.value == 5 for c in sheet[2])


def test_infinities_stay_and_migration_lists_hold_no_formula(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    done = Migration(tmp_path, tmp_path / "out", 1, ["a.py"], [Change("=a.py", -3, "@old", "-inf", "\x01rule")],
                     [Finding("a.py", 1, "=HYPERLINK(1)", "+why\x02", "r")], {})  # fmt: skip
    changes, unsupported = write_lists(done)
    with changes.open(newline="") as file:
        assert list(csv.reader(file))[1] == ["'=a.py", "-3", "'@old", "-inf", "\x01rule"]
    row = load_workbook(unsupported).active[2]
    assert [c.data_type for c in row] == ["s", "n", "s", "s", "s"]
    assert [c.value for c in row] == ["a.py", 1, "=HYPERLINK(1)", "+why?", "r"]
    assert [bool(c.quotePrefix) for c in row] == [False, False, True, True, False]


def test_names_are_no_html_and_no_markup(tmp_path: Path) -> None:
    script = "<script>alert(1)</script>"
    for i in (0, 1):
        made = Record(tmp_path / f"{i}", run=i)
        made.stack(0, f"{script}.py:1 '\"><img src=x onerror=alert(2)>")
        made.call(
            f"torch.{script}[/red]", {script: X}, {"0": X.relu() + i}, module=f"[/bold]{script}", stack=0
        )
        made.close()
    report = make_report(tmp_path / "0", tmp_path / "1", tmp_path / "out", cpu_against_cpu=True)
    page = report.paths["html"].read_text()
    assert script not in page and "<img" not in page and "&lt;script&gt;alert(1)" in page
    shown = CliRunner().invoke(
        app, ["accuracy", "compare", str(tmp_path / "0"), str(tmp_path / "1"), "-o", str(tmp_path / "out"),
              "--cpu-against-cpu"], env={"COLUMNS": "300"},
    )  # fmt: skip
    assert shown.exit_code == 1, shown.output
    assert "[/red]" in shown.output and "[/bold]" in shown.output


# -- pickles and archives
def archive(path: Path, data: bytes, method: int = zipfile.ZIP_STORED, elements: bytes = b"\0" * 8) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("x/data.pkl", data)
        file.writestr("x/data/0", elements)
    return path


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def _range(stop: int) -> bytes:
    return b"c__builtin__\nrange\n" + b"\x8a\x08" + struct.pack("<q", stop) + b"\x85R"


# a pair of the same pair of the same pair…: 2^60 leaves
SHARED = b")q\0" + b"".join(b"0(h%ch%ctq%c" % (i, i, i + 1) for i in range(60))
STORAGE = b"(" + _text("storage") + b"ctorch\nFloatStorage\n" + _text("0") + _text("cpu") + b"K\x02tQ"


@pytest.mark.parametrize(
    ("program", "why"),
    [
        # a state for a function, a class, a value: their attributes would be set
        (b"ctorch._utils\n_rebuild_tensor_v2\n}X\x01\0\0\0aK\x01sb.", "a state of a Known"),
        (b"ccollections\nOrderedDict\n}X\x01\0\0\0aK\x01sb.", "a state of a Known"),
        (b"ctorch.nn.modules\nX\n}X\x01\0\0\0aK\x01sb.", "a state of a InertClass"),
        (b"ctorch.nn.modules\nX\nN}X\x01\0\0\0aK\x01s\x86b.", "a state of a InertClass"),
        (b"ctorch\nfloat32\n}X\x01\0\0\0aK\x01sb.", "a state of a dtype"),
        # calls of what is no name on the list, and new objects of what is no class
        (b"ctorch\nfloat32\n)R.", "a call of a dtype"),
        (_text("x") + b")R.", "a call of a str"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)\x81.", "a new object of a Known"),
        (b"ctorch\nfloat32\n)}\x92.", "a new object of a dtype"),
        (b"c__builtin__\nset\n" + _range(10**12) + b"\x85R.", "a set of a range"),
        (b"ctorch\nSize\n" + _range(10**12) + b"\x85R.", "expected a list of integers"),
        (b"c__builtin__\nslice\n" + SHARED + b"\x85R.", "a slice of other things"),
        (b"ctorch\ndevice\n" + SHARED + b"\x85R.", "a device of other things"),
        (b"ccollections\nOrderedDict\n" + _range(10**12) + b"\x85R.", "a dictionary made of"),
        (b"ccopyreg\n_reconstructor\n.", "copyreg._reconstructor, which is not on the list"),
        (b"cbuiltins\ngetattr\n.", "builtins.getattr, which is not on the list"),
        (b"ctorch.nn.modules\nX.y\n.", "which is not on the list"),
        # instructions of no record
        (b"\x82\x01.", "EXT1"),
        (b"(cposix\nsystem\no.", "posix.system"),
        (b"(iposix\nsystem\n.", "INST"),
        (b"(ctorch.nn.modules\nX\no.", "OBJ"),
        (b"Pname\n.", "PERSID"),
        (b"K\x01Q.", "a persistent object"),
        (b"\x97.", "NEXT_BUFFER"),
        # containers of other kinds than the instruction's, and keys that are hashed for ever
        (b"}K\x01a.", "an item of a dict"),
        (b"]K\x01K\x02s.", "an entry of a list"),
        (b"ctorch.nn.modules\nX\nK\x01K\x02s.", "an entry of a InertClass"),
        (b"}" + SHARED + b"K\x01s.", "a key of more than 64 parts"),
        (b"(" + SHARED + b"\x91.", "a key of more than 64 parts"),
        (b"}" + _text("x" * 2000) + b"K\x01s.", "a key of 2000 characters"),
        (b"\x8a\x40" + b"\x7f" * 64 + b".", "more than 128 bits"),
        # tensors that no storage has
        (b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + b"K\0J\xff\xff\xff\xff\x85K\x01\x85\x89NtR.",
         "integers from 0"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + b"K\0K\x02\x85)\x89NtR.", "sizes"),
    ],
)  # fmt: skip
def test_programs_in_pickles_are_refused(tmp_path: Path, program: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)) as refused:
        load(archive(tmp_path / "x.pt", b"\x80\x02" + program))
    assert "x.pt" in str(refused.value)


def test_sparse_memos_and_shared_lists_cost_their_bytes(tmp_path: Path) -> None:
    assert load(archive(tmp_path / "x.pt", b"\x80\x02K\x01r\xff\xff\xff\x7f.")) == 1
    held = load(archive(tmp_path / "x.pt", b"\x80\x02" + SHARED + b"."))
    with pytest.raises(ValueError, match="nested more than|values"):
        list(leaves(held))
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(ValueError, match=f"more than {DEPTH} deep"):
        list(leaves(load(archive(tmp_path / "x.pt", pickle.dumps(circle, 2)))))


def test_bombs_are_refused_before_they_go_off(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with pytest.raises(ValueError, match="x.pt is refused: its entry data.pkl is compressed"):
        load(archive(path, b"\x80\x02" + b"\0" * (1 << 24), zipfile.ZIP_DEFLATED))
    with pytest.raises(ValueError, match=r"x.pt is refused: its entry data.pkl has \d+ bytes.*fewer steps"):
        load(archive(path, b"\x80\x02" + b"]" * (1 << 25)))
    torch.save(torch.zeros(1).expand(10**12), path)
    with pytest.raises(ValueError, match=f"x.pt.*more than the {ELEMENTS} elements"):
        elements_of(path, load(path))
    torch.save(torch.arange(4.0), path)
    held = load(path)
    data = path.read_bytes()
    archive(path, pickle.dumps(1), zipfile.ZIP_DEFLATED, b"\0" * (1 << 24))
    with pytest.raises(ValueError, match="x.pt.*compressed"):
        elements_of(path, held)
    entry = data.index(b"PK\x01\x02")  # of the directory: the sizes that the first entry claims
    path.write_bytes(data[: entry + 20] + struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0) + data[entry + 28 :])
    with pytest.raises(ValueError, match="x.pt"):
        load(path)
    with pytest.raises(ValueError, match="elements"):
        readable([2], [10**12])


def test_a_safetensors_header_that_claims_much(tmp_path: Path) -> None:
    process = record(tmp_path / "a")
    file = process / "tensors/000000.safetensors"
    for size in (1 << 62, 1 << 30, 99_000_000, 0):
        file.write_bytes(struct.pack("<Q", size) + b"{" + b" " * 100)
        (found,) = read(tmp_path / "a").processes
        with pytest.raises(ValueError, match="000000.safetensors"):
            found.tensor(found.calls[0].inputs[0].tensor)


def test_a_dtype_without_its_own_storage_is_read(tmp_path: Path) -> None:
    for dtype in (torch.uint16, torch.float8_e4m3fn):
        torch.save(X.to(dtype), tmp_path / "x.pt")
        held = elements_of(tmp_path / "x.pt", load(tmp_path / "x.pt"))
        assert held.dtype is dtype and torch.equal(held.float(), X)


# -- replaying
@pytest.mark.parametrize(
    ("op", "inputs", "values", "why"),
    [
        ("aten.zeros.default", {}, {"0": [10**11]}, "makes 100000000000 elements of 0"),
        ("aten.expand.default", {"0": X[0, 0]}, {"1": [10**10]}, "makes 10000000000 elements of 1"),
        ("aten.repeat.default", {"0": X}, {"1": [10**6, 10**6]}, "makes 6000000000000 elements of 6"),
        ("aten.relu.default", {"0": X, "0.x": X}, {}, "no place among the others"),
        ("aten.relu.default", {".".join("0" * 2000): X}, {}, "no place among the others"),
        ("aten.sum.default", {"0": X}, {"dtype": {"type": "torch.dtype", "repr": "torch.nn"}}, "as text only"),
        ("aten.sum.default", {"0": X}, {"dtype": {"type": 1, "repr": None}}, "is damaged"),
        ("aten._softmax_backward_data.default", {"0": X, "1": X[:, :2]}, {"2": 1, "3": 6}, "raises"),
        ("aten.native_batch_norm_backward.default", {"0": X, "1": X, "2": X[0, :1]},
         {"3": None, "4": None, "5": None, "6": None, "7": True, "8": 1e-5, "9": [True, True, True]}, "raises|n/a"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("device", ["maca", "cpu"])
def test_calls_that_no_run_had_are_not_replayed(
    tmp_path: Path, device: str, op: str, inputs: dict[str, torch.Tensor], values: dict[str, Any], why: str
) -> None:
    made = Record(tmp_path / "a")
    made.call(op, inputs, {"0": X}, values=values)
    made.call("aten.relu.default", {"0": X}, {"0": X.relu()})
    made.close()
    wrong, right = replay(tmp_path / "a", device=device).calls
    assert wrong.verdict.startswith("n/a: ") and re.search(why, wrong.verdict), wrong.verdict
    assert right.verdict == "pass"
