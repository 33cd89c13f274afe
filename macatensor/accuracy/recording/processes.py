"""Processes: which run's folder they write to, their rank, and children that are recorded too."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from macatensor.accuracy.output_folder import output_folder

_ATTRIBUTE = "_macatensor_recording"
_WAIT = 10.0  # seconds for another rank to have named the run's folder

_runs: dict[str, int] = {}  # sessions so far that wrote to an output folder


def rank(group: Any = None) -> int | None:
    """This process's rank, in a group if one is given; None when it is no member."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        found = dist.get_rank(group)
        return found if found >= 0 else None
    try:
        return int(os.environ.get("RANK", "0"))
    except ValueError:
        return 0


def new_run(output: Path) -> Path:
    """A run's folder, ``run-000`` and up, that no other run has. Ranks of one program get the same one."""
    output_folder(output).mkdir(parents=True, exist_ok=True)
    session = _runs[str(output)] = _runs.get(str(output), -1) + 1
    store, token = _meeting(output, session)
    if store is not None:
        name = _free(output).name
        taken = store.compare_set(f"macatensor/accuracy/{token}", "", name).decode()
        if taken != name:
            (output / name).rmdir()
        (output / taken).mkdir(exist_ok=True)
        return output / str(taken)
    if token is None:
        return _free(output)
    return _agreed(output, token)


def _free(output: Path) -> Path:
    numbers = [int(p.name[4:]) for p in output.glob("run-*") if p.name[4:].isdigit()]
    number = max(numbers, default=-1) + 1
    while True:
        folder = output / f"run-{number:03d}"
        try:
            folder.mkdir()
            return folder
        except FileExistsError:  # another process was quicker
            number += 1


def _meeting(output: Path, session: int) -> tuple[Any, str | None]:
    """Where ranks agree on a folder: the store of their process group, or a file named after their launcher."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return dist.distributed_c10d._get_default_store(), f"{output.resolve()}/{session}"
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        return None, None
    launch = [
        os.environ.get(n, "") for n in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")
    ]
    return None, hashlib.sha256("/".join([*launch, str(os.getppid()), str(session)]).encode()).hexdigest()[
        :16
    ]


def _agreed(output: Path, token: str) -> Path:
    """The first rank that comes makes the folder and writes its name."""
    note = output / f".launch-{token}"
    try:
        with open(note, "x") as file:
            file.write(_free(output).name + "\n")
    except FileExistsError:
        pass
    deadline = time.monotonic() + _WAIT
    while not (name := note.read_text()).endswith("\n"):
        if time.monotonic() > deadline:
            raise RuntimeError(f"accuracy: another rank did not name the run's folder in {note}") from None
        time.sleep(0.01)
    return output / name.strip()


class Continuation:
    """Carried to a child that starts with a fresh interpreter: unpickling it resumes the recording there."""

    def __init__(self, sessions: list[tuple[Any, Path]]):
        self.sessions = sessions

    def __reduce__(self) -> Any:
        return _resume, (self.sessions,)


def _resume(sessions: list[tuple[Any, Path]]) -> Continuation:
    from macatensor.accuracy.recording.sessions import continue_in_child

    for settings, folder in sessions:
        continue_in_child(settings, folder)
    return Continuation(sessions)


def follow(hub: Any) -> Callable[[], None]:
    """Makes processes that start from now on record too; returns what undoes it."""
    start = BaseProcess.start

    def start_recorded(process: BaseProcess) -> None:
        sessions = [(r.settings.for_child(), r.run) for r in hub.recorders]
        setattr(process, _ATTRIBUTE, Continuation(sessions))
        try:
            start(process)
        finally:
            process.__dict__.pop(_ATTRIBUTE, None)

    BaseProcess.start = start_recorded  # type: ignore[method-assign,assignment]
    _follow_forks()

    def undo() -> None:
        if BaseProcess.start is start_recorded:
            BaseProcess.start = start  # type: ignore[method-assign]

    return undo


_forks_followed = False


def _follow_forks() -> None:
    global _forks_followed
    if (
        not _forks_followed
    ):  # Python cannot take such a function away; it does nothing while nothing is recorded
        _forks_followed = True
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    from macatensor.accuracy.recording.sessions import continue_after_fork

    continue_after_fork()
