"""Random programs of a few lines, of whatever kind: a line, running them in processes that may die, making them shorter."""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

PART = 500  # programs of one process
SECONDS = 600  # that a process may take
HOST_DIES = "the host dies of"


@dataclass(frozen=True)
class Line:
    """A line of a program; what a view or a result gives is one more tensor."""

    kind: str
    text: str  # with "a[0]", "a[1]", ... for tensors

    def program(self) -> str:
        return f"a.append({self.text})" if self.kind in ("view", "result") else self.text


def loaded(t: torch.Tensor) -> torch.Tensor:
    """Of a file. It may be denser than what was saved, so a strided one comes back row-major."""
    file = io.BytesIO()
    torch.save(t, file)
    file.seek(0)
    found: torch.Tensor = torch.load(file, weights_only=True)
    return found.contiguous() if found.layout is torch.strided else found


# run(seed, lines, mark): the program of a seed, or its first tensors with other lines: those that ran, and in what the last one
# differs. mark(is_device, done): what begins.
Run = Callable[..., tuple[list[Line], str]]
Source = Callable[[int, list[Line]], str]  # a program that shows it


def source_of(module: str, drawn: str) -> Source:
    """Of a script whose seed is one call, which its class ``drawn`` draws."""

    def source(seed: int, lines: list[Line]) -> str:
        return "\n".join(
            ["import sys", 'sys.path.insert(0, "tests/fuzz")', f"from {module} import {drawn}, run",
             f"print({drawn}.draw({seed}), run({seed}))"]
        )  # fmt: skip

    return source


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


def findings(file: str, first: int, count: int) -> Iterator[str]:
    """What the script ``file`` finds, in processes that may die. Begins with HOST_DIES where it is the host's fault."""
    at, end = first, first + count
    while at < end:
        size = min(PART, end - at)
        status, said, error = _asked(file, at, size)
        text = "\n".join(line for line in said if not line.startswith("@"))
        yield from re.split(r"\n+(?=seed \d+: )", text.strip()) if text else []
        if status == 1 and not text:  # the script's own error
            raise RuntimeError(error[-3000:])
        at += size
        if status not in (0, 1):
            seed, where, line = next(s for s in reversed(said) if s.startswith("@"))[1:].split(" ", 2)
            at = int(seed) + 1
            how = f"seed {seed}: {line}, exit status {status or 'none: it hangs'}"
            yield f"{HOST_DIES} {how}" if where == "host" else f"{how}: the process died on the device"


def _asked(file: str, first: int, count: int) -> tuple[int | None, list[str], str]:
    """Exit status (None: it hangs), lines that it printed, its error."""
    command = [sys.executable, file, "--first", str(first), "--programs", str(count), "--here"]
    switches = {"OMP_NUM_THREADS": "1", "PYTORCH_DEFAULT_NCHW": "1", "MACA_FALLBACK": "silent"}
    try:
        done = subprocess.run(command, timeout=SECONDS, capture_output=True, env={**os.environ, **switches})
    except subprocess.TimeoutExpired as late:
        return None, (late.stdout or b"").decode().splitlines(), ""
    return done.returncode, done.stdout.decode().splitlines(), done.stderr.decode()


def main(description: str | None, file: str, run: Run, source: Source) -> int:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, help="one program, line by line")
    parser.add_argument("--fallbacks", action="store_true", help="what the host computes alone, by operator")
    parser.add_argument("--here", action="store_true", help="in this process")
    asked = parser.parse_args()
    if asked.seed is not None:
        return min(work(run, source, asked.seed, 1), 1)
    if asked.here:
        return min(work(run, source, asked.first, asked.programs), 1)
    found, of_host = 0, 0
    groups: dict[str, list[str]] = {}
    for text in findings(file, asked.first, asked.programs):
        on_host = re.search(r"computed on the host: (.+)", text)
        if asked.fallbacks and on_host:
            groups.setdefault(on_host[1], []).append(text)
        if text.startswith(HOST_DIES):
            of_host += 1
        else:
            found += not asked.fallbacks or on_host is not None
        if not asked.fallbacks:
            print(text, end="\n\n", flush=True)
    for operators, texts in sorted(groups.items(), key=lambda group: -len(group[1])):
        print(f"== {operators}: {len(texts)} programs", *texts, sep="\n\n", end="\n\n")
    print(f"{asked.programs} programs, findings: {found}; the host dies of: {of_host}")
    return min(found, 1)
