"""Groups that are split, ranks with uneven inputs, sharded optimizers, remote calls, and which device a rank gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from interposer_library import compile_interposer, host_library
from ranks import run_ranks
from running import run_python


@pytest.mark.supports("torch.distributed: split_group")
def test_a_group_splits_and_splits_again(tmp_path: Path) -> None:
    run_ranks(
        """
        def total(group, value):
            x = torch.full((3,), float(value)).maca()
            dist.all_reduce(x, group=group)
            host = torch.full((3,), float(value))  # by gloo, in the same group
            dist.all_reduce(host, group=group)
            assert x.tolist() == host.tolist()
            return x[0].item()
        whole = [0, 1, 2]
        pair = dist.split_group(None, [[2, 0], [1]])
        assert total(pair, rank) == [2.0, 1.0, 2.0][rank]
        assert dist.get_backend(pair) == "mccl"
        places = dist.get_process_group_ranks(pair)  # as they were named, or sorted
        assert sorted(places) == [[0, 2], [1], [0, 2]][rank]
        gathered = [torch.zeros(1).maca() for _ in places]
        dist.all_gather(gathered, torch.full((1,), float(rank)).maca(), group=pair)
        assert [int(x) for x in gathered] == places
        if rank != 1:
            alone = dist.split_group(pair, [[0], [1]])  # its group's own ranks
            assert total(alone, rank) == rank and dist.get_process_group_ranks(alone) == [rank]
        some = dist.split_group(None, [[1, 2]])
        assert (some in (None, dist.GroupMember.NON_GROUP_MEMBER)) == (rank == 0)
        if rank != 0:
            assert total(some, rank) == 3.0
        again = dist.split_group(None, [[0, 1], [2]])  # ranks that have been in unlike numbers of groups
        assert total(again, rank) == [1.0, 1.0, 2.0][rank]
        mesh = dist.device_mesh.init_device_mesh("maca", (3, 1), mesh_dim_names=("a", "b"))
        assert total(mesh.get_group("a"), rank) == 3.0 and total(mesh.get_group("b"), rank) == rank
        try:
            dist.split_group(None, [[0, 7], [1, 2]])
        except (ValueError, RuntimeError) as error:
            assert rank == 0 and "7" in str(error), error
        """,
        tmp_path,
        ranks=3,
        more=', device_id=torch.device("maca:0")',  # else c10d refuses to split, of every backend
    )


def test_a_group_of_gloo_beside_a_device(tmp_path: Path) -> None:
    run_ranks(
        """
        group = dist.new_group(backend="gloo")
        x = torch.full((3,), rank + 1.0)
        dist.all_reduce(x, group=group)
        assert x.tolist() == [3.0] * 3
        try:
            dist.all_reduce(x.maca(), group=group)
        except RuntimeError as error:
            assert "unsupported device type maca" in str(error)
        else:
            raise AssertionError
        """,
        tmp_path,
        more=', device_id=torch.device("maca:0")',
    )


@pytest.mark.supports(
    "torch.distributed: algorithms.Join rpc.rpc_sync rpc.rpc_async rpc.remote",
    "torch.utils.data.DistributedSampler",
)
def test_uneven_inputs_samplers_and_remote_calls(tmp_path: Path) -> None:
    run_ranks(
        """
        import torch.nn as nn
        from torch.distributed.algorithms.join import Join
        from torch.distributed.optim import ZeroRedundancyOptimizer
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
        def model():
            torch.manual_seed(0)
            return nn.Linear(4, 2).to("maca")
        def samples(r):
            return [torch.rand(2, 4, generator=torch.Generator().manual_seed(10 * r + i)).maca() for i in range(2 + 2 * r)]
        def whole_batches():
            alone = model()
            optimizer = torch.optim.Adam(alone.parameters(), lr=0.1)
            for step in range(4):  # a rank that has joined gives zeros, and gradients are divided by all ranks
                optimizer.zero_grad()
                sum(alone(samples(r)[step]).square().sum() / 2 for r in range(2) if step < 2 + 2 * r).backward()
                optimizer.step()
            return alone
        def same(ours, expected):
            for a, b in zip(ours.parameters(), expected.parameters()):
                torch.testing.assert_close(a.detach().cpu(), b.detach().cpu(), rtol=1e-4, atol=1e-5)
        net = DDP(model())
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        with Join([net]):  # rank 1 has twice as many batches
            for x in samples(rank):
                optimizer.zero_grad()
                net(x).square().sum().backward()
                optimizer.step()
        same(net.module, whole_batches())
        results = []
        for device in ("cpu", "maca"):
            joined = DDP(model().to(device))
            optimizer = ZeroRedundancyOptimizer(joined.parameters(), torch.optim.Adam, lr=0.1)
            with Join([joined, optimizer]):
                for x in samples(rank):
                    optimizer.zero_grad()
                    joined(x.to(device)).square().sum().backward()
                    optimizer.step()
            optimizer.consolidate_state_dict(0)
            results.append((joined.module, optimizer))
        same(results[1][0], results[0][0])
        if rank == 0:
            states = [o.state_dict()["state"] for _, o in results]
            torch.testing.assert_close(*(s[0]["exp_avg"].cpu() for s in states), rtol=1e-4, atol=1e-5)
        data = TensorDataset(torch.arange(9))
        sampler = DistributedSampler(data, shuffle=True, drop_last=False)
        seen = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            mine = torch.cat([x for (x,) in DataLoader(data, batch_size=2, sampler=sampler)]).maca()
            both = torch.zeros(10, dtype=torch.int64).maca()
            dist.all_gather_into_tensor(both, mine)
            assert sorted(set(both.tolist())) == list(range(9)), both
            seen.append(both.tolist())
        assert seen[0] != seen[1]

        import torch.distributed.rpc as rpc
        # before the meeting: the other rank may call it as soon as it has joined
        def scaled(parts, by):
            return {"sum": parts[0] + by * parts[1], "rank": dist.get_rank()}
        meeting = __file__.replace(".py", ".rpc")
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2,
                     rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=f"file://{meeting}"))
        other = f"worker{1 - rank}"
        x = torch.rand(2, 3, 4, 5).maca()
        strided = x[:, ::2].transpose(0, 1)
        got = rpc.rpc_sync(other, scaled, ([strided, strided.bfloat16()],), {"by": 2})
        assert got["rank"] == 1 - rank and got["sum"].device.type == "maca"
        assert torch.equal(got["sum"].cpu(), (strided + 2 * strided.bfloat16()).cpu())
        # PyTorch's own functions, which it calls by name
        assert torch.equal(rpc.rpc_async(other, torch.add, (strided, 1)).wait().cpu(), (strided + 1).cpu())
        assert rpc.rpc_sync(other, torch.add, (torch.ones(2), 1)).tolist() == [2.0, 2.0]
        held = rpc.remote(other, torch.mul, (x, 3))
        assert torch.equal(held.to_here().cpu(), (x * 3).cpu())
        rpc.shutdown()
        """,
        tmp_path,
    )


def test_a_rank_gets_the_device_of_its_number(tmp_path: Path) -> None:
    library = compile_interposer(tmp_path)
    told = {"MACA_LIBRARY": library, "MACA_INTERPOSER_TARGET": host_library(), "MACA_VISIBLE_DEVICES": None}
    code = "import torch, macatensor; print(torch.maca.get_device_name())"
    for devices, rank, visible, name in (
        ("4", "2", None, "interposed 2"),
        ("4", "6", None, "interposed 2"),  # more ranks than devices
        ("4", "2", "3", "interposed 3"),
        ("1", "2", None, "interposed"),
        ("4", None, None, "interposed"),
    ):
        more = {"MACA_INTERPOSER_DEVICES": devices, "LOCAL_RANK": rank, "MACA_VISIBLE_DEVICES": visible}
        done = run_python(code, **{**told, **more})
        assert done.stdout.strip() == name, (devices, rank, visible, done.stdout)


def test_functional_gather_writes_into_out(tmp_path: Path) -> None:
    run_ranks(
        """
        group = dist.group.WORLD.group_name
        x, out = torch.full((2, 3), rank + 1.0).maca(), torch.empty(4, 3).maca()
        given = torch.ops._c10d_functional.all_gather_into_tensor_out(x, 2, group, out=out)
        assert given is out
        assert torch.ops._c10d_functional.wait_tensor(given).tolist() == [[1.0] * 3] * 2 + [[2.0] * 3] * 2
        """,
        tmp_path,
    )


@pytest.mark.supports("torch.distributed.tensor.debug: CommDebugMode")
def test_dispatch_modes_see_collectives_of_a_group(tmp_path: Path) -> None:
    run_ranks(
        """
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.debug import CommDebugMode
        c10d = torch.ops.c10d
        x = torch.full((4,), rank + 1.0, device="maca")
        parts = [torch.empty(4, device="maca") for _ in range(ranks)]
        single = hasattr(dist, "all_gather_single")  # their names from PyTorch 2.13 on
        gather = dist.all_gather_single if single else dist.all_gather_into_tensor
        scatter = dist.reduce_scatter_single if single else dist.reduce_scatter_tensor
        with CommDebugMode() as seen:
            dist.all_reduce(x)
            work = dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)
            assert work.wait() and x.tolist() == [3.0] * 4
            gather(whole := torch.empty(8, device="maca"), x)
            scatter(half := torch.empty(2, device="maca"), x)
            dist.all_gather(parts, x)
            dist.broadcast(x, 0)
            dist.all_to_all_single(torch.empty_like(x), x)
            dist.scatter(half, list(x.split(2)) if rank == 0 else None)
            with dist._coalescing_manager():
                dist.all_reduce(x)
                dist.all_reduce(half)
        assert half.tolist() == [6.0] * 2 and whole.tolist() == [3.0] * 8
        assert dict(seen.get_comm_counts()) == {
            c10d.allreduce_: 2, c10d._allgather_base_: 1, c10d._reduce_scatter_base_: 1, c10d.allgather_: 1,
            c10d.broadcast_: 1, c10d.alltoall_base_: 1, c10d.scatter_: 1, c10d.allreduce_coalesced_: 1,
        }
        layer = torch.nn.Linear(4, 4, device="maca")
        model = torch.nn.parallel.DistributedDataParallel(layer)
        with CommDebugMode() as seen:
            model(x).sum().backward()
        assert dict(seen.get_comm_counts()) == {c10d.allreduce_: 1}
        fully_shard(layer)
        with CommDebugMode() as seen:
            layer(x).sum().backward()
        assert dict(seen.get_comm_counts()) == {c10d._allgather_base_: 1, c10d._reduce_scatter_base_: 1}
        try:
            c10d._allgather_base_(whole, x, dist.group.WORLD.boxed(), False, -1)
        except NotImplementedError as error:
            assert "torch.distributed" in str(error)
        else:
            raise AssertionError("an operator of c10d reached a group in Python")
        """,
        tmp_path,
    )  # fmt: skip
