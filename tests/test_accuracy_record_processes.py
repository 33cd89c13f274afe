"""Recording in threads, child processes and ranks: each has its own folder or its own name."""

from __future__ import annotations

import json
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from running import run_python

from macatensor import accuracy
from macatensor.accuracy.records import read


def test_threads_started_meanwhile(tmp_path: Path) -> None:
    def work(n: int) -> None:
        torch.tanh(torch.full((n,), 2.0, requires_grad=True)).sum().backward()

    class Own(threading.Thread):
        def run(self) -> None:
            torch.sigmoid(torch.ones(2))

    with accuracy.record(tmp_path, record_level=1):
        thread = threading.Thread(target=work, args=(3,), name="worker")
        thread.start()
        thread.join()
        own = Own(name="own")
        own.start()
        own.join()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, [4, 5]))
    calls = read(tmp_path).processes[0].calls
    assert [c.thread for c in calls if c.name == "torch.tanh.0.fwd"] == ["worker"]
    assert [c.thread for c in calls if c.op == "torch.sigmoid"] == ["own"]
    forward = {c.number: c for c in calls}
    backward = [c for c in calls if c.op == "aten.tanh_backward.default"]
    assert len(backward) == 3
    for call in backward:
        assert call.forward is not None and forward[call.forward].op == "aten.tanh.default"
        assert forward[call.forward].thread == call.thread
    assert sorted(c.op for c in calls if c.op == "torch.tanh" and c.direction == "fwd") == ["torch.tanh"] * 3
    torch.testing.assert_close(torch.ones(1), torch.ones(1))


