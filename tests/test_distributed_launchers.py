"""How programs of several ranks start: torchrun, scripts for CUDA, migrated ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from running import child_environment

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


def torchrun_command(program: Path | None, *options: str) -> list[str]:
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*run, *options, *([str(program)] if program else [])]


def torchrun(program: Path | None, *arguments: str, options: Sequence[str] = ()) -> str:
    """What the ranks printed."""
    done = subprocess.run(
        [*torchrun_command(program, *options), *arguments],
        env=child_environment(OMP_NUM_THREADS="1"),
        cwd=program.parent if program else None,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


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


_RESTARTED = """\
import os, signal, sys, time
import torch
import torch.distributed as dist
import macatensor
dist.init_process_group()
rank, folder = dist.get_rank(), sys.argv[1]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to("maca")
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
begin = 0
if os.path.exists(f"{folder}/checkpoint.pt"):
    saved = torch.load(f"{folder}/checkpoint.pt", map_location="maca")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    begin = saved["step"]
for step in range(begin, 8):
    x = torch.rand(8, 8, generator=torch.Generator().manual_seed(step))[4 * rank : 4 * rank + 4].maca()
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    if step == 4 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    if rank == 0:
        with open(f"{folder}/losses", "a") as losses:
            losses.write(f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {step} {loss.item()!r}\\n")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, f"{folder}/new.pt")
        os.replace(f"{folder}/new.pt", f"{folder}/checkpoint.pt")
    dist.barrier()
dist.destroy_process_group()
"""


def _nobody_runs(program: Path) -> bool:
    lines = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]
    return not any(str(program).encode() in line for line in lines)


def test_torchrun_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    program = tmp_path / "restarted.py"
    program.write_text(_RESTARTED)
    torchrun(program, str(tmp_path), options=("--max-restarts", "1"))
    assert _nobody_runs(program)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to("maca")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    expected = []
    for step in range(8):  # one process, no fault
        x = torch.rand(8, 8, generator=torch.Generator().manual_seed(step)).maca()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    lines = [line.split() for line in (tmp_path / "losses").read_text().splitlines()]
    assert [(int(r), int(s)) for r, s, _ in lines] == [
        *((0, s) for s in range(4)),
        *((1, s) for s in range(4, 8)),
    ]
    assert [float(loss) for _, _, loss in lines] == pytest.approx(expected, rel=1e-4)


def test_ctrl_c_ends_every_rank(tmp_path: Path) -> None:
    program = tmp_path / "endless.py"
    program.write_text(
        "import os, torch, torch.distributed as dist, macatensor\ndist.init_process_group()\n"
        "x = torch.ones(3).maca()\ndist.all_reduce(x)\nopen(f'ready{dist.get_rank()}', 'w').close()\n"
        "while True:\n    dist.all_reduce(x)\n"
    )
    started = subprocess.Popen(
        torchrun_command(program), env=child_environment(OMP_NUM_THREADS="1"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    try:
        ends = time.monotonic() + 100
        while not all((tmp_path / f"ready{r}").exists() for r in range(2)):
            assert started.poll() is None and time.monotonic() < ends
            time.sleep(0.1)
        os.killpg(started.pid, signal.SIGINT)  # as a terminal does
        said = started.communicate(timeout=100)[0]
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
    assert started.returncode and _nobody_runs(program), said


def test_check_says_who_carries_what() -> None:
    printed = torchrun(None, "-m", "macatensor", "check", "--distributed", "--json")
    said = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    assert said["ranks"] == 2 and said["carriers"]["tensors of the host"] == "gloo"
    assert said["carriers"]["collectives of device tensors"].startswith("device library, zero copy")
    assert all(rate > 0 for rate in said["gigabytes_per_second"].values())
