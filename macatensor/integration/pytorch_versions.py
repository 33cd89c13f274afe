"""Which versions of PyTorch this package has run with, and the private names of PyTorch that it uses.

``private_names.tsv`` beside this file has them: each with the versions in which it was seen. A test keeps the list that of
the sources, and ``python tests/private_names.py --write`` adds the version that runs. Operators are no names: the table
has those, private ones too.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from pathlib import Path

import torch

FILE = Path(__file__).with_name("private_names.tsv")


@functools.cache
def private_names() -> dict[str, tuple[str, ...]]:
    """Every name, as ``torch._C._get_tracing_state``, with versions such as ``2.13``, oldest first."""
    lines = (line.split("\t") for line in FILE.read_text().splitlines() if not line.startswith("#"))
    return {name: tuple(versions.split()) for name, versions in lines}


def by_number(version: str) -> tuple[int, ...]:
    """The key by which versions are in order."""
    return tuple(map(int, version.split(".")))


def versions_seen() -> list[str]:
    """The versions with which this package has run, oldest first."""
    return sorted({v for versions in private_names().values() for v in versions}, key=by_number)


def running() -> str:
    """The version of PyTorch that runs, as ``2.13``: its last number changes no names."""
    return ".".join(torch.__version__.split(".")[:2])


def exists(name: str) -> bool:
    """Is there such a module or attribute? Imports the modules on the way to it."""
    parts = name.split(".")
    found: object = importlib.import_module(parts[0])
    for end in range(2, len(parts) + 1):
        if not hasattr(found, parts[end - 1]):
            try:
                found = importlib.import_module(".".join(parts[:end]))
            except ImportError:
                return False
        else:
            found = getattr(found, parts[end - 1])
    return True


def missing_names() -> list[str]:
    """Which private names this PyTorch lacks, of those that the newest version had with which this package has run."""
    newest = versions_seen()[-1]
    return [name for name, versions in private_names().items() if newest in versions and not exists(name)]


def warn_of_unknown() -> None:
    """One warning where the package has not run with this PyTorch."""
    seen = versions_seen()
    if running() in seen:
        return
    warnings.warn(
        f"macatensor has not run with PyTorch {torch.__version__}; it has with {', '.join(seen)}. "
        "`macatensor check` lists the names that it uses and this PyTorch lacks; what needs none of them works. "
        f'To be sure, `pip install "torch=={seen[-1]}.*"`',
        stacklevel=3,
    )
