"""Answers of a run, kept as they come: an interrupted one goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

import macatensor
import op_table
from macatensor.device.properties import library_info
from macatensor.examination.task import Answer, Asked
from macatensor.files.untrusted import made, parsed


def stamp() -> str:
    """What answers depend on: the newest file of the packages, and the device library."""
    folders = [Path(macatensor.__file__).parent, Path(op_table.__file__).parent]
    files = [f for folder in folders for f in folder.rglob("*") if f.suffix in (".py", ".tsv")]
    newest = max(f.stat().st_mtime_ns for f in [*files, Path(str(library_info()["path"]))])
    return f"{torch.__version__} {newest}"


def read_answers(path: Path, of: str) -> dict[str, Answer]:
    """Answers of an interrupted run by their task's key, if its stamp is ``of``; a last line that a crash cut off is
    left out."""
    found: dict[str, Answer] = {}
    lines = path.read_text().splitlines() if path.exists() else []
    if lines and lines[0] == of:
        for line in lines[1:]:
            try:
                answer = made(Answer, parsed(line, str(path)), str(path))
            except ValueError:
                continue  # it is asked again
            found[answer.task.key] = answer
    return found


def answers(
    asked: Sequence[Asked],
    give: Callable[[Sequence[Asked]], Iterator[Answer]],
    path: Path,
    of: str,
    resume: bool = True,
) -> Iterator[Answer]:
    """What ``path`` holds of these tasks, then what ``give`` answers of the rest, which is written there as it comes.

    ``of``: the stamp that answers share; those of another one are dropped. All is asked anew where nothing is left to ask,
    and without ``resume``.
    """
    known = read_answers(path, of) if resume else {}
    left = [item for item in asked if item[0].key not in known] or asked
    if len(left) < len(asked):
        yield from (known[task.key] for task, _ in asked if task.key in known)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if known else "w") as file:
        file.write("\n" if known else of + "\n")  # the last line may have been cut off
        for answer in give(left):
            file.write(json.dumps(answer.as_json()) + "\n")
            file.flush()
            yield answer
