"""Import names of packages that exist for CUDA alone, served by PyTorch's own operators on maca.

``provide()`` lets ``import flash_attn`` and ``import apex`` find the folders here, where the packages themselves are not
installed: the finder comes after all others. ``macatensor.as_cuda`` calls it. The modules import each other by relative
names, for they are loaded under the names of their makers.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

_FOLDER = Path(__file__).parent
_VERSIONS = {"apex": "0.1", "flash_attn": "2.8.3"}  # of the packages whose functions these are
NAMES = tuple(_VERSIONS)
"""What can be provided."""
_ALONG = {"amp_C": "apex"}  # imported by a name of its own
_WRITTEN_FOR_GPUS = {
    "triton": "its kernels are compiled for GPUs alone; on maca use PyTorch's operators, torch.compile (whose programs "
    "run without triton here), or a kernel of your own by macatensor.cpp_extension",
}


class _Distribution(importlib.metadata.Distribution):
    """What asks for the installed version of a package, as transformers before it takes flash_attn, reads."""

    def __init__(self, package: str) -> None:
        self._package = package

    def read_text(self, filename: str) -> str | None:
        name = self._package.replace("_", "-")
        return {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {_VERSIONS[self._package]}\n",
            "top_level.txt": f"{self._package}\n",
        }.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        return _FOLDER / path


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if _ALONG.get(fullname, fullname) in self.names:
            package = _FOLDER / fullname
            if not package.is_dir():
                return importlib.util.spec_from_file_location(fullname, package.with_suffix(".py"))
            return importlib.util.spec_from_file_location(
                fullname, package / "__init__.py", submodule_search_locations=[str(package)]
            )
        # `importlib.util.find_spec` asks whether there is such a package, and shall be told no
        if fullname in _WRITTEN_FOR_GPUS and sys._getframe(2).f_code.co_name == "_find_and_load_unlocked":
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: {_WRITTEN_FOR_GPUS[fullname]}", name=fullname
            )
        return None

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterator[importlib.metadata.Distribution]:
        asked = context.name if context else None
        for package in sorted(self.names):
            if asked is None or asked.lower().replace("-", "_") == package:
                yield _Distribution(package)


_finder = _Finder()


def provide(*names: str) -> None:
    """Lets the packages of these ``names`` be imported where they are not installed: all of :data:`NAMES` where none is
    given. Nothing is imported by that. Raises ValueError for another name."""
    unknown = set(names) - set(NAMES)
    if unknown:
        raise ValueError(f"provide got {sorted(unknown)}; expected names of {list(NAMES)}")
    _finder.names |= set(names or NAMES)
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)


def provided() -> list[str]:
    """The names that can be imported now by :func:`provide`."""
    return sorted(_finder.names)


def withdraw() -> None:
    """Takes the names back. Whoever has imported one keeps what was imported."""
    ours = []
    for name in list(sys.modules):
        top = name.partition(".")[0]
        root = sys.modules.get(top)
        if _ALONG.get(top, top) in _finder.names and root and (root.__file__ or "").startswith(str(_FOLDER)):
            ours.append(name)
    for name in ours:
        del sys.modules[name]
    _finder.names.clear()
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
