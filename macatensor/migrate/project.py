"""A file or a folder of sources, written for maca into a new folder. The input is only read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst

from macatensor.migrate.distributed import distribute
from macatensor.migrate.rewrite import Rewritten, parses, rewrite
from macatensor.migrate.rules import Change, Finding, Rules

_SKIPPED = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".venv"}
)


class MigrationError(ValueError):
    """The request cannot be met: no such input, or an output that is in use."""


@dataclass
class Migration:
    """What was done."""

    source: Path
    output: Path
    files: int = 0
    rewritten: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unparsed: dict[str, str] = field(default_factory=dict)  # file -> why it was not rewritten


def migrate(
    source: Path,
    output: Path,
    rules: Rules,
    main: tuple[str, str] | None = None,
    progress: Callable[[str], None] = lambda file: None,
) -> Migration:
    """Writes ``source`` for maca under ``output``. ``main`` is the file and the model that ``distribute`` wraps.

    Raises MigrationError before anything is written.
    """
    _check(source, output)
    files = [source] if source.is_file() else sorted(_walk(source))
    root = source.parent if source.is_file() else source
    if main is not None and root / main[0] not in files:
        raise MigrationError(f"{main[0]} is not a file of {source}")
    done = Migration(source, output, files=len(files))
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MigrationError(f"{output} cannot be made: {error.strerror}; name a folder that can") from None
    for path in files:
        relative = path.relative_to(root)
        name = relative.as_posix()
        progress(name)
        target = output / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_symlink() and not (path.is_file() and os.access(path, os.R_OK)):
            # reading a pipe would wait for its writer
            done.unparsed[name] = "no regular file that can be read, so it was left out"
            continue
        if path.suffix not in (".py", ".pyi") or path.is_symlink():
            shutil.copy2(path, target, follow_symlinks=False)
            if path.suffix == ".ipynb":
                done.findings.append(
                    Finding(
                        name, 0, "notebook", "cells are not rewritten", "export it as a script, migrate that"
                    )
                )
            continue
        made = _rewritten(path, name, rules, main[1] if main is not None and main[0] == name else None, done)
        if made is None:
            shutil.copy2(path, target)
            continue
        target.write_bytes(made.code)
        shutil.copymode(path, target)
        done.changes += made.changes
        done.findings += made.findings
        if made.changes:
            done.rewritten.append(name)
    return done


def _rewritten(path: Path, name: str, rules: Rules, model: str | None, done: Migration) -> Rewritten | None:
    """The file rewritten; None, and noted, where it cannot be."""
    source = path.read_bytes()
    try:
        made = rewrite(source, name, rules)
        if model is not None:
            made = distribute(made, name, model)
    except cst.ParserSyntaxError as error:
        done.unparsed[name] = f"line {error.raw_line}: {error.message.splitlines()[0]}"
        return None
    except (SyntaxError, UnicodeDecodeError, LookupError, RecursionError) as error:
        # SyntaxError: bytes that say no encoding
        done.unparsed[name] = f"{type(error).__name__}: {error}"
        return None
    if made.changes and not parses(made.code):
        done.unparsed[name] = "rewriting it gave no valid Python; this is an error of macatensor migrate"
        return None
    return made


def _check(source: Path, output: Path) -> None:
    if not source.exists():
        raise MigrationError(f"{source} does not exist")
    if output.exists() and not output.is_dir():
        raise MigrationError(f"{output} is a file; name a folder that is empty or new")
    if output.is_dir() and any(output.iterdir()):
        raise MigrationError(f"{output} is not empty; name a folder that is empty or new")
    inside = source.resolve() if source.is_dir() else None
    if inside is not None and (output.resolve() == inside or inside in output.resolve().parents):
        raise MigrationError(f"{output} lies inside {source}; name a folder outside the input")


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if f not in _SKIPPED]
        yield from (Path(parent, f) for f in (*files, *(d for d in folders if Path(parent, d).is_symlink())))
