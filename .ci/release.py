"""Builds what is published, into ``dist/``: ``make release`` runs it, and then the checks of tests/wheels/checks.py.

    .venv/bin/python .ci/release.py              # source, wheels, bill of materials, hashes
    .venv/bin/python .ci/release.py --again DIR  # the wheel once more, from the checkout: it must be the same file

The wheel is built from the source distribution, unpacked in another folder, with build isolation. Its name promises
glibc 2.28 (libmaca_ffi/old_glibc.cmake), its times are those of the commit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import bill_of_materials

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
HASHES = "SHA256SUMS"


def commit_time() -> str:
    """Seconds of the checked-out commit, for whatever writes times into files."""
    said = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return said.stdout.strip()


def build(out: Path, *what: str) -> None:
    """Runs the standard front end: no ``what``: the source distribution, and the wheel from it."""
    environment = {
        **os.environ,
        "MACA_MANYLINUX": platform.machine(),
        "SOURCE_DATE_EPOCH": commit_time(),
    }
    subprocess.run(
        [sys.executable, "-m", "build", *what, "--outdir", str(out), str(ROOT)],
        env=environment,
        check=True,
    )


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_hashes(folder: Path) -> None:
    """As ``sha256sum --check`` reads them."""
    files = sorted(p for p in folder.iterdir() if p.name != HASHES)
    (folder / HASHES).write_text("".join(f"{sha256(p)}  {p.name}\n" for p in files))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--again", type=Path, metavar="DIR", help="build the wheel into DIR from the checkout"
    )
    again = parser.parse_args().again
    if again:
        build(again, "--wheel")
        return
    shutil.rmtree(DIST, ignore_errors=True)
    build(DIST)
    for wheel in sorted(DIST.glob("*.whl")):
        bill_of_materials.write(wheel, int(commit_time()))
    write_hashes(DIST)
    print((DIST / HASHES).read_text(), end="")


if __name__ == "__main__":
    main()
