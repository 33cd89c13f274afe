"""Sources become a library, once for equal sources, flags and compilers, in whichever process asks first."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_LOG = logging.getLogger(__name__)
_INCLUDE = Path(__file__).resolve().parents[2] / "libmaca_ffi" / "include"
_NAME = re.compile(r"[A-Za-z_]\w*")
_C = (".c",)
_CPP = (".cc", ".cpp", ".cxx", ".C", ".c++")
# As torch.utils.cpp_extension has them, and optimized: these are kernels. What a caller gives comes later and holds.
_FLAGS = ("-O3", "-fPIC", "-fvisibility=hidden")
_CPP_FLAGS = ("-std=c++17",)


def include_paths() -> list[str]:
    """Folders with ``maca.h`` and ``maca_extension.h``."""
    return [str(_INCLUDE)]


@dataclass(frozen=True)
class Build:
    """What is compiled, and how. Raises ValueError for names and sources that cannot be."""

    name: str
    sources: tuple[Path, ...]
    cflags: tuple[str, ...] = ()
    ldflags: tuple[str, ...] = ()
    include_paths: tuple[str, ...] = ()
    verbose: bool = False
    compilers: dict[str, list[str]] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not self.sources:
            raise ValueError(f"the extension {self.name} has no sources")
        for source in self.sources:
            if source.suffix not in _C + _CPP:
                raise ValueError(
                    f"the extension {self.name} has the source {source}; expected C ({', '.join(_C)}) or C++ "
                    f"({', '.join(_CPP)})"
                )

    def compiler(self, is_cpp: bool) -> list[str]:
        """The command of ``CXX`` or ``CC``, by default ``c++`` and ``cc``. Raises RuntimeError where there is none."""
        variable, usual = ("CXX", "c++") if is_cpp else ("CC", "cc")
        if variable not in self.compilers:
            command = shlex.split(os.environ.get(variable) or usual)
            found = shutil.which(command[0])
            if found is None:
                raise RuntimeError(
                    f"Error building extension '{self.name}': there is no compiler {command[0]}; install one, or set "
                    f"{variable} to its name"
                )
            self.compilers[variable] = [found, *command[1:]]
        return self.compilers[variable]

    def command(self, source: Path, made: Path) -> list[str]:
        """Compiles one source into an object, with the list of what it includes beside."""
        is_cpp = source.suffix in _CPP
        standard = () if not is_cpp or any(f.startswith("-std=") for f in self.cflags) else _CPP_FLAGS
        includes = [f"-I{folder}" for folder in (*self.include_paths, *include_paths())]
        named = f'-DMACA_EXTENSION_NAME="{self.name}"'
        return [*self.compiler(is_cpp), *_FLAGS, *standard, named, *includes, *self.cflags, "-MD", "-MF",
                str(made.with_suffix(".d")), "-c", str(source), "-o", str(made)]  # fmt: skip

    @property
    def is_cpp(self) -> bool:
        return any(source.suffix in _CPP for source in self.sources)

    def link(self, objects: Sequence[Path], made: Path) -> list[str]:
        return [*self.compiler(self.is_cpp), "-shared", *map(str, objects), *self.ldflags, "-o", str(made)]


def compile_into(build: Build, library: Path) -> list[str]:
    """Compiles the sources and puts the library in its place, whole. Returns what they include.

    Raises RuntimeError with the compiler's output.
    """
    library.parent.mkdir(parents=True, exist_ok=True)
    included: list[str] = []
    with tempfile.TemporaryDirectory(prefix=f".{build.name}-", dir=library.parent) as folder:
        objects = []
        for number, source in enumerate(build.sources):
            made = Path(folder) / f"{number}_{source.stem}.o"
            _run(build, build.command(source, made))
            included += _included(made.with_suffix(".d"))
            objects.append(made)
        whole = Path(folder) / library.name
        _run(build, build.link(objects, whole))
        os.replace(whole, library)
    return sorted(set(included))


def cached(build: Build, folder: Path) -> Path:
    """The library of equal sources, flags, compilers and headers in a folder, compiled where it is not there yet."""
    with _locked(folder / f".{build.name}.lock"):
        asked = _digest(_facts(build))
        headers = folder / f"{build.name}-{asked}.json"  # what was included when it was compiled last
        with contextlib.suppress(OSError, ValueError):
            library = (
                folder / f"{build.name}-{_digest([asked, *_contents(json.loads(headers.read_text()))])}.so"
            )
            if library.exists():
                _say(build, f"No modifications detected for extension {build.name}, using {library}")
                return library
        _say(build, f"Building extension {build.name} in {folder}...")
        fresh = folder / f"{build.name}-{asked}.so"
        included = compile_into(build, fresh)
        library = folder / f"{build.name}-{_digest([asked, *_contents(included)])}.so"
        os.replace(fresh, library)
        fresh_headers = headers.with_suffix(f".{os.getpid()}")
        fresh_headers.write_text(json.dumps(included))
        os.replace(fresh_headers, headers)
        return library


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"an extension is named {name!r}; expected a name as Python's are")


def folder_of(name: str, asked: str | os.PathLike[str] | None, verbose: bool) -> Path:
    """The one that is asked for, by default ``<root>/maca/<name>``, where the root is ``TORCH_EXTENSIONS_DIR`` or PyTorch's
    own folder for extensions. Raises ValueError for a name that cannot be."""
    _check_name(name)
    if asked is not None:
        return Path(asked).absolute()
    given = os.environ.get("TORCH_EXTENSIONS_DIR")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    root = Path(given) if given else cache / "torch_extensions"
    if verbose:
        print(f"Using {root} as PyTorch extensions root...", file=sys.stderr)
    return root / "maca" / name


def _run(build: Build, command: list[str]) -> None:
    _say(build, shlex.join(command))
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    if done.stdout:
        _say(build, done.stdout.rstrip())
    if done.returncode:
        raise RuntimeError(f"Error building extension '{build.name}': {done.stdout}")


def _say(build: Build, line: str) -> None:
    _LOG.debug("%s", line)
    if build.verbose:
        print(line, file=sys.stderr)


def _included(listed: Path) -> list[str]:
    """The files that a compiler's list of dependencies names, the system's too: their versions count as well."""
    text = listed.read_text().replace("\\\n", " ").partition(":")[2]
    return [os.path.abspath(name.replace("\\ ", " ")) for name in re.findall(r"(?:\\ |\S)+", text)]


def _contents(files: Sequence[str]) -> Iterator[str]:
    """Digests of files. Raises OSError where one is gone."""
    for file in files:
        yield hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _facts(build: Build) -> list[str]:
    """What decides the library beside what its sources include."""
    facts = [build.name, *map(os.path.abspath, build.sources), *_FLAGS, *_CPP_FLAGS, *build.include_paths]
    facts += ["--", *build.cflags, "--", *build.ldflags, "--", *_contents(list(map(str, build.sources)))]
    for is_cpp in {source.suffix in _CPP for source in build.sources}:
        command = build.compiler(is_cpp)
        binary = os.stat(command[0])
        facts += [*command, str(binary.st_size), str(binary.st_mtime_ns)]
    return facts


def _digest(facts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time compiles; a lock ends with its process. Where the file system has none, two compile the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
