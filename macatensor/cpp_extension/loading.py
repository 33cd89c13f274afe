"""``load``, ``load_inline`` and ``load_library``: libraries that are joined to the device."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from macatensor.cpp_extension.compiling import Build, cached, folder_of
from macatensor.runtime import extensions


class Extension:
    """A library that is joined to the device, until :meth:`unload` or the end of a ``with`` block.

    What was compiled or captured with its kernels meanwhile keeps them.
    """

    def __init__(self, joined: extensions.Joined):
        self._joined = joined

    @property
    def name(self) -> str:
        return self._joined.name

    @property
    def path(self) -> Path:
        """The library."""
        return self._joined.path

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels that it names."""
        return self._joined.kernels

    @property
    def launches(self) -> int:
        """How many launches it has served."""
        return self._joined.launches

    @property
    def is_joined(self) -> bool:
        """Is it asked for plans?"""
        return self._joined in extensions.joined()

    def unload(self) -> None:
        """It is asked no more: the next call of its kernels is served as if it had never been there. Raises RuntimeError
        while a graph is captured."""
        extensions.leave(self._joined)

    def __enter__(self) -> Extension:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unload()

    def __repr__(self) -> str:
        state = "" if self.is_joined else ", unloaded"
        return f"<extension {self.name}: {', '.join(self.kernels)}{state}>"


def joined() -> list[Extension]:
    """Those that are joined, in the order in which they are asked: the latest first."""
    return [Extension(one) for one in extensions.joined()]


def _flags(name: str, given: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(given, str):
        raise TypeError(f"{name} got the text {given!r}; accepted: a list of flags, such as {given.split()}")
    return tuple(given or ())


def load(
    name: str,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    extra_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str | os.PathLike[str]] | None = None,
    build_directory: str | os.PathLike[str] | None = None,
    verbose: bool = False,
) -> Extension:
    """Compiles C and C++ sources with the system's compiler (``CXX``, ``CC``) and joins the library to the device.

    A library of equal sources, flags, compilers and headers is compiled once and kept in ``build_directory``, by default a
    folder of the user's as :func:`torch.utils.cpp_extension.load` has it (``TORCH_EXTENSIONS_DIR``). An extension of the
    same name that is joined already gives way. Sources include ``maca_extension.h`` (C++) or ``maca.h``.

    Raises RuntimeError with the compiler's output, ImportError where the library does not fit the device or the ABI,
    ValueError for names and sources that cannot be, TypeError for flags that are no list.
    """
    given = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    build = Build(
        name,
        tuple(Path(s).absolute() for s in given),
        _flags("extra_cflags", extra_cflags),
        _flags("extra_ldflags", extra_ldflags),
        tuple(os.path.abspath(p) for p in extra_include_paths or ()),
        verbose,
    )
    missing = next((s for s in build.sources if not s.exists()), None)
    if missing is not None:
        raise FileNotFoundError(f"the extension {name} has the source {missing}, which does not exist")
    folder = folder_of(name, build_directory, verbose)
    return Extension(extensions.join(name, cached(build, folder)))


def load_inline(
    name: str,
    cpp_sources: str | Sequence[str],
    extra_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str | os.PathLike[str]] | None = None,
    build_directory: str | os.PathLike[str] | None = None,
    verbose: bool = False,
) -> Extension:
    """:func:`load` of C++ that is given as text, after ``#include <maca_extension.h>``. Raises what that raises."""
    texts = [cpp_sources] if isinstance(cpp_sources, str) else cpp_sources
    text = "\n".join(["#include <maca_extension.h>", *texts]) + "\n"
    folder = folder_of(name, build_directory, verbose)
    folder.mkdir(parents=True, exist_ok=True)
    # of its own name for each text, so that no process finds another's half written
    source = folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.cpp"
    fresh = source.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    fresh.write_text(text)
    os.replace(fresh, source)
    return load(name, source, extra_cflags, extra_ldflags, extra_include_paths, folder, verbose)


def load_library(path: str | os.PathLike[str], name: str | None = None) -> Extension:
    """Joins a library that is compiled already, as :class:`MACAExtension` makes one, under ``name``, by default its file's.

    Raises ImportError where there is none, or it does not fit the device or the ABI.
    """
    library = Path(path).absolute()
    return Extension(extensions.join(name or library.name.partition(".")[0], library))
