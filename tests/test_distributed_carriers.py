"""Who carries collectives: the device library from ordinary and from shared memory, and gloo."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ranks import run_ranks

import macatensor

TARGET = macatensor.device.library_info()["path"]

# Each rank's operands are known to all, so that each can compute what must come of a collective.
COLLECTIVES = """
def given(r, n, dtype=torch.float32):
    return (torch.arange(n) * (r + 3) % 251).to(dtype)

def carried(carrier, n, dtype=torch.float32):
    "Every collective that moves or adds up n elements, three times: memory that comes again is shared."
    os.environ["MACA_COLLECTIVES"] = carrier
    group = dist.new_group()
    every = [given(r, n, dtype) for r in range(ranks)]
    total = sum(e.double() for e in every).to(dtype)
    x, together = given(rank, n, dtype).maca(), torch.zeros(ranks * n, dtype=dtype).maca()
    y, whole = torch.zeros(n, dtype=dtype).maca(), torch.cat([every[rank]] * ranks).maca()
    for _ in range(3):
        dist.all_reduce(x.copy_(every[rank]), group=group)
        assert torch.equal(x.cpu(), total)
        dist.reduce(x.copy_(every[rank]), 1, group=group)
        assert torch.equal(x.cpu(), total if rank == 1 else every[rank])
        dist.broadcast(x.copy_(every[rank]), ranks - 1, group=group)
        assert torch.equal(x.cpu(), every[-1])
        dist.all_gather_single(together, x.copy_(every[rank]), group=group)
        assert torch.equal(together.cpu(), torch.cat(every))
        dist.reduce_scatter_single(y, whole, group=group)
        assert torch.equal(y.cpu(), total)
        parts = [torch.zeros_like(y) for _ in every]
        dist.all_gather(parts, x, group=group)
        assert all(torch.equal(p.cpu(), e) for p, e in zip(parts, every))
        dist.gather(x, parts if rank == 0 else None, 0, group=group)
        dist.scatter(y, parts if rank == 0 else None, 0, group=group)
        assert torch.equal(y.cpu(), every[rank])
        sizes = [[(r + q) * (n // 16) for q in range(ranks)] for r in range(ranks)]
        out, into = sizes[rank], [s[rank] for s in sizes]
        moved = torch.zeros(sum(into), dtype=dtype).maca()
        dist.all_to_all_single(moved, given(rank, sum(out), dtype).maca(), into, out, group=group)
        expected = [given(r, sum(sizes[r]), dtype).split(sizes[r])[rank] for r in range(ranks)]
        assert torch.equal(moved.cpu(), torch.cat(expected))
    return group
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_carrier_gives_the_same_results(tmp_path: Path, ranks: int) -> None:
    run_ranks(
        COLLECTIVES
        + """
for n in (16, 5003, 300_007):
    for carrier in ("library", "staged", "gloo"):
        library = carried(carrier, n)._carriers.library()
        assert (library is None) == (carrier == "gloo")
""",
        tmp_path,
        ranks=ranks,
    )


def test_deterministic_bits_are_those_of_every_carrier(tmp_path: Path) -> None:
    run_ranks(
        """
        from torch.distributed import ReduceOp
        torch.use_deterministic_algorithms(True)
        groups = []
        for carrier in ("library", "staged", "gloo"):
            os.environ["MACA_COLLECTIVES"] = carrier
            groups.append((carrier, dist.new_group()))
            dist.all_reduce(torch.ones(1).maca(), group=groups[-1][1])
        torch.manual_seed(rank)
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int8, torch.uint16,
                      torch.int64, torch.bool):
            for n in (77, 200_001):
                x = (torch.randn(n) * 50).to(torch.int32 if dtype is torch.uint16 else dtype).to(dtype)
                for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX, ReduceOp.BXOR, ReduceOp.PREMUL_SUM(3.0)):
                    seen = []
                    for carrier, group in groups:
                        os.environ["MACA_COLLECTIVES"] = carrier
                        y = x.maca()
                        try:
                            for _ in range(2):
                                y.view(torch.uint8).copy_(x.maca().view(torch.uint8))
                                dist.all_reduce(y, op, group=group)
                        except (RuntimeError, ValueError) as error:
                            assert "cannot use ReduceOp" in str(error) or "does not support" in str(error), error
                            continue
                        seen.append(y.cpu().view(torch.uint8))
                    assert all(torch.equal(seen[0], other) for other in seen[1:]), (dtype, n, op)
        special = torch.tensor([float("nan"), float("inf"), -0.0, 1e-42, 1.0][rank:] + [2.0] * rank)
        for op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN):
            found = []
            for _, group in groups:
                y = special.maca()
                dist.all_reduce(y, op, group=group)
                found.append(y.cpu())
            torch.testing.assert_close(found[0], found[2], rtol=0, atol=0, equal_nan=True)
            assert found[0].isnan().any()
        """,
        tmp_path,
        ranks=4,
    )


def _names_in_shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "maca" in name}


def test_a_rank_killed_inside_a_collective(tmp_path: Path) -> None:
    before = _names_in_shared_memory()
    said = run_ranks(
        """
        import signal, threading, time
        x = torch.ones(4_000_000).maca()
        dist.all_reduce(x)
        if rank == 1:
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        begin = time.monotonic()
        try:
            while True:
                dist.all_reduce(x)
        except dist.DistBackendError as error:
            assert time.monotonic() - begin < 20  # not the group's time-out
            print(error)
        os._exit(0)
        """,
        tmp_path,
        ranks=3,
        timeout=60,
        expect=(0, -9, 0),
    )
    assert "rank 1 (process" in said[0] + said[2] and "died" in said[0] + said[2]
    assert "all_reduce(float32[4000000])" in said[0] and "rank 0 of 3" in said[0]
    assert _names_in_shared_memory() == before


def test_an_abort_ends_who_waits(tmp_path: Path) -> None:
    run_ranks(
        """
        import threading, time
        group = dist.new_group()
        x = torch.ones(3).maca()
        dist.all_reduce(x, group=group)
        if rank == 0:
            threading.Timer(0.5, group.abort).start()
            begin = time.monotonic()
            try:
                dist.all_reduce(x, group=group)
            except dist.DistBackendError as error:
                assert "aborted" in str(error) and time.monotonic() - begin < 20
            else:
                raise AssertionError("a collective that rank 1 never called")
        else:
            time.sleep(1.5)
            try:
                dist.all_reduce(x, group=group)
            except dist.DistBackendError as error:
                assert "rank 0" in str(error) and "gave up" in str(error), error
        dist.all_reduce(x)  # other groups go on
        """,
        tmp_path,
        timeout=60,
    )


def test_no_room_for_shared_memory_means_gloo(tmp_path: Path) -> None:
    said = run_ranks(
        """
        import resource
        if rank == 0:  # which makes the memory, a file
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        x = torch.ones(3).maca()
        for group in (None, dist.new_group()):
            dist.all_reduce(x, group=group)
        assert x.tolist() == [4.0] * 3 and dist.group.WORLD._carriers.library() is None
        """,
        tmp_path,
        ranks=2,
        PYTHONWARNINGS="default",
    )
    assert all(text.count("gloo carries collectives") == 1 for text in said), said


def test_a_pool_of_memory_that_ranks_share(tmp_path: Path) -> None:
    run_ranks(
        """
        from macatensor.runtime.ffi import lib, pointer
        pool = torch.maca.MemPool(dist.group.WORLD.mem_allocator)
        dist.group.WORLD.register_mem_pool(pool)
        with torch.maca.use_mem_pool(pool):
            x = torch.full((100_000,), rank + 1.0, device="maca")
        assert lib.maca_buffer_is_shared(pointer(x._payload[0])) and pool.snapshot()[0]["allocated_size"] >= 400_000
        dist.all_reduce(x)
        assert x.unique().tolist() == [3.0]
        dist.group.WORLD.deregister_mem_pool(pool)
        """,
        tmp_path,
        ranks=2,
    )


def test_a_forked_child_keeps_its_hands_off(tmp_path: Path) -> None:
    run_ranks(
        """
        from macatensor.runtime.ffi import lib, pointer
        is_shared = lambda t: bool(lib.maca_buffer_is_shared(pointer(t._payload[0])))
        x = torch.ones(200_000).maca()
        for _ in range(3):
            dist.all_reduce(x)
        assert is_shared(x)
        group, maca0 = dist.group.WORLD, torch.device("maca")
        assert group.supports_tensor_alloc(maca0)
        mine = group.allocate_tensor(100_000, dtype=torch.bfloat16, device=maca0)
        assert is_shared(mine)
        dist.all_reduce(mine.fill_(rank + 1))
        assert mine.unique().tolist() == [3.0]
        child = os.fork()
        if child == 0:
            x.zero_()
            os._exit(int(x.sum().item() != 0))
        assert os.waitpid(child, 0)[1] == 0
        assert x[0].item() == 8.0
        dist.all_reduce(x)
        assert x[-1].item() == 16.0
        """,
        tmp_path,
    )


def test_an_asynchronous_library_carries_on_its_stream(tmp_path: Path, interposer: Path) -> None:
    run_ranks(
        COLLECTIVES
        + """
import ctypes
for n in (16, 100_003):
    carried("library", n)
spy = ctypes.CDLL(os.environ["MACA_LIBRARY"])
spy.interposer_count.restype = spy.interposer_foreign_addresses.restype = ctypes.c_int64
for slot in ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "allocate", "error"):
    assert spy.interposer_count(f"comm_{slot}".encode()) > 0, slot
try:
    dist.all_reduce(torch.ones(2 + rank).maca())
except dist.DistBackendError as error:
    assert "different collectives" in str(error), error
else:
    raise AssertionError("no error")
""",
        tmp_path,
        MACA_LIBRARY=str(interposer),
        MACA_INTERPOSER_TARGET=TARGET,
        MACA_INTERPOSER_MODE="asynchronous",
    )


def test_backward_goes_on_beside_a_slow_carrier(tmp_path: Path, interposer: Path) -> None:
    run_ranks(
        """
        from macatensor.distributed import flight_recorder
        torch.manual_seed(0)
        net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6))).to("maca")
        model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.001)
        model(torch.ones(2, 64).maca()).sum().backward()  # DDP orders its buckets anew after it
        os.environ["MACA_INTERPOSER_NAP"] = "500"
        under_way = []
        net[0].weight.register_hook(lambda _: under_way.extend(flight_recorder.collectives(only_active=True)))
        model(torch.ones(2, 64).maca() * (rank + 1)).sum().backward()
        # at the last gradient the first buckets' collectives had been issued, and some had not ended
        assert len(under_way) > 1 and {e["profiling_name"] for e in under_way} == {"mccl:all_reduce"}, under_way
        weight = net[0].weight.grad
        dist.broadcast(other := weight.clone(), 0)
        assert torch.equal(weight, other) and not flight_recorder.collectives(only_active=True)
        """,
        tmp_path,
        MACA_LIBRARY=str(interposer),
        MACA_INTERPOSER_TARGET=TARGET,
    )


def test_a_library_without_communicators_has_gloo(tmp_path: Path, interposer: Path) -> None:
    run_ranks(
        """
        x = torch.ones(100_000).maca()
        for _ in range(3):
            dist.all_reduce(x)
        assert x[0].item() == 8.0 and torch.maca.library_info()["abi"] == "2.0"
        assert dist.group.WORLD._carriers.library() is None
        """,
        tmp_path,
        MACA_LIBRARY=str(interposer),
        MACA_INTERPOSER_TARGET=TARGET,
        MACA_INTERPOSER_MODE="older",
    )
