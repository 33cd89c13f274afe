"""The validation layer, compiled: a library that looks at every launch of the one behind it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from macatensor.conformance.abi.header import HEADER

_SOURCES = Path(__file__).parent / "layer"


class NoCompiler(RuntimeError):
    """The layer is C, and nothing compiles it."""


def compile_layer(folder: Path) -> Path:
    """Compiles the layer into a folder, in a second or so. Raises NoCompiler."""
    compiler = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if compiler is None:
        raise NoCompiler("there is no C compiler (cc, gcc or clang) for the layer that looks at launches")
    library = folder / "libvalidation.so"
    done = subprocess.run(
        [compiler, "-std=gnu11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-I", str(HEADER.parent),
         str(_SOURCES / "validation.c"), str(_SOURCES / "plans.c"), "-o", str(library), "-ldl", "-lpthread"],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise NoCompiler(
            f"{compiler} does not compile the layer that looks at launches: {done.stderr[-500:]}"
        )
    return library
