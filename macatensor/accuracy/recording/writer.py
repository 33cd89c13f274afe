"""A process's folder of a run: lines that are whole as soon as they are there, and tensors before them."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import torch

from macatensor.accuracy import elements
from macatensor.accuracy.records import CALLS, ENVIRONMENT, TENSORS, line_of_stack
from macatensor.runtime.uncompiled import uncompiled

_STEP = 1 << 22  # bytes that the file of lines grows by


@uncompiled
class Writer:
    """Writes a process's record. The folder is made when there is something to write.

    The file of lines is mapped: what was written stays when the process crashes, as after a system call for each line,
    which takes 20 us on some machines. Until it is closed zeros follow the last line.
    """

    def __init__(self, place: Callable[[], tuple[Path, dict[str, object]]]):
        """``place`` says the folder and the environment when the first line comes: a rank may be known only then."""
        self.folder: Path | None = None
        self._place = place
        self._file = -1
        self.map: mmap.mmap | None = None  # C writes lines that fit into it
        self._start = 0  # the map's place in the file
        self._end = 0  # the place behind what said that the record is whole

    def _open(self) -> None:
        """Makes the folder and the file when they are not there, and maps the file's end."""
        if self.folder is None:
            self.folder, environment = self._place()
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / ENVIRONMENT).write_text(json.dumps(environment, indent=1) + "\n")
        used = 0
        if self._file < 0:
            self._file = os.open(self.folder / CALLS, os.O_RDWR | os.O_CREAT, 0o666)
            end = os.fstat(self._file).st_size
            self._start = end - end % mmap.ALLOCATIONGRANULARITY
            used = end - self._start
        if self.map is None:
            os.ftruncate(self._file, self._start + _STEP)
            self.map = mmap.mmap(self._file, _STEP, offset=self._start)
            self.map.seek(used)

    def _unmap(self) -> None:
        if self.map is not None:
            self.map.close()
            self.map = None

    def line(self, data: bytes) -> None:
        """Writes a line, its end included."""
        if self.map is None:
            self._open()
        assert self.map is not None
        while len(data) > (left := _STEP - self.map.tell()):
            self.map.write(data[:left])
            self._unmap()
            self._start, data = self._start + _STEP, data[left:]
            self._open()
        self.map.write(data)

    def stack(self, number: int, frames: list[str]) -> None:
        """Writes a stack that is new."""
        self.line(line_of_stack(number, frames).encode())

    def tensors(self, file: str, tensors: dict[str, torch.Tensor]) -> None:
        """Writes whole tensors, which are on the host and contiguous."""
        self._open()
        assert self.folder is not None
        elements.save(self.folder / file, tensors)

    def end(self, calls: int, is_needed: bool) -> None:
        """Says that the record is whole up to here, and closes the file; more may be written later. ``is_needed``: of a
        run without calls too."""
        if self._reached() != self._end or is_needed and self.folder is None:
            self.line(json.dumps({"end": {"calls": calls}}, separators=(",", ":")).encode() + b"\n")
        self._end = self._reached()
        self._unmap()
        if self._file >= 0:
            os.ftruncate(self._file, self._end)
            os.close(self._file)
            self._file = -1

    def _reached(self) -> int:
        """The place in the file where the next line goes."""
        return self._end if self.map is None else self._start + self.map.tell()

    def abandon(self) -> None:
        """In a forked child: the file is the parent's."""
        self._unmap()
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def file_of(call: int, part: int = 0) -> str:
    """Where the tensors that a call was the first to see are written: its inputs at once, then its results."""
    return f"{TENSORS}/{call:06d}{f'.{part}' if part else ''}.safetensors"
