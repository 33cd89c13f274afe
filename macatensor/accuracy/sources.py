"""A run from a folder, whichever tool wrote it."""

from __future__ import annotations

from pathlib import Path

from macatensor.accuracy.foreign import mcpytorch as foreign_mcpytorch
from macatensor.accuracy.foreign import msprobe as foreign_msprobe
from macatensor.accuracy.records import Run, runs_in
from macatensor.accuracy.records import read as read_record


def read(folder: str | Path) -> Run:
    """Reads a record of this package, of mcPyTorch's maca_tools or of msprobe.

    Raises:
        ValueError: there is no record, records of several tools, or one that cannot be read.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"accuracy: {path} " + ("is no folder" if path.exists() else "does not exist"))
    readers = {
        "a record of macatensor": (runs_in, read_record),
        "a record of maca_tools": (foreign_mcpytorch.folders, foreign_mcpytorch.read),
        "a dump of msprobe": (foreign_msprobe.folders, foreign_msprobe.read),
    }
    found = [name for name, (present, _) in readers.items() if present(path)]
    if not found:
        raise ValueError(
            f"accuracy: {path} holds no record; expected a folder that start_record or record wrote, one with "
            f"{foreign_mcpytorch.SEQUENCE} (maca_tools) or one with {foreign_msprobe.DUMP} (msprobe)"
        )
    if len(found) > 1:
        raise ValueError(
            f"accuracy: {path} is mixed: it holds {' and '.join(found)}; name the folder of one of them"
        )
    run = readers[found[0]][1](path)
    if not run.processes:
        raise ValueError(f"accuracy: {path} holds {found[0]} without any process")
    return run
