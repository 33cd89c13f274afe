"""``torch.maca``'s dumps, with torch_npu's names: :mod:`macatensor.accuracy.dumps`, which comes when one is made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

__all__ = ["dumper", "finalize_dump", "init_dump", "set_dump"]


def _dumps() -> Any:
    import macatensor

    return macatensor.accuracy


def init_dump() -> None:
    """Makes :func:`set_dump` possible."""
    _dumps().init_dump()


def set_dump(config: str | os.PathLike[str] | Mapping[str, object]) -> None:
    """Records operators from now on, as a JSON file says: ``macatensor.accuracy.dumps``."""
    _dumps().set_dump(config)


def finalize_dump() -> Path | None:
    """Ends the dump and returns its folder, which ``macatensor.accuracy`` compares and replays."""
    folder: Path | None = _dumps().finalize_dump()
    return folder


def dumper(
    use_dump: bool = True,
    use_load: bool = False,
    dump_path: str | os.PathLike[str] = "./dump.h5",
    load_file_path: str | os.PathLike[str] = "",
) -> AbstractContextManager[list[object]]:
    """``with torch.maca.dumper(dump_path="run.h5"):`` records into an HDF5 file; with ``use_load`` what another file holds
    is run again first. ``macatensor.accuracy.dumps``."""
    made: AbstractContextManager[list[object]] = _dumps().dumper(
        use_dump, use_load, dump_path, load_file_path
    )
    return made
