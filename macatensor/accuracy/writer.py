"""A process's folder of a run: lines that are whole as soon as they are there, and tensors before them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from macatensor.accuracy import elements
from macatensor.accuracy.record import CALLS, ENVIRONMENT, TENSORS, line_of_stack


class Writer:
    """Writes a process's record. The folder is made when there is something to write."""

    def __init__(self, place: Callable[[], tuple[Path, dict[str, Any]]]):
        """``place`` says the folder and the environment when the first line comes: a rank may be known only then."""
        self.folder: Path | None = None
        self._place = place
        self._file = -1
        self._ended = True

    def _open(self) -> int:
        if self._file < 0:
            if self.folder is None:
                self.folder, environment = self._place()
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / ENVIRONMENT).write_text(json.dumps(environment, indent=1) + "\n")
            # one write a line to a file opened for appending: no line of another thread comes between, and what was
            # written stays when the process crashes
            self._file = os.open(self.folder / CALLS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        return self._file

    def line(self, text: str) -> None:
        """Writes a line."""
        self._ended = False
        data = text.encode()
        done = os.write(self._open(), data)
        while done < len(data):
            done += os.write(self._file, data[done:])

    def stack(self, number: int, frames: list[str]) -> None:
        """Writes a stack that is new."""
        self.line(line_of_stack(number, frames))

    def tensors(self, file: str, tensors: dict[str, torch.Tensor]) -> None:
        """Writes whole tensors, which are on the host and contiguous."""
        self._open()
        assert self.folder is not None
        elements.save(self.folder / file, tensors)

    def end(self, calls: int, is_needed: bool) -> None:
        """Says that the record is whole up to here; ``is_needed``: of a run without calls too."""
        if not self._ended or is_needed and self.folder is None:
            self.line(json.dumps({"end": {"calls": calls}}, separators=(",", ":")) + "\n")
            self._ended = True

    def close(self) -> None:
        """Closes the file; more may be written later."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def file_of(call: int, part: int = 0) -> str:
    """Where the tensors that a call was the first to see are written: its inputs at once, then its results."""
    return f"{TENSORS}/{call:06d}{f'.{part}' if part else ''}.safetensors"
