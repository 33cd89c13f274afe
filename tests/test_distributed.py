"""torch.distributed on maca: real processes, and the host's results beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import run_ranks


@pytest.mark.supports(
    "torch.distributed: init_process_group destroy_process_group barrier get_rank get_world_size "
    "get_backend new_group"
)
def test_each_way_to_name_the_backend(tmp_path: Path) -> None:
    run_ranks(
        """
        def works():
            for device in ("maca", "cpu"):
                x = torch.full((3,), rank + 1.0, device=device)
                dist.all_reduce(x)
                assert x.tolist() == [3.0] * 3
            assert dist.get_rank() == rank and dist.get_world_size() == 2
            dist.barrier()
        works()
        ways = [(("mccl",), {}), (("mccl",), {"device_id": torch.device("maca:0")}), (("cpu:gloo,maca:mccl",), {}),
                ((), {"device_id": torch.device("maca:0")})]
        for i, (args, kwargs) in enumerate(ways):
            dist.destroy_process_group()
            dist.init_process_group(*args, init_method=f"file://{os.getcwd()}/way{i}", rank=rank, world_size=2, **kwargs)
            works()
            assert "mccl" in dist.get_backend(dist.new_group([0, 1]))
        """,
        tmp_path,
        backend="None",
    )


@pytest.mark.supports(
    "torch.distributed: all_reduce reduce reduce_scatter_single",
    "torch.distributed.ReduceOp: SUM AVG PRODUCT MIN MAX BAND BOR BXOR PREMUL_SUM",
)
def test_every_dtype_and_reduction_is_right(tmp_path: Path) -> None:
    run_ranks(
        """
        from torch.distributed import ReduceOp
        real = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
        whole = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
        truth = {"SUM": torch.logical_or, "PRODUCT": torch.logical_and, "MIN": torch.logical_and,
                 "MAX": torch.logical_or, "BAND": torch.logical_and, "BOR": torch.logical_or, "BXOR": torch.logical_xor}
        functions = {"SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
                     "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}
        for deterministic in (False, True):
            torch.use_deterministic_algorithms(deterministic)
            for dtype in (*real, *whole, torch.bool, torch.complex64, torch.complex128):
                made = [(torch.arange(2, 13).remainder(r + 3)).to(dtype) for r in range(2)]
                for name, f in functions.items():
                    x, op = made[rank].maca(), getattr(ReduceOp, name)
                    if dtype.is_complex and name != "SUM":
                        continue  # PyTorch refuses them itself
                    if name[0] == "B" and dtype in real:
                        try:
                            dist.all_reduce(x, op)
                        except RuntimeError as error:
                            assert name in str(error) and str(dtype) in str(error)
                        else:
                            raise AssertionError((name, dtype))
                        continue
                    expected = truth[name](*made) if dtype is torch.bool else f(*made)
                    dist.all_reduce(x, op)
                    assert torch.equal(x.cpu(), expected), (name, dtype, x, expected)
                    y = torch.zeros(4, dtype=dtype).maca()
                    source = torch.cat([made[rank][:4], made[rank][4:8]]).maca()
                    dist.reduce_scatter_single(y, source, op)
                    assert torch.equal(y.cpu(), expected[4 * rank : 4 * rank + 4]), (name, dtype)
                if dtype is not torch.bool:
                    x = made[rank].maca()
                    dist.all_reduce(x, ReduceOp.AVG)
                    mode = None if dtype in real or dtype.is_complex else "trunc"
                    assert torch.equal(x.cpu(), torch.div(made[0] + made[1], 2, rounding_mode=mode).to(dtype)), dtype
                if dtype in real:
                    for factor in (2.0, torch.tensor(2.0, dtype=dtype).maca()):
                        x = made[rank].maca()
                        dist.all_reduce(x, ReduceOp.PREMUL_SUM(factor))
                        assert torch.equal(x.cpu(), 2 * made[0] + 2 * made[1]), dtype
                x = made[rank].maca()
                dist.reduce(x, 1, ReduceOp.MAX) if not dtype.is_complex else dist.reduce(x, 1)
                if rank == 0:
                    assert torch.equal(x.cpu(), made[0])
        x = torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn).maca()
        dist.all_reduce(x)
        assert x.cpu().float().tolist() == [2.0, -4.0]
        """,
        tmp_path,
    )


def test_strided_nhwc_and_empty_operands(tmp_path: Path) -> None:
    run_ranks(
        """
        image = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
        x = (image * (rank + 1)).maca()
        assert x.stride() == (60, 1, 15, 3)
        dist.all_reduce(x)
        torch.testing.assert_close(x.cpu(), image * 3, check_stride=False)
        assert x.stride() == (60, 1, 15, 3)
        whole = torch.zeros(6, 8).maca()
        dist.broadcast(whole[1:5, ::2], 0) if rank else dist.broadcast(torch.ones(4, 4).maca(), 0)
        if rank:
            expected = torch.zeros(6, 8)
            expected[1:5, ::2] = 1
            assert torch.equal(whole.cpu(), expected)
        empty = torch.zeros(0, 3).maca()
        for call in (dist.all_reduce, lambda t: dist.broadcast(t, 0), lambda t: dist.all_gather([t, t.clone()], t),
                     lambda t: dist.all_to_all_single(t.clone(), t), lambda t: dist.reduce_scatter_single(t.clone(), t)):
            call(empty)
        whole = torch.full((2,), 1 + 2j).maca()
        negative = whole.conj().imag  # its memory holds 2
        dist.all_reduce(negative)
        assert negative.tolist() == [-4.0] * 2 and whole.tolist() == [1 + 4j] * 2
        gathered = [torch.zeros(2, 3, 4, 5).maca() for _ in range(2)]
        dist.all_gather(gathered, (image + rank).maca())
        torch.testing.assert_close(gathered[1].cpu(), image + 1, check_stride=False)
        uneven = [torch.zeros(2).maca(), torch.zeros(3).maca()]
        dist.all_gather(uneven, torch.full((2 + rank,), rank + 1.0).maca())
        assert [t.tolist() for t in uneven] == [[1.0] * 2, [2.0] * 3]
        with torch.no_grad():
            w = torch.nn.Parameter(torch.ones(2).maca())
            version = w._version
            dist.all_reduce(w)
            assert w._version == version and w.tolist() == [2.0, 2.0]
        """,
        tmp_path,
    )


@pytest.mark.supports(
    "torch.distributed: broadcast all_gather all_gather_single gather scatter all_to_all "
    "all_to_all_single all_gather_object broadcast_object_list gather_object scatter_object_list"
)
def test_what_moves_elements_between_ranks(tmp_path: Path) -> None:
    run_ranks(
        """
        for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.float8_e5m2, torch.int16):
            def make(r, n=4):
                return (torch.arange(n) + 3 * r).remainder(5).to(torch.float32).to(dtype)
            def same(ours, host):
                assert torch.equal(ours.cpu().view(torch.uint8), host.view(torch.uint8)), (dtype, ours, host)
            both = [make(0), make(1)]
            x = make(rank).maca()
            dist.broadcast(x, 1)
            same(x, both[1])
            out = [torch.zeros(4, dtype=dtype).maca() for _ in both]
            dist.all_gather(out, make(rank).maca())
            [same(*pair) for pair in zip(out, both)]
            one = torch.zeros(8, dtype=dtype).maca()
            dist.all_gather_single(one, make(rank).maca())
            same(one, torch.cat(both))
            for root in (0, 1):
                out = [torch.zeros(4, dtype=dtype).maca() for _ in both]
                dist.gather(make(rank).maca(), out if rank == root else None, dst=root)
                if rank == root:
                    [same(*pair) for pair in zip(out, both)]
                x = torch.zeros(4, dtype=dtype).maca()
                dist.scatter(x, [t.maca() for t in both] if rank == root else None, src=root)
                same(x, both[rank])
            out = [torch.zeros(2, dtype=dtype).maca() for _ in both]
            dist.all_to_all(out, list(make(rank).maca().split(2)))
            [same(o, b[2 * rank : 2 * rank + 2]) for o, b in zip(out, both)]
            sizes = [[1, 3], [2, 2]]
            received = [sizes[r][rank] for r in range(2)]
            x = torch.zeros(sum(received), dtype=dtype).maca()
            dist.all_to_all_single(x, make(rank).maca(), received, sizes[rank])
            same(x, torch.cat([b.split(s)[rank] for b, s in zip(both, sizes)]))
        objects = [None, None]
        dist.all_gather_object(objects, {"rank": rank, "t": torch.ones(2)})
        assert [o["rank"] for o in objects] == [0, 1]
        named = [{"a": 1}] if rank == 0 else [None]
        dist.broadcast_object_list(named, 0, device=torch.device("maca"))
        assert named == [{"a": 1}]
        got = [None, None] if rank == 1 else None
        dist.gather_object(rank, got, dst=1)
        assert got in (None, [0, 1])
        mine = [None]
        dist.scatter_object_list(mine, ["a", "b"] if rank == 0 else None, src=0)
        assert mine == ["ab"[rank]]
        with dist._coalescing_manager(device=torch.device("maca"), async_ops=True) as many:
            parts = [torch.ones(3).maca() * (rank + i) for i in range(3)]
            for part in parts:
                dist.all_reduce(part)
        many.wait()
        assert [p[0].item() for p in parts] == [1.0, 3.0, 5.0]
        with dist._coalescing_manager():
            outs = [torch.zeros(2).maca(), torch.zeros(2).maca()]
            for i, out in enumerate(outs):
                dist.all_gather_single(out, torch.full((1,), rank + 10.0 * i).maca())
        assert [o.tolist() for o in outs] == [[0.0, 1.0], [10.0, 11.0]]
        """,
        tmp_path,
    )


@pytest.mark.supports("torch.distributed: new_subgroups_by_enumeration init_device_mesh")
def test_groups_of_some_ranks(tmp_path: Path) -> None:
    run_ranks(
        """
        pairs = [dist.new_group(r) for r in ([0, 1], [2])]
        mine = pairs[0] if rank < 2 else pairs[1]
        x = torch.full((2,), rank + 1.0).maca()
        dist.all_reduce(x, group=mine)
        assert x.tolist() == ([3.0] * 2 if rank < 2 else [3.0] * 2)
        own, groups = dist.new_subgroups_by_enumeration([[0, 2], [1]])
        y = torch.full((1,), 10.0 * rank).maca()
        dist.broadcast(y, group_src=0, group=own)
        assert y.item() == {0: 0.0, 1: 10.0, 2: 0.0}[rank]
        mesh = dist.device_mesh.init_device_mesh("maca", (3,))
        z = torch.full((1,), float(rank)).maca()
        dist.all_reduce(z, group=mesh.get_group())
        assert z.item() == 3.0
        together = [torch.ones(64).maca() * rank for _ in range(8)]
        works = [dist.all_reduce(t, group=g, async_op=True) for t, g in zip(together, [None, mesh.get_group()] * 4)]
        [w.wait() for w in reversed(works)]
        assert all(t[0].item() == 3.0 for t in together)
        """,
        tmp_path,
        ranks=3,
    )


@pytest.mark.supports(
    "torch.distributed: send recv isend irecv batch_isend_irecv send_object_list recv_object_list"
)
def test_messages_cross_without_waiting_for_each_other(tmp_path: Path) -> None:
    run_ranks(
        """
        other = 1 - rank
        sent, got = torch.full((100_000,), rank + 1.0).maca(), torch.zeros(100_000).maca()
        works = [dist.isend(sent, other), dist.irecv(got, other)]  # each sends before the other has received
        [w.wait() for w in works]
        assert got.sum().item() == 100_000 * (other + 1)
        halo = torch.full((3, 4), rank + 1.0).maca()  # receives a part while another of the same memory goes
        work = dist.irecv(halo[0], other)
        dist.isend(halo[1], other)
        assert halo[0].tolist() == [other + 1.0] * 4  # nobody waited for it
        work.wait()
        operations = [dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, got.zero_(), other)]
        [w.wait() for w in dist.batch_isend_irecv(operations)]
        assert got[0].item() == other + 1
        if rank == 0:
            dist.send(torch.arange(3.0).maca(), 1, tag=5)
        else:
            anyone = torch.zeros(3).maca()
            assert dist.recv(anyone, tag=5) == 0 and anyone.tolist() == [0.0, 1.0, 2.0]
        if rank == 0:
            dist.send_object_list([{"x": 1}, 2], 1)
        else:
            objects = [None, None]
            dist.recv_object_list(objects, 0)
            assert objects == [{"x": 1}, 2]
        """,
        tmp_path,
    )


def test_messages_of_many_blocks_arrive_whole(tmp_path: Path) -> None:
    run_ranks(
        """
        from macatensor.distributed import messages
        messages.BLOCK = 1000  # bytes
        whole = torch.arange(3000.0)
        for n in (0, 1, 250, 251, 3000):
            for sender, receiver in (("maca", "maca"), ("cpu", "maca"), ("maca", "cpu"), ("cpu", "cpu")):
                for anybody in (False, True)[: 1 + (n > 0)]:  # gloo has no bytes of nobody
                    if rank == 0:
                        dist.send(whole[:n].to(sender), 1, tag=n)
                    else:
                        got = torch.zeros(n, device=receiver)
                        assert dist.recv(got, None if anybody else 0, tag=n) == 0
                        assert torch.equal(got.cpu(), whole[:n]), (n, sender, receiver, anybody)
        strided = whole.view(50, 60).maca()
        if rank == 0:
            dist.send(strided.t(), 1)
        else:
            dist.recv(strided.zero_().t(), 0)
            assert torch.equal(strided.cpu(), whole.view(50, 60))
        other = 1 - rank
        for _ in range(3):  # both at once, through the same memory each time
            got = torch.zeros(3000).maca()
            works = [dist.isend(whole.maca() + rank, other), dist.irecv(got, other)]
            [w.wait() for w in works]
            assert torch.equal(got.cpu(), whole + other)
            rooms = {room.data_ptr() for room in messages._kept}
            assert len(rooms) == len(messages._kept) <= 24
        """,
        tmp_path,
    )


def test_messages_that_nobody_holds_arrive(tmp_path: Path) -> None:
    run_ranks(
        """
        import gc, time
        dist.barrier()
        if rank == 0:
            dist.isend(torch.arange(4_000_000.0).maca(), 1)
            gc.collect()
            dist.barrier()
        else:
            time.sleep(1)
            got = torch.zeros(4_000_000).maca()
            work = dist.irecv(got, 0)
            dist.barrier()
            work.wait()
            assert got[-1].item() == 3_999_999
        """,
        tmp_path,
        timeout=10,
    )


def test_readers_wait_through_any_view(tmp_path: Path) -> None:
    run_ranks(
        """
        import threading, time
        import torch.distributed._functional_collectives as functional
        def begun(call):  # rank 1 comes late, so that rank 0 has begun and cannot have ended
            dist.barrier()
            time.sleep(0.3 * rank)
            return call()
        x = torch.full((4, 4), rank + 1.0).maca()
        work = begun(lambda: dist.all_reduce(x, async_op=True))
        if rank == 0:
            assert not work.is_completed()
        assert x.view(2, 8)[1].sum().item() == 24.0  # nobody waited
        assert work.is_completed() and work.is_success()
        y = begun(lambda: torch.ops._c10d_functional.all_reduce(torch.ones(4).maca(), "sum", dist.group.WORLD.group_name))
        assert torch.ops._c10d_functional.wait_tensor(y.view(2, 2)).tolist() == [[2.0, 2.0], [2.0, 2.0]]
        torch.ops._c10d_functional.wait_tensor(y)
        z = torch.full((8,), rank + 1.0).maca()
        begun(lambda: dist.all_reduce(z, async_op=True))
        z[:2] = 5.0  # a writer waits, too
        assert z.tolist() == [5.0] * 2 + [3.0] * 6
        v = torch.full((8,), rank + 1.0).maca()
        begun(lambda: dist.all_reduce(v, async_op=True))
        seen = []
        reader = threading.Thread(target=lambda: seen.append((v + 0).tolist()))
        reader.start()
        reader.join()
        assert seen == [[3.0] * 8]
        for _ in range(3):  # one after the other in the same memory
            dist.all_reduce(v, async_op=True)
        assert v.tolist() == [24.0] * 8
        u = torch.full((2,), rank + 1.0).maca()
        future = begun(lambda: dist.all_reduce(u, async_op=True).get_future()).then(lambda f: f.value()[0] / 2)
        assert future.wait().tolist() == [1.5, 1.5]
        with torch.maca.stream(torch.maca.Stream()):
            w = torch.full((2,), rank + 1.0).maca()
            begun(lambda: dist.all_reduce(w, async_op=True))
        assert (w * 2).tolist() == [6.0, 6.0]
        graph = torch.maca.MacaGraph()
        try:
            with torch.maca.graph(graph):
                dist.all_reduce(w)
        except RuntimeError as error:
            assert "all_reduce" in str(error) and "captured" in str(error), error
        else:
            raise AssertionError("a graph captured a collective")
        """,
        tmp_path,
    )


@pytest.mark.supports(
    "torch.distributed: tensor.DTensor tensor.parallel.parallelize_module tensor.parallel.loss_parallel"
)
def test_other_tensor_types_come_first(tmp_path: Path) -> None:
    run_ranks(
        """
        from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
        mesh = dist.device_mesh.init_device_mesh("maca", (2,))
        for _ in range(3):  # a tensor-parallel MLP whose waits were lost was off by 0.17
            torch.manual_seed(0)
            mlp = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16)).to("maca")
            x = torch.rand(8, 16).maca()
            expected = mlp(x)
            expected.sum().backward()
            gradient = mlp[0].weight.grad.cpu()
            mlp.zero_grad()
            mlp = parallelize_module(mlp, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
            y = mlp(x)
            y.sum().backward()
            torch.testing.assert_close(y.detach().cpu(), expected.detach().cpu(), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(mlp[0].weight.grad.full_tensor().cpu(), gradient, rtol=1e-5, atol=1e-6)
        whole = torch.arange(12.0).view(4, 3)
        for places in ([Shard(0)], [Shard(1)], [Replicate()]):
            d = distribute_tensor(whole.maca(), mesh, places)
            assert torch.equal((d * 2 + 1).full_tensor().cpu(), whole * 2 + 1)
            assert torch.equal(d.redistribute(mesh, [Shard(0)]).to_local().cpu(), whole[2 * rank : 2 * rank + 2])
            assert (d.sum(0)).full_tensor().tolist() == whole.sum(0).tolist()
        scores, target = torch.rand(4, 8), torch.tensor([1, 2, 7, 0])
        ours = distribute_tensor(scores.maca().requires_grad_(), mesh, [Shard(1)])
        scores.requires_grad_()
        with loss_parallel():
            loss = torch.nn.functional.cross_entropy(ours, target.maca())
            loss.backward()
        host = torch.nn.functional.cross_entropy(scores, target)
        host.backward()
        torch.testing.assert_close(loss.full_tensor().detach().cpu(), host.detach())
        torch.testing.assert_close(ours.grad.full_tensor().cpu(), scores.grad)
        """,
        tmp_path,
    )


@pytest.mark.supports(
    "torch.distributed: all_gather_coalesced all_reduce_coalesced all_gather_into_tensor reduce_scatter "
    "reduce_scatter_tensor new_subgroups optim.ZeroRedundancyOptimizer"
)
@pytest.mark.refuses(
    "torch.distributed.monitored_barrier",
    reason="PyTorch has it for groups of gloo, as new_group(backend='gloo')",
)
def test_older_names_and_sharded_optimizers(tmp_path: Path) -> None:
    run_ranks(
        """
        ones = [torch.full((2,), rank + 1.0).maca(), torch.full((3,), rank + 1.0).maca()]
        dist.all_reduce_coalesced(ones)
        assert [t.tolist() for t in ones] == [[3.0] * 2, [3.0] * 3]
        lists = [[torch.zeros(2).maca(), torch.zeros(1).maca()] for _ in range(2)]
        dist.all_gather_coalesced(lists, [torch.full((2,), rank + 1.0).maca(), torch.full((1,), rank + 5.0).maca()])
        assert [[t.tolist() for t in row] for row in lists] == [[[1.0, 1.0], [5.0]], [[2.0, 2.0], [6.0]]]
        together = torch.zeros(4).maca()
        dist.all_gather_into_tensor(together, torch.full((2,), rank + 1.0).maca())
        assert together.tolist() == [1.0, 1.0, 2.0, 2.0]
        part = torch.zeros(2).maca()
        dist.reduce_scatter(part, [torch.full((2,), i + rank + 0.0).maca() for i in range(2)])
        assert part.tolist() == [2.0 * rank + 1] * 2
        dist.reduce_scatter_tensor(part, torch.arange(4.0).maca())
        assert part.tolist() == ([0.0, 2.0] if rank == 0 else [4.0, 6.0])
        own, _ = dist.new_subgroups(1)
        alone = torch.full((2,), rank + 1.0).maca()
        dist.all_reduce(alone, group=own)
        assert alone.tolist() == [rank + 1.0] * 2
        try:
            dist.monitored_barrier()
        except ValueError as error:
            assert "GLOO" in str(error)
        dist.monitored_barrier(dist.new_group(backend="gloo"))
        from torch.distributed.optim import ZeroRedundancyOptimizer
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)).to("maca")
        import copy
        alone = copy.deepcopy(net)
        net = torch.nn.parallel.DistributedDataParallel(net)
        sharded = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.1)
        whole = torch.optim.Adam(alone.parameters(), lr=0.1)
        for step in range(3):
            x = torch.rand(4, 4, generator=torch.Generator().manual_seed(step)).maca()
            for model, optimizer, share in ((net, sharded, x[2 * rank : 2 * rank + 2]), (alone, whole, x)):
                optimizer.zero_grad()
                (model(share) ** 2).mean().backward()
                optimizer.step()
        for a, b in zip(net.parameters(), alone.parameters()):
            torch.testing.assert_close(a.detach().cpu(), b.detach().cpu(), rtol=1e-4, atol=1e-5)
        """,
        tmp_path,
    )
