"""Where the wheels of oneDNN and OpenBLAS lie: prints headers and libraries for CMake, separated by semicolons."""

from importlib.metadata import distribution
from pathlib import Path

import scipy_openblas32


def find(package: str, name: str) -> Path:
    """The file of a package whose path ends with ``name``."""
    for file in distribution(package).files or ():
        if file.as_posix().endswith(name):
            return Path(str(file.locate())).resolve()
    raise SystemExit(f"{package} holds no {name}: install it again, with pip")


headers = find("onednn-devel-cpu-gomp", "include/dnnl.hpp").parent
library = find("onednn-cpu-gomp", "libdnnl.so.3")
blas = scipy_openblas32
print(headers, library, blas.get_include_dir(), blas.get_lib_dir(), sep=";")
