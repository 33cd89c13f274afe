"""Extensions in a package: what a setup.py names."""

from __future__ import annotations

from pathlib import Path

import setuptools
from torch.utils import cpp_extension

from macatensor.cpp_extension.compiling import Build, compile_into
from macatensor.runtime.boxed import Value


def MACAExtension(name: str, sources: list[str], **options: Value) -> setuptools.Extension:
    """A :class:`setuptools.Extension` for kernels of maca, to be built by :class:`BuildExtension`.

    ``package._kernels`` becomes ``package/_kernels.so``, no module of Python: the package joins it by
    :func:`macatensor.cpp_extension.load_library`. ``options`` are those of :class:`setuptools.Extension`, of which
    ``include_dirs``, ``define_macros``, ``extra_compile_args``, ``extra_link_args`` and ``depends`` count.
    """
    made: Value = setuptools.Extension(name, sources, **options)
    made.is_maca = True
    return made


class BuildExtension(cpp_extension.BuildExtension):
    """The ``build_ext`` of :mod:`torch.utils.cpp_extension`, which also builds :func:`MACAExtension`."""

    def build_extension(self, ext: Value) -> None:
        """Raises RuntimeError with the compiler's output."""
        if not getattr(ext, "is_maca", False):
            super().build_extension(ext)
            return
        macros = [f"-D{m}" if value is None else f"-D{m}={value}" for m, value in ext.define_macros]
        build = Build(
            ext.name.rpartition(".")[2],
            tuple(Path(s).absolute() for s in ext.sources),
            (*macros, *ext.extra_compile_args),
            tuple(ext.extra_link_args),
            tuple(ext.include_dirs),
            bool(self.verbose),
        )
        compile_into(build, Path(self.get_ext_fullpath(ext.name)).absolute())

    def get_ext_filename(self, ext_name: str) -> str:
        """Without Python's suffix for those that are no module of Python."""
        found = next(
            (e for e in self.extensions or () if e.name == ext_name or e.name.endswith(f".{ext_name}")), None
        )
        if getattr(found, "is_maca", False):
            return str(Path(*ext_name.split("."))) + ".so"
        return str(super().get_ext_filename(ext_name))  # type: ignore[no-untyped-call]
