"""Feeds worker processes with tasks, notices the ones that crash or hang, and collects answers."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence

from macatensor.examination.task import Answer, Asked, Task

COMMAND = (sys.executable, "-m", "macatensor.examination.worker")
# What workers' answers rely on; libraries read some of it when they load, before a worker's first line runs.
ENVIRONMENT = {
    "MACA_FALLBACK": "silent",  # fallbacks are counted
    "PYTORCH_DEFAULT_NCHW": "1",  # strides as on the host
    "MACA_GRAIN": "1",  # samples are small: where several threads are asked for, they share them all the same
    "PYTHONWARNINGS": "ignore",
}
# Limits are of processor time: on a loaded machine the clock runs on while a task waits for a processor.
START_LIMIT = 180.0  # seconds of it until a worker has imported PyTorch's databases
# seconds of the clock in which a process that only waits for a processor surely gets _SOME of its time
IDLE_LIMIT = 120.0
_SOME = 0.01
_CPU_CLOCK = 2  # Linux: of a whole process, as clock_getcpuclockid(3) makes its number


def processor_time(process: int) -> float:
    """The seconds that all threads of a process have computed. Raises OSError when it has ended."""
    return time.clock_gettime(~process << 3 | _CPU_CLOCK)


class Watch:
    """What a process has done since one moment: how much it computed, and since when nothing.

    ``now``: the clock; ``computed``: the process's :func:`processor_time`; both in seconds.
    """

    def __init__(self, now: float, computed: float):
        self.began = self.seen = computed
        self.since = now  # when it was last seen at work

    def spent(self, computed: float) -> float:
        """The seconds that it computed."""
        return computed - self.began

    def objection(self, now: float, computed: float, limit: float) -> str:
        """Why it is not waited for any longer: it computed more than ``limit`` seconds, or waits for what never comes;
        else ``""``."""
        if computed - self.seen >= _SOME:
            self.seen, self.since = computed, now
        if self.spent(computed) > limit:
            return f"no answer within {limit:.0f} s of processor time"
        if now - self.since > IDLE_LIMIT:
            return f"no answer, and nothing computed for {IDLE_LIMIT:.0f} s"
        return ""


class _Worker:
    """One process and the task it is at."""

    def __init__(self, command: Sequence[str]):
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ, **ENVIRONMENT},
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.task: Task | None = None
        self.watch = Watch(time.monotonic(), 0.0)
        self.is_ready = False
        self.pending = b""

    def give(self, task: Task, limit: int | None) -> None:
        assert self.process.stdin is not None
        self.task, self.watch = task, Watch(time.monotonic(), self.computed())
        line = json.dumps({"task": task.__dict__, "limit": limit}) + "\n"
        with contextlib.suppress(BrokenPipeError):  # it ended meanwhile: the closed output tells
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()

    def computed(self) -> float:
        """Its processor time; once it has ended, what was last seen."""
        try:
            return processor_time(self.process.pid)
        except OSError:
            return self.watch.seen

    def lines(self) -> tuple[list[str], bool]:
        """Complete lines that arrived, and whether the process has closed its end."""
        assert self.process.stdout is not None
        data = self.process.stdout.read()
        if data is None:
            return [], False
        *complete, self.pending = (self.pending + data).split(b"\n")
        return [line.decode() for line in complete], data == b""

    def end(self) -> int:
        self.process.kill()
        code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        return code


def _lost(task: Task, outcome: str, detail: str, seconds: float) -> Answer:
    return Answer(task, outcome, detail=detail, wrong=1, seconds=seconds)


def examine(
    tasks: Sequence[Asked],
    workers: int = 2,
    time_limit: float = 120.0,
    command: Sequence[str] = COMMAND,
) -> Iterator[Answer]:
    """Answers as they come.

    ``time_limit``: seconds of processor time for one task, after which its worker is ended ("hang"), as is one that
    computes nothing for :data:`IDLE_LIMIT` seconds.
    """
    waiting = deque(tasks)
    selector = selectors.DefaultSelector()
    staff: list[_Worker] = []

    def hire() -> None:
        worker = _Worker(command)
        staff.append(worker)
        selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]

    def dismiss(worker: _Worker) -> int:
        selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
        staff.remove(worker)
        return worker.end()

    def occupy(worker: _Worker) -> None:
        worker.task = None
        if waiting:
            worker.give(*waiting.popleft())

    for _ in range(min(workers, len(waiting))):
        hire()
    try:
        while waiting or any(w.task is not None for w in staff):
            for key, _ in selector.select(timeout=1.0):
                worker: _Worker = key.data
                lines, closed = worker.lines()
                for line in lines:
                    if line == "ready":
                        worker.is_ready = True
                    else:
                        yield Answer.from_json(json.loads(line))
                    occupy(worker)
                if closed:
                    task, spent = worker.task, worker.watch.spent(worker.computed())
                    code = dismiss(worker)
                    if task is None:
                        raise RuntimeError(
                            f"an examination worker ended with status {code} before its first task"
                        )
                    yield _lost(task, "crash", f"the process ended with status {code}", spent)
                    hire()
            for worker in list(staff):
                task, computed = worker.task, worker.computed()
                if worker.is_ready and task is None:
                    continue  # there is nothing left for it
                limit = time_limit if worker.is_ready else START_LIMIT
                why = worker.watch.objection(time.monotonic(), computed, limit)
                if why and task is None:
                    raise RuntimeError(f"an examination worker did not become ready: {why}")
                if why and task is not None:
                    spent = worker.watch.spent(computed)
                    dismiss(worker)
                    yield _lost(task, "hang", why, spent)
                    hire()
    finally:
        for worker in list(staff):
            dismiss(worker)
