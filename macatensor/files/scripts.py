"""Programs of the user's that run in this process."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


def run_as_main(script: Path, arguments: Sequence[str]) -> None:
    """Runs ``script`` as ``python script arguments`` would: as ``__main__``, its folder first in ``sys.path``. Raises what
    the program raises; ``sys.argv`` and ``sys.path`` are as before then, too."""
    argv, path = sys.argv, sys.path[:]
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = argv, path
