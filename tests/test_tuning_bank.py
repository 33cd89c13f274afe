"""The tuning bank's file: merged, atomic, safe under processes, and no hostile line of it does harm."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
from pathlib import Path

import pytest

from macatensor.choices import bank
from macatensor.choices.bank import Measured
from macatensor.choices.machine import fingerprint, machine


def entry(number: int, way: str = "panels") -> Measured:
    return Measured(
        f'{{"kernel":"mm","number":{number}}}', way, {"": 2.0, way: 1.0}, ("sgemm",), {"operator": "mm"}
    )


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    file = bank.file_in(tmp_path)
    assert file.name == f"{fingerprint()}.jsonl" and bank.read(file) == {}
    assert bank.save(file, [entry(1), entry(2)]) == 2
    assert bank.save(file, [entry(2, "onednn"), entry(3)]) == 3
    found = bank.read(file)
    assert [found[entry(n).signature].way for n in (1, 2, 3)] == ["panels", "onednn", "panels"]
    assert found[entry(1).signature] == entry(1) and found[entry(1).signature].gain == 0.5
    header = json.loads(file.read_text().splitlines()[0])
    assert header == {"bank": bank.KIND, "version": bank.VERSION, "machine": machine()}
    assert bank.kernel_of(entry(1).signature) == "mm" and bank.kernel_of("no JSON") == ""
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".new"] == []


def test_later_lines_win_in_appended_files(tmp_path: Path) -> None:
    first, second, both = (tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl"))
    bank.save(first, [entry(1), entry(2)])
    bank.save(second, [entry(2, "onednn")])
    both.write_text(first.read_text() + second.read_text())
    found = bank.read(both)
    assert len(found) == 2 and found[entry(2).signature].way == "onednn"


def _save_many(file: Path, begin: int) -> None:
    for number in range(begin, begin + 10):
        bank.save(file, [entry(number)])


def test_processes_lose_nothing_of_one_another(tmp_path: Path) -> None:
    file = tmp_path / "bank.jsonl"
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_save_many, args=(file, 100 * i)) for i in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert len(bank.read(file)) == 40


HOSTILE = {
    "empty": b"",
    "bytes": bytes(range(256)) * 20,
    "no header": b'{"signature": "s", "way": "panels"}\n',
    "another version": b'{"bank": "macatensor tuning bank", "version": 99}\n{"signature": "s", "way": "panels"}\n',
    "another machine": b'{"bank": "macatensor tuning bank", "version": 1, "machine": {}}\n{"signature": "s", "way": "x"}\n',
    "deep": b"[" * 100_000 + b"\n",
    "numbers": b"1\n2\n" + b"9" * 10_000 + b"\n",
    "a list": b"[1, 2, 3]\n",
    "long": b'{"signature": "' + b"s" * (1 << 17) + b'"}\n',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_empty_and_said_once(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "bank.jsonl"
    file.write_bytes(HOSTILE[name])
    with caplog.at_level(logging.WARNING, "macatensor"):
        assert bank.read(file) == {} and bank.read(file) == {}
    assert len(caplog.records) == (0 if name == "empty" else 1)
    bank.save(file, [entry(1)])  # and it is a bank again
    assert list(bank.read(file)) == [entry(1).signature]


def test_damaged_lines_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "bank.jsonl"
    bank.save(file, [entry(1), entry(2)])
    lines = file.read_text().splitlines()
    bad = ['{"signature": 1, "way": "x"}', '{"signature": "s", "way": "a\\nb"}', '{"signature": "s", "way": 5}', "{",
           json.dumps({"signature": "s", "way": "w" * 100}), '{"signature": "s", "way": "w", "seconds": 3}']  # fmt: skip
    file.write_text("\n".join([lines[0], *bad, *lines[1:]]) + lines[1][:20])
    with caplog.at_level(logging.WARNING, "macatensor"):
        found = bank.read(file)
    assert entry(1).signature in found and "s" not in found
    assert len(caplog.records) == 1 and "damaged" in caplog.text


def test_a_bank_that_cannot_be_read_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    with caplog.at_level(logging.WARNING, "macatensor"):
        assert bank.read(tmp_path / "folder.jsonl") == {}
    assert "cannot be read" in caplog.text
    sparse = tmp_path / "large.jsonl"
    with sparse.open("wb") as file:
        os.truncate(file.fileno(), bank.MOST_BYTES + 1)
    assert bank.read(sparse) == {} and "is not read" in caplog.text
