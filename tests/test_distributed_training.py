"""Training by several ranks: parameters are those of one process that has the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import run_ranks

# 20 steps of two ranks add the same gradients in another order: halves of a batch, then their mean. Each step's
# gradient differs by some eps of its terms, and so do parameters after 20 steps of a learning rate of 0.1.
_PARTS = """
import copy
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8) if norm else nn.Identity(), nn.ReLU(), nn.Flatten())
        self.left, self.right = nn.Linear(8 * 36, 10), nn.Linear(8 * 36, 10)
    def forward(self, x, way=0):
        h = self.body(x)
        return self.left(h) if way == 0 else self.right(h)
norm = False
def model():
    torch.manual_seed(0)
    return Branches().to("maca")
def batch(step):
    g = torch.Generator().manual_seed(step)
    return torch.rand(8, 3, 8, 8, generator=g).maca(), torch.randint(0, 10, (8,), generator=g).maca()
def mine(t):
    return t[4 * rank : 4 * rank + 4]
def train(net, share, way=lambda step: 0, steps=20, make=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)):
    optimizer = make(net.parameters())
    for step in range(steps):
        x, target = map(share, batch(step))
        optimizer.zero_grad()
        F.cross_entropy(net(x, way(step)), target).backward()
        optimizer.step()
    return net
def equal(ours, expected, atol=2e-6):
    for a, b in zip(ours, expected):
        a = a.full_tensor() if hasattr(a, "full_tensor") else a
        torch.testing.assert_close(a.detach().cpu(), b.detach().cpu(), rtol=1e-5, atol=atol)
"""


@pytest.mark.supports("torch.nn: parallel.DistributedDataParallel")
def test_ddp_trains_as_one_process(tmp_path: Path) -> None:
    run_ranks(
        _PARTS
        + """
from macatensor.distributed import reducer
expected = list(train(model(), lambda t: t).parameters())
for options in ({}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.01}, {"static_graph": True}):
    unused = "left" if options.get("static_graph") else None
    net = DDP(model(), find_unused_parameters=not options.get("static_graph"), **options)
    equal(train(net, mine).parameters(), expected)
    assert reducer._library is None  # host tensors are PyTorch's own again
turn = lambda step: step % 2
expected = list(train(model(), lambda t: t, turn).parameters())
net = train(DDP(model(), find_unused_parameters=True), mine, turn)
equal(net.parameters(), expected)
plain = model()
plain.right.requires_grad_(False)
net = DDP(plain)
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
net.register_comm_hook(None, default_hooks.fp16_compress_hook)
net = train(net, mine)
straight = model()
straight.right.requires_grad_(False)
equal(net.parameters(), train(straight, lambda t: t).parameters(), atol=3e-3)
net = DDP(model(), find_unused_parameters=True)
with net.no_sync():
    F.cross_entropy(net(mine(batch(0)[0])), mine(batch(0)[1])).backward()
F.cross_entropy(net(mine(batch(1)[0])), mine(batch(1)[1])).backward()
other = model()
(F.cross_entropy(other(batch(0)[0]), batch(0)[1]) + F.cross_entropy(other(batch(1)[0]), batch(1)[1])).backward()
equal([net.module.left.weight.grad], [other.left.weight.grad])
""",
        tmp_path,
    )


@pytest.mark.supports("torch.nn.SyncBatchNorm")
def test_batches_are_normalized_over_all_ranks(tmp_path: Path) -> None:
    run_ranks(
        _PARTS
        + """
