"""Scripts that others wrote for CUDA, on maca as they are and after ``macatensor migrate``, beside the CPU's losses.

    .venv/bin/pip install -r tests/other_scripts/requirements.txt
    .venv/bin/python tests/other_scripts/run.py SOURCES [WORD ...]   # --list; --modes cpu,as_cuda; --results FILE

SOURCES holds the repositories that listed.py names, a folder each; nothing of them is kept here. Every script runs in
a process of its own (a fork of this one, which has imported PyTorch), in a fresh copy, on synthetic data, with
MACA_FALLBACK=error. It passes where it ends as on the CPU, with its losses on maca, the first within 1e-5 of the CPU's
and those of the next steps within 1e-3 (five steps count). Where they differ, it runs again with random numbers from
the host's generator; where they still do, it magnifies rounding if the CPU's losses move half as far in runs of its own
that round otherwise: one without oneDNN, up to eight that begin with weights one unit in the last place apart. Else it
fails.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from judging import apart
from listed import SCRIPTS, Script

HERE = Path(__file__).resolve().parent
MODES = ("cpu", "as_cuda", "migrated")
# runs of the CPU that round otherwise, as many as are needed: by other kernels, then by weights a unit in the last place off
ROUNDINGS = ("without oneDNN", *(f"nudged{seed}" for seed in range(8)))
WHOLE = 10**6  # steps: the script ends by itself


@dataclass
class Outcome:
    """Of one script in one mode: ``verdict`` is "pass" or says what is wrong."""

    verdict: str
    seconds: float
    record: dict[str, Any]
    log: str


class Bench:
    """Where sources lie, migrated ones too, and copies are made."""

    def __init__(self, sources: Path, work: Path, limit: float) -> None:
        self.sources, self.work, self.limit = sources, work, limit

    def tree(self, folder: Path, mode: str) -> Path:
        """A folder below the sources as it is, or what ``macatensor migrate`` makes of it."""
        if mode != "migrated":
            return self.sources / folder
        from macatensor.migrate.project import migrate  # which must find the switches set
        from macatensor.migrate.rules import Rules

        made = self.work / "migrated" / folder
        if not made.exists():
            done = migrate(self.sources / folder, made, Rules())
            assert not done.unparsed, done.unparsed
        return made

    def run(self, script: Script, mode: str) -> Outcome:
        """One run in a fresh copy, after the scripts that must come before it."""
        kind = mode.partition("+")[0]
        with tempfile.TemporaryDirectory(dir=self.work) as name:
            path = Path(name) / script.path
            folder = Path(name) / script.folder if script.folder else path.parent
            for part in (folder.relative_to(name), *map(Path, script.imports)):
                shutil.copytree(self.tree(part, kind), Path(name) / part)
            script.prepare(folder)
            for other in script.before:
                earlier = next(s for s in SCRIPTS if s.name == other)
                outcome = self._start(earlier, kind, Path(name) / earlier.path, folder, whole=True)
                if outcome.verdict != "ran":
                    return outcome
            return self._start(script, mode, path, folder)

    def _start(self, script: Script, mode: str, path: Path, folder: Path, whole: bool = False) -> Outcome:
        more = script.on_cpu if mode.startswith("cpu") else script.on_device
        arguments = shlex.split(f"{script.arguments} {more}")
        record, said = folder / "record.json", folder / "said.txt"
        steps = WHOLE if whole else script.steps
        started = time.monotonic()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (int(self.limit), int(self.limit) + 5))
            os.chdir(folder)
            output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            for number, stream in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
                os.dup2(stream, number)
            import within

            sys.path[:0] = [str(folder.joinpath(p).resolve()) for p in script.python_path]
            status = within.run(mode, record, path, arguments, script.samples, steps)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        status, seconds = self._wait(child, started)
        log = said.read_text(errors="replace")[-8000:]
        kept = json.loads(record.read_text()) if record.exists() else {}
        last = next((line for line in reversed(log.splitlines()) if line.strip()), "")
        verdict = (
            "ran"
            if status == 0
            else f"over {self.limit:.0f} s"
            if status in (None, -signal.SIGXCPU)
            else f"exit {status}: {last[:200]}"
        )
        return Outcome(verdict, seconds, kept, log)

    def _wait(self, child: int, started: float) -> tuple[int | None, float]:
        """The exit status, None where the time is up and the child was ended; and its seconds of the processor."""
        while True:
            found, status, used = os.wait4(child, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
            if time.monotonic() - started > 10 * self.limit:  # others may be busy
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None, self.limit
            time.sleep(0.05)


def judge(bench: Bench, script: Script, mode: str, cpu: Outcome) -> Outcome:
    """Runs a script on maca, as often as its numbers ask for."""
    outcome = bench.run(script, mode)
    if outcome.verdict != "ran":
        return outcome
    outcome.verdict = "pass"
    if not script.trains:
        return outcome
    want = [script.scale * loss for loss in cpu.record["losses"]]
    if outcome.record["devices"] != ["maca"]:
        outcome.verdict = f"losses lie on {outcome.record['devices']}"
        return outcome
    difference = apart(outcome.record["losses"], want, script.tolerance, compared=script.compared)
    if difference:
        own = outcome.record
        outcome = bench.run(script, mode + "+draws")
        outcome.record["own draws"] = own
        if outcome.verdict != "ran":
            outcome.verdict = "with the host's draws: " + outcome.verdict
            return outcome
        still = apart(outcome.record["losses"], want, script.tolerance, compared=script.compared)
        outcome.verdict = f"apart: {still}" if still else "pass"
        moved: list[list[float]] = []
        for rounding in ROUNDINGS if still else ():
            rounded = bench.run(script, f"cpu+{rounding}")
            if rounded.verdict != "ran":  # out of time, perhaps
                continue
            moved.append(rounded.record["losses"])
            still = apart(outcome.record["losses"], want, script.tolerance, moved, script.compared)
            if not still:
                break
        if moved:
            outcome.record["rounded otherwise"] = moved
            outcome.verdict = (
                outcome.verdict if still else f"pass: it magnifies rounding, seen in {len(moved)} runs"
            )
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sources", type=Path)
    parser.add_argument("words", nargs="*", help="only scripts whose names contain one of them")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--limit", type=float, default=180, help="seconds of the processor a run")
    parser.add_argument("--work", type=Path, help="a folder that keeps the migrated sources")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--logs", type=Path, help="a folder for what failing runs said")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_intermixed_args()
    chosen = [s for s in SCRIPTS if not options.words or any(w in s.name for w in options.words)]
    if options.list:
        print("\n".join(s.name for s in chosen))
        return
    os.environ.update(OMP_NUM_THREADS="1", MACA_FALLBACK="error", MPLBACKEND="agg", PYTHONFAULTHANDLER="1")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH")])
    )
    for name in ("torch._dynamo", "matplotlib.pyplot", "macatensor", "within"):
        importlib.import_module(name)  # once for all children
    results: dict[str, dict[str, Any]] = {}
    if options.results and options.results.exists():
        results = json.loads(options.results.read_text())
    modes = options.modes.split(",")
    with tempfile.TemporaryDirectory() as made:
        work = options.work or Path(made)
        work.mkdir(parents=True, exist_ok=True)
        bench = Bench(options.sources.resolve(), work.resolve(), options.limit)
        for script in chosen:
            row = results.setdefault(script.name, {})
            if row.get("cpu", [""])[0] == "ran":
                cpu = Outcome(*row["cpu"], log="")
            else:
                cpu = bench.run(script, "cpu")
                row["cpu"] = [cpu.verdict, round(cpu.seconds, 1), cpu.record]
            outcomes = {"cpu": cpu}
            for mode in modes[1:] if cpu.verdict == "ran" else ():
                outcomes[mode] = judge(bench, script, mode, cpu)
                row[mode] = [outcomes[mode].verdict, round(outcomes[mode].seconds, 1), outcomes[mode].record]
            shown = "  ".join(f"{m}: {o.verdict} ({o.seconds:.0f} s)" for m, o in outcomes.items())
            print(f"{script.name}\n    {shown}", flush=True)
            for mode, outcome in outcomes.items():
                if options.logs and not outcome.verdict.startswith(("pass", "ran")):
                    options.logs.mkdir(parents=True, exist_ok=True)
                    file = options.logs / f"{script.name.replace('/', '_').replace(' ', '_')}.{mode}.txt"
                    file.write_text(outcome.verdict + "\n" + outcome.log)
            if options.results:
                options.results.write_text(json.dumps(results, indent=1))
    on_cpu = [row for row in results.values() if row["cpu"][0] == "ran"]
    print(f"{len(results)} scripts, {len(on_cpu)} run on the CPU")
    for mode in modes[1:]:
        print(
            f"  {mode}: {sum(row.get(mode, [''])[0].startswith('pass') for row in on_cpu)} of {len(on_cpu)}"
        )


if __name__ == "__main__":
    main()
