"""Levels 0 and 1: the rules of :mod:`macatensor.conformance.abi`, asked by a process that has no PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from macatensor.conformance.outcome import Line

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class RuleFacts:
    """A rule's name, level and sentence of maca.h."""

    name: str
    level: int
    sentence: str


def _command(library: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    path = os.pathsep.join(filter(None, [str(_FOLDER), os.environ.get("PYTHONPATH")]))
    return [sys.executable, "-m", "abi", str(library), *arguments], {**os.environ, "PYTHONPATH": path}


def rules(library: Path = Path()) -> list[RuleFacts]:
    """All rules in order; no library is loaded."""
    command, environment = _command(library, "--list")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [RuleFacts(**json.loads(line)) for line in done.stdout.splitlines()]


def kernels_of(library: Path, limit: float = 60.0) -> list[str] | None:
    """The names of the library's kernels, asked in another process; None when it does not say."""
    command, environment = _command(library, "--kernels", "--limit", str(limit))
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit + 30, check=True
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    names: list[str] | None = json.loads(done.stdout or "null")
    return names


def ask(library: Path, names: Sequence[str], limit: float = 60.0, memory: int = 4 << 30) -> Iterator[Line]:
    """A line for each rule, as it is answered. ``limit``: seconds of the clock; ``memory``: bytes."""
    command, environment = _command(library, *names, "--limit", str(limit), "--memory", str(memory))
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            yield Line(**json.loads(line))
        if process.wait() != 0:
            raise RuntimeError(f"the process that asks the rules ended with status {process.returncode}")
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
