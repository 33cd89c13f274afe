"""Asks every operator with random calls, on the host and on the device, in processes that may die.

    .venv/bin/python tests/fuzz/run.py --calls 20000                 # the first calls
    .venv/bin/python tests/fuzz/run.py --calls 1000000 --minutes 50  # goes on where it stopped, for so long
    .venv/bin/python tests/fuzz/run.py --seed 1234                   # one call again, with its program

A seed is a call, the same everywhere. What differs is kept in ``build/fuzz.jsonl``, and shown in groups: those without a
reason in reasons.py are defects. Exit status 1 where there is one, a crash or a hang.
"""

from __future__ import annotations

import argparse
import json
import math
import mmap
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from calls import Call, draw
from reasons import HOST_DIES, reason
from recipes import smaller, source
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from worker import FIELDS, MEMORY

HERE = Path(__file__).parent
KEPT = HERE.parents[1] / "build" / "fuzz.jsonl"
PART = 2000  # calls of one process
HANGS, WAITS = 60, 600  # seconds of computing, or of anything, after which a call is said to hang
_OF_NUMBERS = re.compile(r"other numbers?\b|(NaN|infinite) at other places")
SIZE = struct.calcsize(FIELDS)


@dataclass
class Died:
    """How a process ended before its time."""

    seed: int
    side: str  # "host" or "device"
    how: str  # "SIGSEGV", "hangs"


@dataclass
class Found:
    """What a part of the calls gave."""

    calls: int
    lines: list[dict[str, Any]] = field(default_factory=list)


def _computed(process: int) -> float:
    """Seconds that it had of processors: on a busy machine it waits without having hung."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _ask(
    arguments: list[str], file: Path, given: Call | None = None
) -> tuple[list[dict[str, Any]], Died | None]:
    """Starts a worker and waits for it, as long as it shows life."""
    file.write_bytes(struct.pack(FIELDS, int(arguments[0]), 1, -1))
    with (
        file.open("r+b") as opened,
        mmap.mmap(opened.fileno(), SIZE) as shared,
        tempfile.TemporaryFile("w+") as out,
    ):
        process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), str(file), *arguments],
            stdin=subprocess.PIPE if given else subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MACA_FALLBACK": "silent", "MACA_DEVICE_MEMORY": str(MEMORY)},
            start_new_session=True,
        )  # fmt: skip
        if given:
            assert process.stdin
            process.stdin.write(json.dumps(asdict(given)))
            process.stdin.close()
        seen, since, computed, hangs = b"", time.monotonic(), 0.0, False
        while process.poll() is None:
            time.sleep(0.05)
            if shared[:] != seen:
                seen, since, computed = shared[:], time.monotonic(), _computed(process.pid)
            elif _computed(process.pid) - computed > HANGS or time.monotonic() - since > WAITS:
                hangs = True
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        seed, side, _ = struct.unpack(FIELDS, shared[:])
        out.seek(0)
        lines = [json.loads(line) for line in out if line.endswith("\n")]
        if process.returncode == 0:
            return lines, None
        how = (
            "hangs"
            if hangs
            else signal.Signals(-process.returncode).name
            if process.returncode < 0
            else f"exit {process.returncode}"
        )
        return lines, Died(seed, ("host", "device")[side], how)


class Fuzzer:
    """The calls of seeds ``first, first + 1, ...``, in parts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dies = set(HOST_DIES)
        self.lock = threading.Lock()

    def part(self, first: int, count: int) -> Found:
        """The calls of a part, whoever dies on the way."""
        found, at, end, host_died = Found(count), first, first + count, -1
        file = self.folder / f"{first}.map"
        while at < end:
            lines, died = _ask([str(at), str(end - at), "1", "--device-only", ",".join(self.dies)], file)
            found.lines += lines
            if died is None:
                break
            call = draw(died.seed)
            if died.side == "host":  # PyTorch's own kernel: the device is asked alone
                with self.lock:
                    self.dies.add(call.operator)
                at = host_died = died.seed
                found.lines.append(
                    {"seed": died.seed, "found": f"the host dies: {died.how}", "call": asdict(call)}
                )
            else:
                line = self.crash(died, call, at)
                if died.seed == host_died:
                    line["found"] += ", as on the host"
                found.lines.append(line)
                at = died.seed + 1
        file.unlink(missing_ok=True)
        return found

    def crash(self, died: Died, call: Call, first: int) -> dict[str, Any]:
        """A crash or a hang on the device, asked again in a process of its own, and of the host alone."""
        file = self.folder / f"{died.seed}.crash"
        found = f"{died.how} on the device"
        _, again = _ask(["0", "1", "1", "--device-only", "*", "--case"], file, call)
        if not again:
            _, again = _ask([str(first), str(died.seed - first + 1), "1", "--device-only", "*"], file)
            found = (
                f"{found}, with the calls since {first}"
                if again
                else f"the host dies: {died.how}, of memory that a call before wrote past"
            )
        file.unlink(missing_ok=True)
        return {"seed": died.seed, "found": found, "call": asdict(call)}

    def shows(self, call: Call, found: str) -> bool:
        """Whether a call differs in that way."""
        file = self.folder / f"{os.getpid()}.shrink"
        lines, died = _ask(
            ["0", "1", "1", *(["--device-only", "*"] if "on the device" in found else []), "--case"],
            file,
            call,
        )
        if died is not None:
            return died.side == "device" and found.startswith(died.how)
        return any(line["found"] == found for line in lines)

    def shrink(self, call: Call, found: str, tries: int = 60) -> Call:
        """The smallest call met that differs in that way."""
        again = True
        while again and tries > 0:
            again = False
            for simpler in _simpler(call):
                tries -= 1
                if self.shows(simpler, found):
                    call, again = simpler, True
                    break
                if tries <= 0:
                    break
        return call


