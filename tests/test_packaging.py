"""What the build finds, and what it leaves in the library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
