"""Programs of several ranks: real processes of one thread each, that meet through a file."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from running import child_environment

_BEGIN = """\
import datetime, os, sys
import torch, torch.distributed as dist
torch.set_num_threads(1)
import macatensor
from macatensor import maca
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group({backend}, init_method="file://{meeting}", rank=rank, world_size=ranks,
                        timeout=datetime.timedelta(seconds={timeout}){more})
"""
_END = """
dist.destroy_process_group()
"""


def run_ranks(
    code: str,
    folder: Path,
    ranks: int = 2,
    backend: str = '"mccl"',
    timeout: float = 30,
    more: str = "",
    expect: tuple[int, ...] | None = None,
    limit: float = 120,
    **environment: str,
) -> list[str]:
    """Runs a program on every rank after ``init_process_group`` and returns what each printed. Fails with all output
    when a rank's exit status is not the one of ``expect``, by default 0."""
    meeting = folder / f"meeting{time.monotonic_ns()}"
    begin = _BEGIN.format(backend=backend, meeting=meeting, timeout=timeout, more=more)
    program = folder / f"{meeting.name}.py"
    program.write_text(begin + textwrap.dedent(code) + _END)
    env = {
        **child_environment(OMP_NUM_THREADS="1", MACA_FALLBACK="error", PYTHONFAULTHANDLER="1"),
        "WORLD_SIZE": str(ranks),
        **environment,
    }
    outputs = [(folder / f"{meeting.name}.{rank}").open("w+") for rank in range(ranks)]
    processes = [
        subprocess.Popen(
            [sys.executable, program], env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}, cwd=folder,
            stdout=outputs[rank], stderr=subprocess.STDOUT,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    ends = time.monotonic() + limit
    statuses = []
    for process in processes:
        try:
            statuses.append(process.wait(max(0.1, ends - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # PYTHONFAULTHANDLER: each thread says where it is
            statuses.append(process.wait(30))
    texts = []
    for output in outputs:
        output.seek(0)
        texts.append(output.read())
        output.close()
    said = "\n".join(f"--- rank {rank}: exit {statuses[rank]}\n{text}" for rank, text in enumerate(texts))
    if tuple(statuses) != (expect or (0,) * ranks):
        pytest.fail(said, pytrace=False)  # what the ranks say, not this file's lines
    return texts
