"""Ranks on two hosts, which are namespaces of this machine: gloo carries between them, over a virtual network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import child_environment

from macatensor.bench.hosts import Host, two_hosts

_LIMIT = 900  # seconds: ten processes import PyTorch; half a minute on an idle machine

_PROGRAM = """\
import datetime, os, signal, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
import macatensor
dist.init_process_group(timeout=datetime.timedelta(seconds=100))
rank, ranks, folder = dist.get_rank(), dist.get_world_size(), sys.argv[1]
world = dist.group.WORLD
x = torch.full((3,), rank + 1.0).maca()
dist.all_reduce(x)
assert x.tolist() == [10.0] * 3 and ranks == 4
if os.path.exists(f"{folder}/fault"):  # torchrun has begun anew; agents count their restarts each for itself
    state = torch.load(f"{folder}/parameters.pt", map_location="maca")
    dist.all_reduce(total := sum(v.sum() for v in state.values()))
    open(f"{folder}/restarted{rank}", "w").write(repr(total.item()))
    dist.destroy_process_group()
    sys.exit()

def given(r, n, dtype):
    return (torch.randn(n, generator=torch.Generator().manual_seed(r)) * 50).to(dtype)

# between hosts gloo carries, on one of them the library
assert world.carrier() == "gloo", world.carrier()
here = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
assert here.carrier().startswith("device library"), here.carrier()
open(f"{folder}/host{rank}", "w").write(os.uname().nodename)

# sums in the order of the ranks, and with the same bits everywhere
torch.use_deterministic_algorithms(True)
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64):
    for n in (5, 30_001):
        y = given(rank, n, dtype).maca()
        dist.all_reduce(y)
        wide = torch.float32 if dtype is torch.bfloat16 else dtype
        expected = given(0, n, dtype).to(wide)
        for r in range(1, ranks):
            expected = expected + given(r, n, dtype).to(wide)
        assert torch.equal(y.cpu(), expected.to(dtype)), dtype
torch.use_deterministic_algorithms(False)

# what only moves
every = [torch.empty(7).maca() for _ in range(ranks)]
dist.all_gather(every, torch.full((7,), float(rank)).maca())
assert [int(t[0].item()) for t in every] == list(range(ranks))
objects = [None] * ranks
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": r} for r in range(ranks)]
came = torch.empty(50_000).maca()
works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full_like(came, rank), (rank + 1) % ranks),
                                dist.P2POp(dist.irecv, came, (rank - 1) % ranks)])
[work.wait() for work in works]
assert came.unique().tolist() == [float((rank - 1) % ranks)]

# training with the whole batch of a single process
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).to("maca")
model, whole = DistributedDataParallel(net()), net()
optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, whole)]
for step in range(20):
    batch = torch.randn(16, 16, generator=torch.Generator().manual_seed(step)).maca()
    for m, optimizer, part in zip((model, whole), optimizers, (batch.chunk(ranks)[rank], batch)):
        optimizer.zero_grad()
        m(part).square().mean().backward()
        optimizer.step()
for mine, theirs in zip(model.module.parameters(), whole.parameters()):
    torch.testing.assert_close(mine.cpu(), theirs.cpu(), rtol=1e-5, atol=1e-6)
if rank == 0:
    torch.save(model.module.state_dict(), f"{folder}/parameters.pt")
dist.barrier()

# a rank dies inside of a collective
z = torch.ones(100_000).maca()
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of torchrun, so that each rank has the time to say what it saw
if rank == 3:
    open(f"{folder}/fault", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
begin = time.monotonic()
try:
    while True:
        dist.all_reduce(z)
        z.cpu()
except dist.DistBackendError as error:
    open(f"{folder}/died{rank}", "w").write(f"{time.monotonic() - begin} {error}")
    raise
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    try:
        made = two_hosts()
        pair = made.__enter__()
    except OSError as error:
        pytest.xfail(f"this machine makes no namespaces: {error}")
    yield pair
    made.__exit__(None, None, None)


def _torchrun(hosts: tuple[Host, Host], program: Path, *options: str, **more: str) -> list[str]:
    """Runs a program by two ranks on each host, and returns what each host's agent printed."""
    run = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts[0].address}:29500", "--rdzv-id", "one"]
    command = [*run, *meet, *options, str(program), str(program.parent)]
    agents = [
        subprocess.Popen(
            host.command(command, program.parent), env=child_environment(OMP_NUM_THREADS="1", MACA_FALLBACK="error", **more),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for host in hosts
    ]  # fmt: skip
    said = []
    try:
        for agent in agents:
            said.append(agent.communicate(timeout=_LIMIT)[0])
    finally:
        for agent in agents:
            if agent.poll() is None:
                agent.kill()
                said.append(agent.communicate()[0])
    assert [agent.returncode for agent in agents] == [0, 0], "\n".join(said)
    return said


@pytest.mark.timeout(_LIMIT)
def test_two_hosts_train_and_restart(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    _torchrun(hosts, program, "--max-restarts", "1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    names = [(tmp_path / f"host{rank}").read_text() for rank in range(4)]
    assert sorted(names) == [h.name for h in hosts for _ in range(2)] and names[0] == names[1]
    for rank in range(3):
        seconds, said = (tmp_path / f"died{rank}").read_text().split(" ", 1)
        assert float(seconds) < 60 and f"failed on rank {rank} of 4" in said
        assert "all_reduce(float32[100000])" in said and "group '0'" in said, said
    totals = {(tmp_path / f"restarted{rank}").read_text() for rank in range(4)}
    assert len(totals) == 1
