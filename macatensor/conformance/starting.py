"""The complete small library that ``macatensor new-device`` writes."""

from __future__ import annotations

import shutil
from pathlib import Path

from macatensor.conformance.abi.header import HEADER

_TEMPLATE = Path(__file__).parent / "new_device"


def write_device(folder: Path) -> list[Path]:
    """Writes the library's files and a copy of maca.h; returns them. Raises FileExistsError for a folder that has
    files."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} has files; name an empty or a new folder")
    written = []
    for source in [*sorted(p for p in _TEMPLATE.iterdir() if p.is_file()), HEADER]:
        # a wheel leaves out files that are called CMakeLists.txt
        written.append(folder / source.name.removesuffix(".template"))
        shutil.copyfile(source, written[-1])
    return written
