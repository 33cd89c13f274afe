"""PyTorch's own tests of every device, from a checkout of PyTorch: which that pass on the CPU pass on maca?

Each test is a task of the examiner, in worker processes as the operator database's entries are, so that a crash or a
hang is the failure of one. Sparse, nested and quantized tensors are set aside in files that are not of them, as are
tests that the CPU itself does not pass (an older checkout expects what PyTorch no longer does). Tests that PyTorch marks
for CUDA run, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from macatensor.examination.examiner import examine
from macatensor.examination.expectations import Reason, expected
from macatensor.examination.summary import Rate
from macatensor.examination.task import Answer, Asked, Task

FILES = (
    "test_view_ops.py", "test_indexing.py", "test_torch.py", "test_shape_ops.py", "test_sort_and_select.py",
    "test_scatter_gather_ops.py", "test_tensor_creation_ops.py", "nn/test_convolution.py", "nn/test_pooling.py",
    "nn/test_embedding.py",
)  # fmt: skip
BAR = 0.97  # of all files together, without what is apart
APART = (Reason.LAYOUT,)  # expected failures of tests that come to quantized tensors on their way
TIME_LIMIT = 300.0  # seconds of processor time for one test on both devices
_WORKER = "macatensor.examination.pytorch_test_worker"


def test_folder(folder: Path, file: str = FILES[0]) -> Path:
    """The ``test`` folder of a checkout of PyTorch, or the folder itself. Raises ValueError where neither has ``file``."""
    for found in (folder / "test", folder):
        if (found / file).is_file():
            return found.resolve()
    raise ValueError(f"{folder} holds no {file}: the folder of a checkout of PyTorch is wanted, or its test/")


def tasks(folder: Path, files: Sequence[str] | None = None) -> list[Asked]:
    """The tests of these files. Raises ValueError for a file that is missing or cannot be imported."""
    files = FILES if files is None else files
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise ValueError(f"{folder} holds no {missing[0]}")
    listed = subprocess.run(
        [sys.executable, "-m", _WORKER, str(folder), "--list", *files],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        raise ValueError(f"the tests cannot be listed: {listed.stderr.strip().splitlines()[-1]}")
    found: list[Asked] = []
    for line in map(json.loads, listed.stdout.splitlines()):
        if "error" in line:
            raise ValueError(f"{line['file']} cannot be imported: {line['error']}")
        found += [(Task(**task), None) for task in line["tasks"]]
    return found


def answers(folder: Path, asked: Sequence[Asked], workers: int) -> Iterator[Answer]:
    """As they come."""
    return examine(asked, workers, TIME_LIMIT, (sys.executable, "-m", _WORKER, os.fspath(folder)))


def rates(given: Iterable[Answer]) -> list[Rate]:
    """By file, of all files together, and of these without the expected failures that are no matter of a dense tensor
    on a device (:data:`APART`): tests that pass of those that are asked of maca."""
    by_file: dict[str, list[bool]] = defaultdict(list)
    apart = 0
    for answer in given:
        if answer.outcome != "empty":
            by_file[answer.task.database].append(answer.outcome == "pass")
            line = expected(answer.task) if answer.outcome == "fail" else None
            apart += line is not None and line.reason in APART
    found = [Rate(file, sum(passed), len(passed)) for file, passed in by_file.items()]
    passed, asked = sum(r.passed for r in found), sum(r.asked for r in found)
    return [*found, Rate("all", passed, asked), Rate(f"all but {apart} apart", passed, asked - apart, BAR)]
