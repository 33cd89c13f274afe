"""Meshes of two dimensions and compiled programs of several ranks: parameters and numbers are those of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import run_ranks

# Each step's gradient is the mean of two or four parts' sums, added in another order than one process adds: some eps
# of its terms, which 20 steps of SGD with momentum enlarge to less than 1e-5 of a parameter.
_PARTS = """
import warnings
warnings.filterwarnings("ignore")
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP
PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh()).to("maca")
def batch(step):
    g = torch.Generator().manual_seed(step)
    return torch.rand(8, 8, generator=g).maca(), torch.rand(8, 8, generator=g).maca()
def loss(y, t):
    return ((y - t) ** 2).mean()
def train(net, part, steps=20):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    for step in range(steps):
        x, t = (v[part] for v in batch(step))
        optimizer.zero_grad()
        loss(net(x), t).backward()
        optimizer.step()
    return net
def equal(ours, expected):
    for a, b in zip(ours, expected, strict=True):
        a, b = (t.full_tensor() if hasattr(t, "full_tensor") else t for t in (a, b))
        torch.testing.assert_close(a.detach().cpu(), b.detach().cpu(), rtol=1e-5, atol=2e-6)
"""


@pytest.mark.supports("torch.distributed: tensor.parallel.SequenceParallel")
def test_meshes_train_as_one_process(tmp_path: Path) -> None:
    run_ranks(
        _PARTS
        + """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
expected = list(train(model(), slice(None)).parameters())
mesh = init_device_mesh("maca", (2, 2), mesh_dim_names=("dp", "tp"))
dp, tp = mesh.get_local_rank("dp"), mesh.get_local_rank("tp")
half, quarter = slice(4 * dp, 4 * dp + 4), slice(2 * rank, 2 * rank + 2)
def shard(net, mesh):
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)
equal(train(shard(model(), mesh), quarter).parameters(), expected)  # HSDP: replicas of shards
flat = FSDP(model(), device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD, use_orig_params=True)
train(flat, quarter)
with FSDP.summon_full_params(flat):
    equal(flat.parameters(), expected)
net = parallelize_module(model(), mesh["tp"], PLAN)
_pre_dp_module_transform(net)
net = DDP(net, process_group=mesh.get_group("dp"))
parts = list(net.parameters())  # each rank's; the module has them as DTensors from its first forward on
train(net, half)
equal(parts, [p if d is None else p.chunk(2, d)[tp] for p, d in zip(expected, (0, 0, 1, None))])
equal(train(shard(parallelize_module(model(), mesh["tp"], PLAN), mesh["dp"]), half).parameters(), expected)
class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.n, self.a, self.b = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
    def forward(self, x):
        return self.b(torch.relu(self.a(self.n(x))))
whole, x = Normed().to("maca"), torch.rand(2, 6, 8, generator=torch.Generator().manual_seed(1)).maca()
whole(x).square().sum().backward()
plan = {"n": SequenceParallel(), "a": ColwiseParallel(input_layouts=Shard(1)), "b": RowwiseParallel(output_layouts=Replicate())}
net = parallelize_module(Normed().to("maca"), mesh["tp"], plan)
net(x.chunk(2, 1)[tp]).square().sum().backward()
equal([p.grad for p in net.parameters()], [p.grad for p in whole.parameters()])
stages = init_device_mesh("maca", (2, 2), mesh_dim_names=("pp", "dp"))
k, d = stages.get_local_rank("pp"), stages.get_local_rank("dp")
group, half = stages.get_group("pp"), slice(4 * d, 4 * d + 4)
for wrap in (lambda m: DDP(m, process_group=stages.get_group("dp"), find_unused_parameters=True),
             lambda m: fully_shard(m, mesh=stages["dp"])):
    mine = wrap(model()[2 * k : 2 * k + 2])
    schedule = Schedule1F1B(PipelineStage(mine, k, 2, torch.device("maca"), group=group), 2, loss_fn=loss)
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.5, momentum=0.9)
    for step in range(20):
        x, t = (v[half] for v in batch(step))
        optimizer.zero_grad()
        schedule.step(x) if k == 0 else schedule.step(target=t)
        optimizer.step()
    equal(mine.parameters(), expected[2 * k : 2 * k + 2])
