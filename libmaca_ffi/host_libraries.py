"""Where the wheels of oneDNN and OpenBLAS lie: prints headers and libraries for CMake, separated by semicolons.

``python host_libraries.py [FOLDER]``: of the wheels unpacked there, which may be another processor's; without it, of this
environment. What stands for oneDNN is nothing where it has no wheel.
"""

import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

folders = sys.argv[1:] or sys.path


def package(name: str) -> Distribution | None:
    return next(iter(distributions(name=name, path=folders)), None)


def find(name: str, file: str) -> Path:
    """The file of a package whose path ends with ``file``."""
    found = package(name)
    for held in (found and found.files) or ():
        if held.as_posix().endswith(file):
            return Path(str(held.locate())).resolve()
    raise SystemExit(f"{name} holds no {file}: install it again, with pip")


onednn: tuple[Path, ...] | tuple[str, str] = ("", "")
if package("onednn-cpu-gomp"):
    onednn = (
        find("onednn-devel-cpu-gomp", "include/dnnl.hpp").parent,
        find("onednn-cpu-gomp", "libdnnl.so.3"),
    )
blas = find("scipy-openblas32", "lib/libscipy_openblas.so").parent
print(*onednn, find("scipy-openblas32", "include/cblas.h").parent, blas, sep=";")
