"""The interposer of the tests, compiled: a device library that forwards to another and injects faults."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "interposer"
INCLUDE = Path(__file__).parents[1] / "libmaca_ffi" / "include"


def compile_interposer(folder: Path) -> Path:
    """Compiles it into a folder, in a second or so."""
    compiler = next((c for c in ("cc", "gcc", "clang", "c++") if shutil.which(c)), None)
    assert compiler is not None, "this needs a C compiler, as the build does"
    library = folder / "libinterposer.so"
    sources = [
        str(SOURCES / name)
        for name in (
            "interposer.c",
            "answers.c",
            "faults.c",
            "planted_forward.c",
            "planted_training.c",
            "planted_memory.c",
        )
    ]
    subprocess.run(
        [compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden",
         "-I", str(INCLUDE), *sources, "-o", str(library), "-ldl", "-lm", "-lpthread"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return library


def host_library() -> Path:
    """The device library that macatensor would load, found without loading it."""
    chosen = os.environ.get("MACA_LIBRARY")
    if chosen:
        return Path(chosen)
    import libmaca_ffi
    from libmaca_ffi import _binding

    folders = [*libmaca_ffi.__path__, Path(_binding.__file__).parent]
    return next(p for p in (Path(f) / "lib" / "libmaca_host.so" for f in folders) if p.exists())


def main() -> int:
    """Runs a command that asks the interposer what ``macatensor.conformance`` asks of a device library."""
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            "MACA_CONFORMANCE_LIBRARY": str(compile_interposer(Path(folder))),
            "MACA_INTERPOSER_TARGET": str(host_library()),
        }
        return subprocess.run(sys.argv[1:], env={**os.environ, **asked}).returncode


if __name__ == "__main__":
    sys.exit(main())
