"""Random programs of a few lines, of whatever kind: a line, running them in processes that may die, making them shorter."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

PART = 500  # programs of one process
SECONDS = 600  # that a process may take


@dataclass(frozen=True)
class Line:
    """A line of a program; what a view or a result gives is one more tensor."""

    kind: str
    text: str  # with "a[0]", "a[1]", ... for tensors

    def program(self) -> str:
        return f"a.append({self.text})" if self.kind in ("view", "result") else self.text


def loaded(t: torch.Tensor) -> torch.Tensor:
    """Of a file. It may be denser than what was saved, so it comes back row-major."""
    file = io.BytesIO()
    torch.save(t, file)
    file.seek(0)
    found: torch.Tensor = torch.load(file, weights_only=True)
    return found.contiguous()


# run(seed, lines, mark): the program of a seed, or its first tensors with other lines: those that ran, and in what the last one
# differs. mark(is_device, done): what begins.
Run = Callable[..., tuple[list[Line], str]]
Source = Callable[[int, list[Line]], str]  # a program that shows it


def shrink(run: Run, seed: int, lines: list[Line]) -> list[Line]:
    """Fewer lines that differ as well."""
    at = len(lines) - 2
    while at >= 0:
        fewer = lines[:at] + lines[at + 1 :]
        try:
            ran, again = run(seed, fewer)
        except Exception:  # a line names a tensor that is gone
            again = ""
        if again:
            lines = ran
        at = min(at, len(lines) - 1) - 1
    return lines


def work(run: Run, source: Source, first: int, count: int) -> int:
    """Programs in this process, one after another; says what it does before it does it."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = 0
    for seed in range(first, first + count):

        def mark(is_device: bool, done: list[Line], seed: int = seed) -> None:
            print(f"@{seed} {'device' if is_device else 'host'} {done[-1].program()}", flush=True)

        lines, text = run(seed, mark=mark)
        if text:
            found += 1
            print(f"seed {seed}: {text}\n{source(seed, shrink(run, seed, lines))}\n", flush=True)
    return found


def parts(file: str, first: int, count: int) -> Iterator[str]:
    """What the script ``file`` finds, in processes that may die."""
    at, end = first, first + count
    while at < end:
        size = min(PART, end - at)
        done = subprocess.run(
            [sys.executable, file, "--first", str(at), "--programs", str(size), "--here"], timeout=SECONDS,
            capture_output=True, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTORCH_DEFAULT_NCHW": "1", "MACA_FALLBACK": "silent"},
        )  # fmt: skip
        said = done.stdout.splitlines()
        if text := "\n".join(line for line in said if not line.startswith("@")):
            yield text
        elif done.returncode == 1:  # the script's own error
            raise RuntimeError(done.stderr[-3000:])
        at += size
        if done.returncode not in (0, 1):
            seed, where, line = next(s for s in reversed(said) if s.startswith("@"))[1:].split(" ", 2)
            at = int(seed) + 1
            if where == "device":
                yield f"seed {seed}: the process died of {line}, exit status {done.returncode}"


def main(description: str | None, file: str, run: Run, source: Source) -> int:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, help="one program, line by line")
    parser.add_argument("--here", action="store_true", help="in this process")
    asked = parser.parse_args()
    if asked.seed is not None:
        return min(work(run, source, asked.seed, 1), 1)
    if asked.here:
        return min(work(run, source, asked.first, asked.programs), 1)
    found = 0
    for text in parts(file, asked.first, asked.programs):
        found += 1
        print(text, flush=True)
    print(f"{asked.programs} programs, {found or 'no'} parts of them with findings")
    return min(found, 1)
