"""Launches that are recorded here and replayed by a C program, which finds what is wrong with them."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from interposer_library import host_library

HERE = Path(__file__).parent
REPLAY = HERE / "replay"
INCLUDE = HERE.parent / "libmaca_ffi" / "include"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("replay") / "requests"
    done = subprocess.run(
        [sys.executable, REPLAY / "record.py", file, "add.Tensor", "sort", "mm"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return file


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    assert compiler is not None, "this needs a C compiler, as the build does"
    program = tmp_path_factory.mktemp("replay") / "replay"
    subprocess.run(
        [compiler, "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-I", INCLUDE, REPLAY / "replay.c"]
        + ["-o", program, "-ldl", "-lm"],
        check=True,
    )
    return program


def replayed(driver: Path, file: Path) -> tuple[int, dict[str, dict[str, object]]]:
    """The exit status, and the counts of every kernel."""
    said = file.with_suffix(".json")
    folders = {str(p.parent) for p in _linked()}
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(sorted(folders))}
    done = subprocess.run(
        [driver, host_library(), file, "--json", said], env=environment, capture_output=True, text=True
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode, {one["kernel"]: one for one in json.loads(said.read_text())["kernels"]}


def _linked() -> list[Path]:
    """oneDNN and OpenBLAS of this environment, for a library that was built in another folder."""
    from importlib.metadata import files

    names = {"onednn-cpu-gomp": "libdnnl.so.3", "scipy-openblas32": "libscipy_openblas.so"}
    return [
        Path(str(f.locate())).resolve()
        for package, name in names.items()
        for f in files(package) or ()
        if f.name == name
    ]


def records(data: bytes) -> list[bytes]:
    found, at = [], 8
    while at < len(data):
        (count,) = struct.unpack_from("<Q", data, at)
        found.append(data[at + 8 : at + 8 + count])
        at += 8 + count
    return found


def test_recorded_launches_pass_where_they_were_recorded(driver: Path, recorded: Path) -> None:
    status, kernels = replayed(driver, recorded)
    assert status == 0 and set(kernels) >= {"add", "sort", "mm"}
    assert all(one["passed"] for one in kernels.values())
    assert not [one for one in kernels.values() if one["wrong"] or one["declined"] or one["failed"]]


def test_another_answer_is_found(driver: Path, recorded: Path, tmp_path: Path) -> None:
    data = recorded.read_bytes()
    (one,) = [r for r in records(data) if r[4:].startswith(b"mm float32 contiguous")][:1]
    low, high = struct.unpack_from("<dd", one, len(one) - 16)
    spoiled = one[:-16] + struct.pack("<dd", high + 1, high + 2)
    file = tmp_path / "requests"
    file.write_bytes(data[:8] + struct.pack("<Q", len(spoiled)) + spoiled)
    status, kernels = replayed(driver, file)
    assert status == 1 and kernels["mm"]["wrong"] == 1
    assert "mm float32 contiguous" in str(kernels["mm"]["first"]) and "allowed" in str(kernels["mm"]["first"])


def test_a_file_that_ends_early_is_refused(driver: Path, recorded: Path, tmp_path: Path) -> None:
    file = tmp_path / "requests"
    file.write_bytes(recorded.read_bytes()[:1000])
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(str(p.parent) for p in _linked())}
    done = subprocess.run([driver, host_library(), file], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
