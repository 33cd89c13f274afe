"""What the build finds, and what it leaves in the library."""

from __future__ import annotations

import fnmatch
import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from interposer_library import host_library

ROOT = Path(__file__).parents[1]


def test_the_build_finds_libraries_by_their_packages() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "libmaca_ffi" / "host_libraries.py")],
        capture_output=True,
        text=True,
        check=True,
    )
    headers, library, blas_headers, blas = done.stdout.strip().split(";")
    assert (Path(headers) / "dnnl.hpp").exists() and Path(library).name == "libdnnl.so.3"
    assert (
        Path(library).exists() and Path(blas_headers).is_dir() and any(Path(blas).glob("libscipy_openblas*"))
    )


def test_the_library_is_searched_for_beside_its_packages() -> None:
    held = host_library().read_bytes()
    start = held.index(b"$ORIGIN/")
    places = held[start : held.index(b"\0", start)].decode().split(":")
    assert places and all(place.startswith("$ORIGIN/") for place in places), places


@pytest.mark.parametrize("folder", ["host", "shim"])
def test_a_library_exports_its_entries_alone(folder: str) -> None:
    from libmaca_ffi import _binding

    library = host_library() if folder == "host" else Path(_binding.__file__)
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", library], capture_output=True, text=True, check=True
    )
    exported = {line.split()[-1] for line in listed.stdout.splitlines()}
    entries = re.search(
        r"global:(.*?);\s*local", (ROOT / "libmaca_ffi" / folder / "exports.map").read_text(), re.S
    )
    assert entries is not None
    patterns = [name.strip() for name in entries[1].split(";")]
    others = [name for name in exported if not any(fnmatch.fnmatchcase(name, p) for p in patterns)]
    assert exported and not others


def test_the_page_has_the_versions_that_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    import versions

    results = json.loads(versions.RESULTS.read_text())
    assert versions.table(results) in versions.PAGE.read_text()
    assert versions.sentence(results) in (ROOT / "README.md").read_text()
    assert all(outcome["finished"] for outcome in results.values())


def test_versions_run_files_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    import versions

    assert not [name for name in versions.SUITE if not (ROOT / "tests" / f"test_{name}.py").exists()]


def test_the_version_stands_in_one_place() -> None:
    import macatensor

    text = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in text and macatensor.__version__ not in text
    assert importlib.metadata.version("macatensor") == macatensor.__version__
    assert f"## {macatensor.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_make_release_installs_the_extra() -> None:
    listed = re.search(r"^release = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), flags=re.M)
    assert listed is not None
    assert f"--no-compile {listed[1].replace(',', '')}\n" in (ROOT / "Makefile").read_text()


def test_the_image_takes_files_that_are_there() -> None:
    sources = re.findall(r"^COPY (?:--\S+ )*(\S+) ", (ROOT / "Dockerfile").read_text(), flags=re.M)
    assert sources == ["dist/*.whl", "notebooks/"] and (ROOT / "notebooks").is_dir()
    kept = (ROOT / ".dockerignore").read_text().split()
    assert kept[0] == "*" and "!dist/*.whl" in kept and "!notebooks/*.ipynb" in kept