""",
        tmp_path,
        ranks=4,
        timeout=120,
        limit=280,
    )


@pytest.mark.supports("torch.distributed._functional_collectives")
def test_compiled_programs_of_ranks_equal_eager_ones(tmp_path: Path) -> None:
    run_ranks(
        _PARTS
        + """
import torch.distributed._functional_collectives as functional
from torch.distributed.fsdp import fully_shard
group = dist.group.WORLD
def collectives(x):
    y = functional.all_reduce(x * 2, "sum", group) + 1
    z = functional.all_gather_tensor(y, 0, group)
    w = functional.reduce_scatter_tensor(z * y.sum(), "sum", 0, group)
    v = functional.all_to_all_single(w, None, None, group)
    return y, z, w, v, functional.broadcast(v, 0, group)
def in_place(x):
    y = x * 2
    dist.all_reduce(y)
    return (y + 1,)
def gradient(x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(functional.all_gather_tensor_autograd(x * x, 0, group).square().sum(), x)
x = (torch.arange(8.0).view(4, 2) + rank).maca()
mesh = init_device_mesh("maca", (2,))
def sharded(compiled):
    net = model()
    if compiled:
        for layer in net:
            layer.compile(backend=backend)
    return fully_shard(net)
wraps = [  # each without compiling and with it
    (lambda: DDP(model()), lambda: DDP(torch.compile(model(), backend=backend))),
    (lambda: DDP(model()), lambda: torch.compile(DDP(model()), backend=backend)),
    (lambda: sharded(False), lambda: sharded(True)),
]
part = slice(4 * rank, 4 * rank + 4)
for backend in ("maca", "eager", "aot_eager"):
    torch._dynamo.reset()
    for function in (collectives, in_place):
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        for ours, eager in zip(compiled(x), function(x), strict=True):
            assert torch.equal(ours.cpu(), eager.cpu()), (backend, function)
    assert torch.equal(torch.compile(gradient, backend=backend)(x)[0].cpu(), gradient(x)[0].cpu())
    for plain, compiled in wraps:
        equal(train(compiled(), part, 4).parameters(), train(plain(), part, 4).parameters())
    net = parallelize_module(model(), mesh, PLAN)
    equal(train(torch.compile(net, backend=backend), slice(None), 4).parameters(), train(model(), slice(None), 4).parameters())
""",
        tmp_path,
        timeout=120,
        limit=280,
    )


@pytest.mark.supports("torch.distributed: checkpoint.state_dict")
def test_checkpoints_load_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    program = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
import torch.nn as nn
def model():
    torch.manual_seed(rank)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).to("maca")
def step(net, optimizer, number):
    x = torch.rand(6, 6, generator=torch.Generator().manual_seed(number)).maca()
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
    return [p.full_tensor().detach().cpu() for p in net.parameters()]
net = fully_shard(model())
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
folder = "/".join(__file__.split("/")[:-1])
"""
    save = """
for i in range(3):
    step(net, optimizer, i)
whole, moments = get_state_dict(net, optimizer)
dcp.save({"net": whole, "optimizer": moments}, checkpoint_id=folder + "/saved")
after = step(net, optimizer, 3)
if rank == 0:
    torch.save(after, folder + "/after.pt")
"""
    load = """
state = dict(zip(("net", "optimizer"), get_state_dict(net, optimizer)))
dcp.load(state, checkpoint_id=folder + "/saved")
set_state_dict(net, optimizer, model_state_dict=state["net"], optim_state_dict=state["optimizer"])
for a, b in zip(step(net, optimizer, 3), torch.load(folder + "/after.pt")):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
"""
    run_ranks(program + save, tmp_path, ranks=2)
    run_ranks(program + load, tmp_path, ranks=3)
    run_ranks(program + load, tmp_path, ranks=1)
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    state = {"net": net.state_dict()}  # on the host, without a process group
    dcp.load(state, checkpoint_id=tmp_path / "saved")
    net.load_state_dict(state["net"])
    x = torch.rand(6, 6, generator=torch.Generator().manual_seed(3))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    moments = {"optimizer": get_optimizer_state_dict(net, optimizer)}
    dcp.load(moments, checkpoint_id=tmp_path / "saved")
    set_optimizer_state_dict(net, optimizer, moments["optimizer"])
    net(x).square().mean().backward()
    optimizer.step()
    for a, b in zip(net.parameters(), torch.load(tmp_path / "after.pt"), strict=True):
        torch.testing.assert_close(a.detach(), b, rtol=1e-5, atol=1e-6)