def _simpler(call: Call) -> Any:
    for name in call.kwargs:
        if name not in ("device", "out"):
            yield Call(call.operator, call.args, {k: v for k, v in call.kwargs.items() if k != name})
    for i, recipe in enumerate(call.args):
        for s in smaller(recipe):
            yield Call(call.operator, [*call.args[:i], s, *call.args[i + 1 :]], call.kwargs)
    for name, recipe in call.kwargs.items():
        for s in smaller(recipe):
            yield Call(call.operator, call.args, {**call.kwargs, name: s})


def program(call: Call) -> str:
    """A program that runs the call on the host and on the device."""
    arguments = [source(a) for a in call.args] + [f"{k}={source(v)}" for k, v in call.kwargs.items()]
    space, _, rest = call.operator.partition("::")
    base, _, kind = rest.partition(".")
    return (
        'import torch, macatensor\nfrom recipes import make  # tests/fuzz\nfor device in ("cpu", "maca"):\n'
        f"    print(torch.ops.{space}.{base}.{kind or 'default'}({', '.join(arguments)}))\n"
    )


def groups(lines: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What was found, by operator (its overloads together) and way."""
    found = defaultdict(list)
    for line in lines:
        found[line["call"]["operator"].partition(".")[0], line["found"]].append(line)
    return dict(found)


def table(lines: list[dict[str, Any]], all_groups: bool, numbers: bool = True) -> tuple[Table, int]:
    """The groups, those without a reason first, and how many these are; without ``numbers`` those of values are shown
    and not counted."""
    shown = Table(
        "operator", "calls", "seed", "found", "reason", title="where the device differs from the host"
    )
    without = 0
    by_reason: dict[str, int] = defaultdict(int)
    for (operator, text), members in sorted(groups(lines).items(), key=lambda g: (-len(g[1]), g[0])):
        why = reason(operator, text)
        by_reason[why] += len(members)
        without += not why and (numbers or not _OF_NUMBERS.match(text))
        if not why or all_groups:
            shown.add_row(
                operator.removeprefix("aten::"), str(len(members)), str(members[0]["seed"]), text, why
            )
    for why, count in sorted(by_reason.items(), key=lambda item: -item[1]):
        if why and not all_groups:
            shown.add_row("", str(count), "", "", why)
    return shown, without


def run(
    first: int, calls: int, jobs: int, kept: Path | None = None, minutes: float = math.inf
) -> tuple[int, list[dict[str, Any]]]:
    """How many of the calls of these seeds were asked, and what they gave; parts that ``kept`` has are not run again, and
    none begins when ``minutes`` are over."""
    over = time.monotonic() + 60 * minutes
    done, lines = set(), []
    if kept and kept.exists():
        for text in kept.read_text().splitlines():
            part = json.loads(text)
            if first <= part["first"] and part["first"] + part["calls"] <= first + calls:
                done.add(part["first"])
                lines += part["lines"]
    starts = [s for s in range(first, first + calls, PART) if s not in done]
    with tempfile.TemporaryDirectory() as folder, Progress(console=Console(stderr=True)) as bar:
        asked = sum(min(PART, first + calls - start) for start in done)
        fuzzer, task = Fuzzer(Path(folder)), bar.add_task("calls", total=calls, completed=asked)

        def part_of(start: int) -> Found | None:
            return fuzzer.part(start, min(PART, first + calls - start)) if time.monotonic() < over else None

        with ThreadPoolExecutor(jobs) as pool:
            for start, part in zip(starts, pool.map(part_of, starts)):
                if part is None:
                    continue
                lines += part.lines
                asked += part.calls
                bar.advance(task, part.calls)
                if kept:
                    kept.parent.mkdir(exist_ok=True)
                    with kept.open("a") as file:
                        file.write(json.dumps({"first": start, **asdict(part)}) + "\n")
    return asked, lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no further part begins")
    parser.add_argument("--again", action="store_true", help="ask calls that were asked before")
    parser.add_argument("--all", action="store_true", help="show groups that have a reason as well")
    parser.add_argument("--kept", type=Path, default=KEPT, help="where what was found stays")
    parser.add_argument(
        "--any-numbers",
        action="store_true",
        help="let values differ: the CPU's kernels are others on another processor",
    )
    parser.add_argument("--seed", type=int, help="run one call, make it smaller and print its program")
    asked = parser.parse_args()
    if asked.seed is not None:
        return _one(asked.seed)
    if asked.again:
        asked.kept.unlink(missing_ok=True)
    calls, lines = run(asked.first, asked.calls, asked.jobs, asked.kept, asked.minutes)
    shown, without = table(lines, asked.all, not asked.any_numbers)
    Console(width=160).print(shown)
    print(f"{calls} calls, {len(lines)} differ, {without} groups have no reason")
    return int(without > 0)


def _one(seed: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder))
        lines = fuzzer.part(seed, 1).lines
        if not lines:
            print(program(draw(seed)) + "# no difference")
            return 0
        found = lines[-1]["found"]
        print(f"{program(fuzzer.shrink(draw(seed), found))}# {found}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
