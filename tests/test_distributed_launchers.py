"""How programs of several ranks start: torchrun, scripts for CUDA, migrated ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import ROOT

import macatensor

_PROGRAM = """\
import os
import torch
import torch.distributed as dist
{imports}
dist.init_process_group({backend})
rank = dist.get_rank()
torch.{module}.set_device(0)
model = torch.nn.Linear(4, 2).to("{device}")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(model{arguments})
model(torch.full((3, 4), rank + 1.0, device="{device}")).sum().backward()
assert model.module.weight.grad.tolist() == [[4.5] * 4] * 2, model.module.weight.grad
x = torch.ones(3, device="{device}")
dist.all_reduce(x)
assert x.tolist() == [2.0] * 3
dist.destroy_process_group()
"""


def torchrun(program: Path | None, *arguments: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    env.setdefault("MACA_LIBRARY", macatensor.device.library_info()["path"])
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *([str(program)] if program else []),
    ]
    done = subprocess.run(
        [*command, *arguments],
        env=env,
        cwd=program.parent if program else None,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.supports("torch.distributed.run")
@pytest.mark.parametrize(
    ("imports", "backend", "device", "arguments"),
    [
        ("import macatensor", "", "maca", ""),
        ("import macatensor.as_cuda", '"nccl"', "cuda", ", device_ids=[0]"),
        ("import macatensor.as_cuda", '"cpu:gloo,cuda:nccl"', "cuda", ", device_ids=[0], output_device=0"),
    ],
)
def test_torchrun_starts_a_program(
    imports: str, backend: str, device: str, arguments: str, tmp_path: Path
) -> None:
    text = _PROGRAM.format(
        imports=imports, backend=backend, device=device, module=device, arguments=arguments
    )
    (tmp_path / "program.py").write_text(text)
    torchrun(tmp_path / "program.py")


def test_a_migrated_script_runs_under_torchrun(tmp_path: Path) -> None:
    from macatensor.migrate.project import migrate
    from macatensor.migrate.rules import Rules

    (tmp_path / "train.py").write_text(
        "import torch\n\nmodel = torch.nn.Linear(4, 2)\nmodel = model.cuda()\n"
        "model(torch.ones(3, 4).cuda()).sum().backward()\nassert model.module.weight.grad.tolist() == [[3.0] * 4] * 2\n"
        "torch.distributed.destroy_process_group()\n"
    )
    migrate(tmp_path / "train.py", tmp_path / "out", Rules(), ("train.py", "model"))
    torchrun(tmp_path / "out" / "train.py")


def test_check_says_who_carries_what() -> None:
    said = json.loads(torchrun(None, "-m", "macatensor", "check", "--distributed", "--json"))
    assert said["ranks"] == 2 and said["carriers"]["tensors of the host"] == "gloo"
    assert said["carriers"]["collectives of device tensors"].startswith("device library, zero copy")
    assert all(rate > 0 for rate in said["gigabytes_per_second"].values())
