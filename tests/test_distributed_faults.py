"""Ranks that die, sleep or call something else: the others raise, and say group, operator and rank."""

from __future__ import annotations

from pathlib import Path

from ranks import run_ranks


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
