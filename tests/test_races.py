"""Programs that drive the libraries' threads report no race under ThreadSanitizer."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DRIVERS = runpy.run_path(str(Path(__file__).parent / "sanitizers" / "drivers.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drivers")


# The runtime's takes 50 s of the compiler: `make sanitize SHORT=1`.
@pytest.mark.parametrize("name", sorted(DRIVERS["DRIVERS"].keys() - {"runtime"}))
def test_threads_have_no_race(name: str, folder: Path) -> None:
    done = DRIVERS["run"](DRIVERS["build"](name, folder))
    assert done.returncode == 0, done.stdout
