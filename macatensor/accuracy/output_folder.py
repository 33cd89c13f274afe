"""The folder that a command of the accuracy tools writes to, looked at before a long program runs."""

from __future__ import annotations

import os
from pathlib import Path


def output_folder(path: str | os.PathLike[str]) -> Path:
    """``path``, which may be made later. Raises ValueError where no folder can be: it, or what it lies in, is a file."""
    found = Path(path)
    nearest = next((p for p in (found, *found.absolute().parents) if p.exists()), found)
    if not nearest.is_dir():
        raise ValueError(f"accuracy: {found} cannot be a folder: {nearest} is a file; name another")
    return found
