"""Kernels of your own in C or C++, compiled and joined to the running device: :mod:`torch.utils.cpp_extension` for maca.

A source implements kernels of ``maca.h`` by name: those of rows, as ``"gelu"``, or of operators of your own,
``"mine::bias_gelu"``. Once it is joined, its library is asked for a kernel before the device's own, and serves the requests
that it does not decline. `docs/extending.md` shows how.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from macatensor.cpp_extension.compiling import include_paths
from macatensor.cpp_extension.loading import Extension, joined, load, load_inline, load_library

if TYPE_CHECKING:
    from macatensor.cpp_extension.packaging import BuildExtension, MACAExtension

__all__ = [
    "BuildExtension",
    "Extension",
    "MACAExtension",
    "include_paths",
    "joined",
    "load",
    "load_inline",
    "load_library",
]


def __getattr__(name: str) -> object:
    """What a setup.py uses: it takes setuptools, which programs need not have."""
    if name in ("BuildExtension", "MACAExtension"):
        from macatensor.cpp_extension import packaging

        return getattr(packaging, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
