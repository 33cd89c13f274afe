"""Cross-compiles the wheel of 64-bit Arm into ``dist/aarch64/``: ``make aarch64`` runs it, and then tests/wheels/aarch64.py.

Debian's g++-aarch64-linux-gnu compiles it, in the folder ``build/aarch64``; OpenBLAS is of PyPI's wheel for Arm. oneDNN has
no wheel there, and our own kernels stand in.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile

from release import ROOT, commit_time, write_hashes

DIST = ROOT / "dist" / "aarch64"
PACKAGES = ROOT / "build" / "aarch64-packages"
OPENBLAS = "scipy-openblas32"


def fetch_packages() -> None:
    """The wheels for Arm that the library is linked with, unpacked."""
    if PACKAGES.exists():
        return
    downloads = PACKAGES.with_name("aarch64-downloads")
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (28, 27, 17)]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *platforms]
        + ["--dest", str(downloads), OPENBLAS],
        check=True,
    )
    for wheel in downloads.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(PACKAGES)


def main() -> None:
    fetch_packages()
    shutil.rmtree(DIST, ignore_errors=True)
    environment = {**os.environ, "MACA_MANYLINUX": "aarch64", "SOURCE_DATE_EPOCH": commit_time()}
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(DIST), *sys.argv[1:], "."],
        cwd=ROOT, env=environment, check=True,
    )  # fmt: skip
    write_hashes(DIST)


if __name__ == "__main__":
    main()