norm = True
alone = train(model(), lambda t: t)
net = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(model()), find_unused_parameters=True)
together = train(net, mine).module
equal(together.parameters(), alone.parameters(), atol=1e-5)
equal(together.buffers(), alone.buffers(), atol=1e-5)
""",
        tmp_path,
    )


@pytest.mark.supports("torch.distributed: fsdp.fully_shard fsdp.FullyShardedDataParallel")
def test_fsdp_trains_as_one_process_and_frees(tmp_path: Path) -> None:
    run_ranks(
        """
        import copy, gc
        import torch.nn as nn, torch.nn.functional as F
        from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
        def model():
            torch.manual_seed(0)
            return nn.Sequential(*[m for _ in range(12) for m in (nn.Linear(256, 256), nn.Tanh())])
        def train(net, share, steps=20):
            optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
            for step in range(steps):
                x = torch.rand(8, 256, generator=torch.Generator().manual_seed(step)).maca()[share]
                optimizer.zero_grad()
                (net(x) ** 2).mean().backward()
                optimizer.step()
            return net, optimizer
        def equal(ours, expected, **tolerance):
            for a, b in zip(ours, expected):
                a = a.full_tensor() if hasattr(a, "full_tensor") else a
                torch.testing.assert_close(a.detach().cpu(), b.detach().cpu(), **tolerance)
        mine, close = slice(4 * rank, 4 * rank + 4), dict(rtol=1e-4, atol=1e-4)
        before = torch.maca.memory_allocated()
        held = train(model().to("maca"), slice(None))
        alone = torch.maca.memory_allocated() - before  # parameters, gradients and moments
        expected = [p.detach().cpu() for p in held[0].parameters()]
        del held
        gc.collect()
        def shard(net, **options):
            for layer in net:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, **options)
            return fully_shard(net, **options)
        before = torch.maca.memory_allocated()
        held = train(shard(model().to("maca")), mine)
        sharded = torch.maca.memory_allocated() - before
        assert sharded <= 0.55 * alone, (sharded, alone)
        equal(held[0].parameters(), expected, **close)
        for options in ({"reshard_after_forward": False}, {"offload_policy": CPUOffloadPolicy()}):
            equal(train(shard(model().to("maca"), **options), mine)[0].parameters(), expected, **close)
        half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        equal(train(shard(model().to("maca"), mp_policy=half), mine)[0].parameters(), expected, rtol=0.05, atol=5e-3)
        with torch.device("meta"):
            empty = model()
        shard(empty).to_empty(device="maca")
        for layer in empty:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        train(empty, mine, 1)
        flat = FullyShardedDataParallel(model().to("maca"), use_orig_params=True)
        flat, _ = train(flat, mine)
        with FullyShardedDataParallel.summon_full_params(flat):
            equal(flat.parameters(), expected, **close)
        x = torch.rand(1 << 20).maca()
        live = torch.maca.memory_allocated()
        x.untyped_storage().resize_(0)
        assert live - torch.maca.memory_allocated() > (4 << 20) - 4096
        x.untyped_storage().resize_(4 << 20)
        assert torch.maca.memory_allocated() == live
        """,
        tmp_path,
    )


@pytest.mark.supports("torch.distributed: checkpoint.save checkpoint.load checkpoint.async_save")
def test_checkpoints_move_between_ranks_and_hosts(tmp_path: Path) -> None:
    run_ranks(
        """
        import torch.nn as nn, torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).to("maca")
        expected = {k: v.cpu() for k, v in net.state_dict().items()}
        fully_shard(net)
        for save, folder in ((dcp.save, "now"), (lambda *a, **k: dcp.async_save(*a, **k).result(), "later")):
            save({"net": get_model_state_dict(net)}, checkpoint_id=folder)
            other = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).to("maca")
            fully_shard(other)
            state = {"net": get_model_state_dict(other)}
            dcp.load(state, checkpoint_id=folder)
            for name, value in state["net"].items():
                assert torch.equal(value.full_tensor().cpu(), expected[name]), (folder, name)
            dist.barrier()
            if rank == 0:
                dcp_to_torch_save(folder, "whole.pt")
                for name, value in torch.load("whole.pt", map_location="cpu")["net"].items():
                    assert value.device.type == "cpu" and torch.equal(value, expected[name])
            dist.barrier()
        """,
        tmp_path,
    )


@pytest.mark.supports("torch.distributed: pipelining.PipelineStage pipelining.pipeline")
def test_pipelines_give_the_whole_models_losses(tmp_path: Path) -> None:
    run_ranks(
        """
        import copy
        import torch.nn as nn
        from torch.distributed.pipelining import (PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B,
                                                  SplitPoint, pipeline)
        torch.manual_seed(0)
        whole = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)]).to("maca")
        x, target = torch.rand(8, 8).maca(), torch.rand(8, 8).maca()
        loss = lambda y, t: ((y - t) ** 2).mean()
        expected = copy.deepcopy(whole)
        loss(expected(x), target).backward()
        device = torch.device("maca")
        for kind in (ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B):
            net = copy.deepcopy(whole)
            several = kind is ScheduleInterleaved1F1B
            own = [rank, rank + 2] if several else [rank]
            layers = [net[i : i + 1] for i in own] if several else [net[2 * rank : 2 * rank + 2]]
            stages = [PipelineStage(m, i, 4 if several else 2, device) for m, i in zip(layers, own)]
            schedule = kind(stages if several else stages[0], 4, loss_fn=loss)
            losses = []
            if rank == 0:
                schedule.step(x)
            else:
                y = schedule.step(target=target, losses=losses)
                torch.testing.assert_close(y.detach().cpu(), expected(x).detach().cpu())
            for i, layer in enumerate(net):
                if any(layer is m for part in layers for m in part):
                    torch.testing.assert_close(layer[0].weight.grad.cpu(), expected[i][0].weight.grad.cpu())
        traced = pipeline(whole, mb_args=(x[:2],), split_spec={"2": SplitPoint.BEGINNING})
        schedule = ScheduleGPipe(traced.build_stage(rank, device), 4)
        y = schedule.step(x) if rank == 0 else schedule.step()
        if rank == 1:
            torch.testing.assert_close(y.detach().cpu(), expected(x).detach().cpu())
        """,
        tmp_path,
    )


def test_gathering_takes_no_memory_beside_its_results(tmp_path: Path) -> None:
    run_ranks(
        """
        from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
        def extra(call):
            torch.maca.synchronize()
            torch.maca.reset_peak_memory_stats()
            before = torch.maca.memory_allocated()
            call()
            torch.maca.synchronize()
            return torch.maca.max_memory_allocated() - before
        n = 1 << 18
        whole = torch.full((2 * n,), rank + 1.0, device="maca")
        for _ in range(3):  # memory that comes again moves to where other ranks see it, once
            dist.all_gather_single(whole, whole[rank * n : (rank + 1) * n])
        assert (whole[0].item(), whole[-1].item()) == (1.0, 2.0)
        assert extra(lambda: dist.all_gather_single(whole, whole[rank * n : (rank + 1) * n])) == 0
        fresh = torch.full((2 * n,), rank + 1.0, device="maca")
        assert extra(lambda: dist.all_gather_single(fresh, fresh[rank * n : (rank + 1) * n])) == 0
        other = whole[(1 - rank) * n : (2 - rank) * n]  # which the collective writes: a copy of it is given
        dist.all_gather_single(whole, other)
        assert (whole[0].item(), whole[-1].item()) == (2.0, 1.0)
        width, policy = 256, CPUOffloadPolicy()
        model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(4)])
        for module in (*model, model):
            fully_shard(module, offload_policy=policy)
        x = torch.ones(1, width, device="maca")
        # what is gathered, its parameters, and what is gathered next
        assert extra(lambda: model(x)) <= 3.1 * 4 * width * width
        """,
        tmp_path,
    )


def test_host_modules_are_moved_when_sharded(tmp_path: Path) -> None:
    run_ranks(
        """
        import torch.nn as nn
        from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
        def made():
            torch.manual_seed(0)
            return nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 2))
        x = torch.arange(54.0).view(2, 3, 3, 3)
        plain = made()
        plain(x).square().sum().backward()
        sharded, wrapped = made(), made()
        counter = sharded[0].num_batches_tracked
        fully_shard(sharded)
        assert sharded[1].weight.is_contiguous()  # channels_last on the device, which it refuses
        assert counter is sharded[0].num_batches_tracked and counter.device.type == "maca"
        wrapped = FullyShardedDataParallel(wrapped, device_id=torch.device("maca", 0), use_orig_params=True)
        for model in (sharded, wrapped):
            assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"maca"}
            model(x.maca()).square().sum().backward()
        torch.testing.assert_close(sharded[1].weight.grad.full_tensor().cpu(), plain[1].weight.grad)
        torch.testing.assert_close(sharded[0].running_mean.cpu(), plain[0].running_mean)
        """,
        tmp_path,
        ranks=1,
    )