def _child(value: float) -> None:
    torch.tanh(torch.full((2,), value))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_child_processes(method: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context(method)
    with accuracy.record(tmp_path, record_level=1):
        torch.relu(torch.ones(2))
        child = context.Process(target=_child, args=(0.5,))  # type: ignore[attr-defined]
        child.start()
        child.join(60)
        assert child.exitcode == 0
    processes = read(tmp_path).processes
    assert len(processes) == 2
    ops = [{c.op for c in p.calls if c.level == "api"} for p in processes]
    assert sorted(map(sorted, ops)) == sorted([["torch.ones", "torch.relu"], ["torch.full", "torch.tanh"]])
    assert not any(p.cut_off for p in processes)
    mine = next(
        p for p in processes if "process" in p.environment and p.environment["process"] == "MainProcess"
    )
    other = next(p for p in processes if p is not mine)
    assert mine.environment["pid"] == other.environment["parent"] or method == "forkserver"
    assert other.calls[0].number == 0


class Squares(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.square(torch.tensor(float(i)))


def test_workers_of_a_data_loader(tmp_path: Path) -> None:
    with accuracy.record(tmp_path, record_level=1):
        total = sum(
            float(b.sum()) for b in torch.utils.data.DataLoader(Squares(), batch_size=2, num_workers=2)
        )
    assert total == 14
    processes = read(tmp_path).processes
    squares = [p for p in processes if any(c.op == "torch.square" for c in p.calls)]
    assert len(processes) == 3 and len(squares) == 2


_RANKS = """
    import os, sys
    import torch, torch.distributed as dist
    from macatensor import accuracy

    def main(rank, store):
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
        with accuracy.record(sys.argv[1], record_level=1):
            x = torch.full((3,), float(rank + 1))
            dist.all_reduce(x)
            x.add_(1)
            parts = [torch.zeros(2), torch.zeros(2)]
            work = dist.all_gather(parts, torch.full((2,), float(rank)), async_op=True)
            work.wait()
            if rank == 0:  # both post the receive first: waiting for it in the recorder would never end
                got = torch.zeros(1); w = dist.irecv(got, 1); dist.isend(torch.ones(1), 1).wait(); w.wait()
            else:
                got = torch.zeros(1); w = dist.irecv(got, 0); dist.isend(torch.ones(1) * 2, 0).wait(); w.wait()
            got * 1
        with accuracy.record(sys.argv[1] + "/one", record_level=0, ranks=[1]):
            torch.relu(x)
        last = dist.new_group([1])
        with accuracy.record(sys.argv[1] + "/group", record_level=0, process_group=last) as session:
            torch.relu(x)
        assert (session.folder is None) == (rank == 0)
        # ranks are then ranks in the group, where rank 1 is the first
        with accuracy.record(sys.argv[1] + "/first", record_level=0, process_group=last, ranks=[0]):
            torch.tanh(x)
        with accuracy.record(sys.argv[1] + "/none", record_level=0, process_group=last, ranks=[1]) as session:
            torch.tanh(x)
        assert session.folder is None
        dist.destroy_process_group()

    if __name__ == "__main__":
        rank = os.fork() == 0
        main(int(rank), sys.argv[2])
        if rank:
            sys.stdout.flush()
            os._exit(0)
        status = os.wait()[1]
        assert status == 0, status
"""


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes with gloo have recorded."""
    folder = tmp_path_factory.mktemp("ranks")
    run_python(_RANKS, str(folder / "out"), str(folder / "store"))
    return folder / "out"


def test_functions_of_torch_distributed_show_what_they_received(two_ranks: Path) -> None:
    """Blocking ones and those with ``async_op=True``, whose line comes when the work is done."""
    for rank, process in enumerate(read(two_ranks / "run-000").processes):
        api = {c.op: c for c in process.calls if c.level == "api"}
        reduce = api["torch.distributed.all_reduce"]
        assert [(a.place, a.tensor.mean) for a in reduce.inputs if a.tensor] == [("0", rank + 1)]
        assert [(a.place, a.tensor.mean) for a in reduce.outputs if a.tensor] == [("0", 3)]
        gather = api["torch.distributed.all_gather"]
        assert [a.tensor.mean for a in gather.outputs if a.tensor and a.place.startswith("0.")] == [0, 1]
        receive = api["torch.distributed.irecv"]
        assert [a.tensor.mean for a in receive.outputs if a.tensor] == [2 - rank]
        add = api["torch.Tensor.add_"]
        assert add.inputs[0].tensor is not None and add.inputs[0].tensor.made_by == reduce.number


def test_process_group_chooses_the_processes(two_ranks: Path) -> None:
    for name, op in (("group", "torch.relu"), ("first", "torch.tanh")):
        (process,) = read(two_ranks / name).processes
        assert process.rank == 1 and process.environment["group_rank"] == 0
        assert "ProcessGroup" in process.environment["recorder"]["process_group"]
        assert [c.op for c in process.calls if c.level == "api"] == [op]
    assert not (two_ranks / "none").exists()


def test_collectives_of_two_ranks(two_ranks: Path) -> None:
    run = read(two_ranks / "run-000")
    assert [p.rank for p in run.processes] == [0, 1]
    for rank, process in enumerate(run.processes):
        reduce = next(c for c in process.calls if c.op.startswith("c10d.allreduce_"))
        (given,) = [a.tensor for a in reduce.inputs if a.tensor]
        (made,) = [a.tensor for a in reduce.outputs if a.tensor]
        assert given.mean == rank + 1 and made.mean == 3
        add = next(c for c in process.calls if c.op == "aten.add_.Tensor")
        assert add.inputs[0].tensor is not None and add.inputs[0].tensor.made_by == reduce.number
        gather = next(c for c in process.calls if c.op.startswith("c10d.allgather_"))
        found = sorted((a.place, a.tensor.mean) for a in gather.outputs if a.tensor is not None)
        assert [mean for place, mean in found if place.startswith("0")] == [0, 1]
        received = next(c for c in process.calls if c.op.startswith("c10d.recv_"))
        assert [a.tensor.mean for a in received.outputs if a.tensor is not None] == [2 - rank]
        last = [c for c in process.calls if c.op == "aten.mul.Tensor"][-1]
        assert last.inputs[0].tensor is not None and last.inputs[0].tensor.made_by == received.number
    assert [p.rank for p in read(two_ranks / "one").processes] == [1]


def test_ranks_of_a_launcher_share_a_folder(tmp_path: Path) -> None:
    program = (
        "import os, sys, torch\nfrom macatensor import accuracy\n"
        "children = []\n"
        "for rank in range(2):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        os.environ.update(RANK=str(rank), WORLD_SIZE='2', MASTER_PORT='1')\n"
        "        with accuracy.record(sys.argv[1], record_level=0): torch.relu(torch.ones(2))\n"
        "        os._exit(0)\n"
        "    children.append(pid)\n"
        "assert all(os.waitpid(p, 0)[1] == 0 for p in children)\n"
    )
    run_python(program, str(tmp_path))
    run_python(program, str(tmp_path))
    folders = sorted(p for p in tmp_path.iterdir() if p.is_dir())
    assert [f.name for f in folders] == ["run-000", "run-001"]
    for folder in folders:
        assert [p.rank for p in read(folder).processes] == [0, 1]


def test_a_process_that_ranks_leaves_out(tmp_path: Path) -> None:
    with accuracy.record(tmp_path, ranks=[3]) as session:
        torch.relu(torch.ones(2))
    assert session.folder is None and not list(tmp_path.iterdir())


def test_maca_tools_without_macatensor(tmp_path: Path) -> None:
    """The alias is mapped in pyproject.toml; here a link stands for the mapping."""
    source = Path(accuracy.__file__).parent.parent / "maca_tools"
    (tmp_path / "maca_tools").symlink_to(source)
    code = """
    import sys
    sys.path.insert(0, sys.argv[1])
    from maca_tools import accuracy
    import maca_tools.accuracy, torch, macatensor
    assert accuracy is maca_tools.accuracy and accuracy.gen_report is macatensor.accuracy.gen_report
    accuracy.start_record(enabled=True, output_dir=sys.argv[1] + "/out", record_level=1)
    torch.relu(torch.ones(2))
    accuracy.record_switch(False)
    """
    run_python(code, str(tmp_path))
    assert any(c.op == "torch.relu" for c in read(tmp_path / "out").processes[0].calls)


def test_environment_names_the_process(tmp_path: Path) -> None:
    with accuracy.record(tmp_path, record_level=0):
        pass
    (folder,) = tmp_path.glob("run-000/process-0-*")
    held: dict[str, Any] = json.loads((folder / "environment.json").read_text())
    assert folder.name == f"process-0-{held['pid']}" and held["process"] == "MainProcess"
