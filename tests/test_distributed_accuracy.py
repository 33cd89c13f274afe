"""The accuracy tools under torchrun: a record a rank, which rank was wrong first, bisecting on every rank."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from running import child_environment
from test_distributed_launchers import torchrun

from macatensor.accuracy.comparison.report import make_report

_TRAIN = """\
import sys, torch, torch.distributed as dist
torch.set_num_threads(1)
import macatensor
from macatensor import accuracy
device, folder, fault = sys.argv[1:]
dist.init_process_group("cpu:gloo,maca:mccl")
rank = dist.get_rank()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to(device)
model = torch.nn.parallel.DistributedDataParallel(net)
x = torch.rand(4, 4, generator=torch.Generator().manual_seed(rank)).to(device)
def step():
    y = model(x)
    if rank == 1 and fault == "nan":
        y = y.clone()
        y[0, 0] = float("nan")
    y = torch.exp(y)
    total = y.detach().sum()
    dist.all_reduce(total)
    (y.sum() * total).backward()
if folder == "-":
    step()
else:
    with accuracy.record(folder, record_level=1):
        step()
dist.destroy_process_group()
"""


def test_ranks_under_torchrun_and_where_nan_came_from(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(_TRAIN)
    torchrun(program, "cpu", str(tmp_path / "cpu"), "none")
    torchrun(program, "maca", str(tmp_path / "nan"), "nan")
    folders = sorted(p.name.rsplit("-", 1)[0] for p in (tmp_path / "nan" / "run-000").iterdir())
    assert folders == ["process-0", "process-1"]
    report = make_report(tmp_path / "cpu", tmp_path / "nan", tmp_path / "out")
    first = report.first  # rank 0 has NaN too, from the all_reduce on
    assert first is not None and first.rank == 1 and "all_reduce" not in first.call.op, report
    assert "exp" in first.call.op or "setitem" in first.call.op or "fill" in first.call.op, report
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--no-python",
    ]
    bisect = [sys.executable, "-m", "macatensor", "accuracy", "bisect", str(program), "maca", "-", "none"]
    done = subprocess.run(
        [*command, *bisect],
        env=child_environment(OMP_NUM_THREADS="1"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0 and done.stdout.count("every operator keeps its bound") == 2, done
