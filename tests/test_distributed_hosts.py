"""Two hosts, as network namespaces joined by a cable of their own, two ranks on each."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_distributed_launchers import environment

_PROGRAM = """\
import os
import torch, torch.distributed as dist
import macatensor
dist.init_process_group()
rank = dist.get_rank()
assert dist.get_world_size() == 4 and int(os.environ["LOCAL_RANK"]) == rank % 2
x = torch.full((1000,), rank + 1.0).maca()
dist.all_reduce(x)
assert x.tolist() == [10.0] * 1000
mesh = dist.device_mesh.init_device_mesh("maca", (2, 2), mesh_dim_names=("host", "rank"))
y = torch.full((3,), float(rank)).maca()
dist.all_reduce(y, group=mesh.get_group("rank"))  # on one host
assert y.tolist() == [[1.0] * 3, [5.0] * 3][rank // 2]
def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).to("maca")
ours, alone = torch.nn.parallel.DistributedDataParallel(model()), model()
for net, part in ((ours, slice(2 * rank, 2 * rank + 2)), (alone, slice(None))):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    for step in range(20):
        x = torch.rand(8, 8, generator=torch.Generator().manual_seed(step))[part].maca()
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
for a, b in zip(ours.parameters(), alone.parameters()):
    torch.testing.assert_close(a.detach().cpu(), b.detach().cpu(), rtol=1e-5, atol=2e-6)
print("host", os.environ["GROUP_RANK"], "rank", rank, "done", flush=True)
dist.destroy_process_group()
"""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """The names of two namespaces with addresses 10.231.7.1 and .2."""
    tag = uuid.uuid4().hex[:6]
    names, cables = [f"maca{tag}{i}" for i in range(2)], [f"mv{tag}{i}" for i in range(2)]
    made = []
    try:
        for name in names:
            _ip("netns", "add", name)
            made.append(name)
        _ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        for i, (name, cable) in enumerate(zip(names, cables)):
            _ip("link", "set", cable, "netns", name)
            for words in (["addr", "add", f"10.231.7.{i + 1}/24", "dev", cable], ["link", "set", cable, "up"], ["link", "set", "lo", "up"]):  # fmt: skip
                _ip("-n", name, *words)
        yield [f"{name}/{cable}" for name, cable in zip(names, cables)]
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.xfail(f"no network namespaces here: {error} {getattr(error, 'stderr', '')}")
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], timeout=20, check=False)


def test_ranks_of_two_hosts_train_as_one_process(hosts: list[str], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    agents = []
    for i, host in enumerate(hosts):
        name, cable = host.split("/")
        run = [
            "-m",
            "torch.distributed.run",
            "--nnodes",
            "2",
            "--nproc-per-node",
            "2",
            "--rdzv-backend",
            "c10d",
        ]
        meet = [
            "--rdzv-endpoint",
            "10.231.7.1:29571",
            "--rdzv-id",
            "hosts",
            "--local-addr",
            f"10.231.7.{i + 1}",
        ]
        command = ["ip", "netns", "exec", name, sys.executable, *run, *meet, str(program)]
        agents.append(
            subprocess.Popen(command, env={**environment(), "GLOO_SOCKET_IFNAME": cable, "TP_SOCKET_IFNAME": cable},
                             cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             start_new_session=True)
        )  # fmt: skip
    said = []
    try:
        for agent in agents:
            said.append(agent.communicate(timeout=120)[0])
    finally:
        for agent in agents:
            if agent.poll() is None:
                os.killpg(agent.pid, 9)
                agent.wait()
    assert [agent.returncode for agent in agents] == [0, 0], "\n".join(said)
    assert sum(text.count("done") for text in said) == 4
