"""Ranks that die, sleep or call something else: the others raise, and say group, operator and rank."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ranks import run_ranks

from macatensor.distributed import flight_recorder


def test_ranks_that_call_different_collectives(tmp_path: Path) -> None:
    run_ranks(
        """
        def raises(call, *texts):
            try:
                call()
            except dist.DistBackendError as error:
                for text in (f"failed on rank {rank} of 2", "group", *texts):
                    assert text in str(error), (text, error)
            else:
                raise AssertionError("no error")
        x = torch.ones(3).maca()
        both = [lambda g: dist.all_reduce(x, group=g), lambda g: dist.all_gather_single(torch.zeros(6).maca(), x, group=g)]
        raises(lambda: both[rank](dist.new_group()), "rank 0 all_reduce(float32[3])", "rank 1 all_gather_into_tensor")
        raises(lambda: dist.all_reduce(torch.ones(3 + rank).maca(), group=dist.new_group()), "float32[3]", "float32[4]")
        dtype = [torch.float32, torch.int32][rank]
        raises(lambda: dist.all_reduce(torch.ones(3, dtype=dtype).maca(), group=dist.new_group()), "float32[3]", "int32[3]")
        group = dist.new_group()
        raises(lambda: dist.broadcast(x, rank, group=group), "broadcast")
        try:
            dist.all_reduce(x, group=group)
        except RuntimeError as error:
            assert "broken" in str(error) and "broadcast" in str(error)
        late = dist.new_group()
        work = dist.all_reduce(torch.ones(2 + rank).maca(), group=late, async_op=True)
        y = torch.ones(2 + rank).maca()
        dist.all_reduce(x)  # the world goes on
        assert x.tolist() == [2.0] * 3
        raises(work.wait, "float32[2]", "float32[3]")
        """,
        tmp_path,
    )


def test_a_reader_learns_of_a_failed_collective(tmp_path: Path) -> None:
    run_ranks(
        """
        y = torch.ones(2 + rank).maca()
        dist.all_reduce(y, async_op=True)
        try:
            (y + 1).cpu()  # nobody waited; no number comes of it
        except dist.DistBackendError as error:
            assert "float32[2]" in str(error) and "float32[3]" in str(error)
        else:
            raise AssertionError("a number out of a collective that failed")
        """,
        tmp_path,
    )


def test_a_killed_rank_is_told_of(tmp_path: Path) -> None:
    said = run_ranks(
        """
        import signal, time
        x = torch.ones(3).maca()
        dist.all_reduce(x)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        try:
            while True:
                dist.all_reduce(x)
        except dist.DistBackendError as error:
            assert time.monotonic() - begin < 15, time.monotonic() - begin
            print(error)
        os._exit(0)  # the store's last words would wait for rank 1
        """,
        tmp_path,
        timeout=5,
        expect=(0, -9),
    )
    assert "all_reduce(float32[3])" in said[0] and "rank 0 of 2" in said[0]


def test_a_sleeping_rank_times_out(tmp_path: Path) -> None:
    said = run_ranks(
        """
        import time
        x = torch.ones(3).maca()
        dist.all_reduce(x)
        if rank == 1:
            time.sleep(6)
            os._exit(0)
        try:
            dist.all_reduce(x)
        except dist.DistBackendError as error:
            print(error)
        os._exit(0)
        """,
        tmp_path,
        timeout=2,
    )
    assert "all_reduce(float32[3])" in said[0] and "rank 0 of 2" in said[0] and "imed out" in said[0]


def test_groups_may_begin_in_another_order(tmp_path: Path) -> None:
    """On threads: what the one rank begins first waits for the other rank there alone."""
    run_ranks(
        """
        import time
        groups = [dist.new_group(), dist.new_group()]
        first, second = groups if rank == 0 else groups[::-1]
        x, y = torch.ones(3).maca(), torch.ones(4).maca()
        of = {groups[0]: x, groups[1]: y}
        work = dist.all_reduce(of[first], group=first, async_op=True)
        time.sleep(0.5)
        dist.all_reduce(of[second], group=second)
        work.wait()
        assert x.tolist() == [2.0] * 3 and y.tolist() == [2.0] * 4
        """,
        tmp_path,
        timeout=10,
    )


@pytest.mark.supports("TORCH_MCCL_TRACE_BUFFER_SIZE TORCH_MCCL_DEBUG_INFO_TEMP_FILE")
def test_detail_and_the_flight_recorder(tmp_path: Path) -> None:
    run_ranks(
        """
        import json, subprocess
        from macatensor.distributed import flight_recorder
        def raises(call, *texts):
            try:
                call()
            except RuntimeError as error:
                assert all(text in str(error) for text in texts), (texts, error)
                return str(error)
            raise AssertionError("no error")
        x = torch.ones(3).maca()
        for _ in range(9):
            dist.all_reduce(x)
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        host = torch.ones(2)  # by the wrapper that TORCH_DISTRIBUTED_DEBUG=DETAIL puts around gloo
        both = [lambda g: dist.all_reduce(host, group=g), lambda g: dist.broadcast(host, 0, group=g)]
        raises(lambda: both[rank](dist.new_group()), "ALLREDUCE", "BROADCAST")
        both = [lambda g: dist.all_reduce(x, group=g), lambda g: dist.barrier(g)]
        said = raises(lambda: both[rank](dist.new_group()), "rank 0 all_reduce(float32[3])", "rank 1 barrier()")
        path = f"{os.environ['TORCH_MCCL_DEBUG_INFO_TEMP_FILE']}{rank}"
        assert path in said
        dumped = json.load(open(path))
        entries = dumped["entries"]
        assert dumped["rank"] == rank and len(entries) == 8 and dumped == json.loads(json.dumps(flight_recorder.recorder().dump()))
        assert [e["collective_seq_id"] for e in entries[:6]] == [4, 5, 6, 7, 8, 9]
        done, message, failed = entries[5], entries[6], entries[7]
        assert done["state"] == "completed" and done["retired"] and done["input_sizes"] == [[3]]
        assert done["input_dtypes"] == ["float32"] and done["duration_ms"] > 0 and done["timeout_ms"] == 20_000
        assert done["time_created_ns"] <= done["time_discovered_started_ns"] <= done["time_discovered_completed_ns"]
        line = open(done["frames"][0]["filename"]).read().splitlines()[done["frames"][0]["line"] - 1]
        assert "dist.all_reduce(x)" in line and done["frames"][0]["name"] == "<module>"
        assert message["profiling_name"] == ("mccl:send 0->1", "mccl:recv 1<-0")[rank] and message["is_p2p"]
        assert failed["profiling_name"] == ("mccl:all_reduce", "mccl:barrier")[rank] and failed["state"] == "started"
        assert "different collectives" in failed["error"] and failed["process_group"][0] != "0"
        assert dumped["pg_config"]["0"]["ranks"] == "[0, 1]"
        late = dist.new_group()
        if rank == 0:
            work = dist.all_reduce(x, group=late, async_op=True)
            [entry] = flight_recorder.collectives(only_active=True)
            assert entry["state"] in ("scheduled", "started") and not entry["retired"]
            dist.all_reduce(host)
            work.wait()
            assert not flight_recorder.collectives(only_active=True)
        else:
            dist.all_reduce(host)
            dist.all_reduce(x, group=late)
        flight_recorder.dump(f"{path}.folder/rank{rank}", pickled=True)
        dist.barrier()
        if rank == 0:  # PyTorch's own analyzer of NCCL's records
            for r in (1,):
                os.rename(path[:-1] + f"{r}.folder/rank{r}", f"{path}.folder/rank{r}")
            command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", "--prefix", "rank"]
            done = subprocess.run([*command, f"{path}.folder"], capture_output=True, text=True, timeout=100)
            assert "mismatch" in (done.stdout + done.stderr).lower(), done
        """,
        tmp_path,
        timeout=20,
        TORCH_DISTRIBUTED_DEBUG="DETAIL",
        TORCH_MCCL_TRACE_BUFFER_SIZE="8",
        TORCH_MCCL_DEBUG_INFO_TEMP_FILE=str(tmp_path / "last" / "collectives_of_rank_"),
    )


def test_no_flight_recorder_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_MCCL_TRACE_BUFFER_SIZE", "0")
    monkeypatch.setattr(flight_recorder, "_recorder", None)
    assert flight_recorder.recorder().begin(None, "all_reduce", [], [], None) is None
    assert flight_recorder.collectives() == []
    monkeypatch.delenv("TORCH_MCCL_DEBUG_INFO_TEMP_FILE", raising=False)
    with pytest.raises(ValueError, match="TORCH_MCCL_DEBUG_INFO_TEMP_FILE"):
        flight_recorder.dump()


@pytest.mark.parametrize("place", ["forward", "backward", "collective"])
def test_a_rank_is_killed(tmp_path: Path, place: str) -> None:
    """The other raises before the group's time is over, and names group, operator and rank."""
    said, _ = run_ranks(
        f"""
        import signal, threading, time
        place = {place!r}
        def die(*_):
            os.kill(os.getpid(), signal.SIGKILL)
        net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)).to("maca")
        model = torch.nn.parallel.DistributedDataParallel(net)
        model(torch.ones(2, 8).maca()).sum().backward()
        try:
            if place == "collective":
                if rank == 1:
                    threading.Timer(0.2, die).start()
                else:
                    time.sleep(2)  # the other one waits inside of it, and dies there
                dist.all_reduce(torch.ones(3).maca())
            elif rank == 1:
                net[1].register_forward_hook(die) if place == "forward" else net[1].register_full_backward_hook(die)
            for _ in range(3):
                model(torch.ones(2, 8).maca()).sum().backward()
        except dist.DistBackendError as error:
            print(error)
        sys.stdout.flush()
        os._exit(0)  # a farewell would wait for the other
        """,
        tmp_path,
        timeout=100,
        expect=(0, -9),
    )
    # a small all_reduce that the other had come to ends well; then the next collective says it
    assert re.search(
        r"mccl: \w+\(\w+\[\d+\]\), collective \d+ of the group '0', failed on rank 0 of 2", said
    ), said
    assert re.search(r"rank 1 \(process \d+\) died", said), said
