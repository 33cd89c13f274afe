"""A run's folder: which one a process writes to, and its rank."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from macatensor.accuracy.output_folder import output_folder

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

_WAIT = 10.0  # seconds for another rank to have named the run's folder

_runs: dict[str, int] = {}  # sessions so far that wrote to an output folder


def rank(group: ProcessGroup | None = None) -> int | None:
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


def _meeting(output: Path, session: int) -> tuple[torch._C._distributed_c10d.Store | None, str | None]:
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
