"""Where the packages of oneDNN and OpenBLAS lie: prints headers and libraries for CMake, separated by semicolons.

``python host_libraries.py [FOLDER]``: as their own lists of files say, in whichever environment this Python searches; or in
FOLDER, as ``pip install --target`` fills one for another processor. Without oneDNN, which has packages for x86-64 alone, its two
places are empty.
"""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path


def package(name: str, path: list[str]) -> Distribution | None:
    """The package of that name, the first on the path."""
    return next(iter(distributions(name=name, path=path)), None)


def find(name: str, file: str, path: list[str]) -> Path:
    """The file of a package whose path ends with ``file``."""
    found = package(name, path)
    for held in (found.files if found else None) or ():
        if held.as_posix().endswith(file):
            return Path(str(held.locate())).resolve()
    raise SystemExit(f"{name} holds no {file}: install it again, with pip")


def main(path: list[str]) -> None:
    onednn = ["", ""]
    if package("onednn-cpu-gomp", path):
        header = find("onednn-devel-cpu-gomp", "include/dnnl.hpp", path)
        onednn = [str(header.parent), str(find("onednn-cpu-gomp", "libdnnl.so.3", path))]
    blas = (
        find("scipy-openblas32", "include/cblas.h", path),
        find("scipy-openblas32", "libscipy_openblas.so", path),
    )
    print(*onednn, *(file.parent for file in blas), sep=";")


if __name__ == "__main__":
    main(sys.argv[1:] or sys.path)
