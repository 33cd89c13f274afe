"""Python threads that hammer the device, forked children, DataLoader workers, and the end of the interpreter."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest
import torch
from running import nothing_leaked, run_python
from torch import nn

from macatensor import maca


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Runs ``work(0) ... work(count - 1)`` at once and raises what any of them raised."""
    failures: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


def test_four_threads_of_small_and_large_operators() -> None:
    shared = maca(torch.arange(16.0))
    host = torch.arange(16.0)
    matrix = maca(torch.rand(200, 200))
    product = matrix.cpu() @ matrix.cpu()
    for _ in range(3):  # packed from now on
        matrix @ matrix

    def work(number: int) -> None:
        for step in range(60):
            x = shared + number
            y = (x * 2).relu().sum()
            assert y.item() == ((host + number) * 2).sum().item()
            assert (shared[step % 16 :] * 1).shape[0] == 16 - step % 16  # plans of new signatures
            if step % 10 == number:
                torch.testing.assert_close((matrix @ matrix).cpu(), product)
            with pytest.raises(RuntimeError):
                shared @ matrix
            z = torch.full((step + 1, number + 1), float(step), device="maca")
            assert z.cpu().sum().item() == step * (step + 1) * (number + 1)

    with nothing_leaked():
        in_threads(4, work)


def test_four_threads_train() -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    x = torch.rand(32, 8)

    def train(model: nn.Module, data: torch.Tensor) -> list[float]:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    models = [maca(make()) for _ in range(4)]
    data = maca(x)
    results: list[list[float]] = [[] for _ in range(4)]

    def work(number: int) -> None:
        results[number] = train(models[number], data)

    in_threads(4, work)
    assert all(r == results[0] for r in results)
    assert results[0] == pytest.approx(train(make(), x), rel=1e-3)


def test_one_packed_weight_and_many_threads() -> None:
    layer = maca(nn.Conv2d(3, 8, 3))
    images = [maca(torch.rand(1, 3, 12 + n, 12)) for n in range(8)]
    with torch.inference_mode():
        expected = [layer(image).cpu() for image in images]

    def work(number: int) -> None:
        with torch.inference_mode():
            for step in range(40):
                n = (step + number) % len(images)
                assert torch.equal(layer(images[n]).cpu(), expected[n])

    in_threads(4, work)


def test_streams_in_threads() -> None:
    def work(number: int) -> None:
        stream = torch.maca.Stream()
        with torch.maca.stream(stream):
            x = torch.full((64, 64), float(number), device="maca")
            for _ in range(20):
                x = x + 1
        stream.synchronize()
        assert x.cpu().eq(number + 20).all()

    in_threads(4, work)


def test_saved_graphs_run_backward_in_another_thread() -> None:
    w = torch.ones(4, device="maca", requires_grad=True)
    loss = (w * 3).sum()
    in_threads(1, lambda _: loss.backward())
    assert w.grad.tolist() == [3.0] * 4


FORK = """
import os, torch, macatensor
from macatensor import maca
x = maca(torch.rand(300, 300))
expected = (x @ x).sum().item()
big = torch.ones(1 << 20, device="maca")
(big + 1).sum().item()           # the pool's workers run
if {stream}:
    stream = torch.maca.Stream()
    with torch.maca.stream(stream):
        y = x @ x
    stream.synchronize()
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert abs((x @ x).sum().item() - expected) <= 1e-3 * abs(expected)
            w = torch.ones(3, device="maca", requires_grad=True)
            (w * 2 + big[:3]).sum().backward()
            assert w.grad.tolist() == [2.0] * 3
            torch.maca.synchronize()
            if {stream}:
                own = torch.maca.Stream()
                with torch.maca.stream(own):
                    z = x + 1
                own.synchronize()
                assert z.shape == x.shape
            code = 0
        finally:
            {leave}
    children.append(child)
for child in children:
    _, status = os.waitpid(child, 0)
    assert status == 0, status
assert abs((x @ x).sum().item() - expected) <= 1e-3 * abs(expected)
print("parent lives")
"""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("leave", ["os._exit(code)", "raise SystemExit(code)"])
def test_forked_children_compute_and_leave(stream: bool, leave: str) -> None:
    done = run_python(FORK.format(stream=stream, leave=leave))
    assert done.stdout == "parent lives\n", done.stderr


FORK_BESIDE_A_LAUNCHING_THREAD = """
import os, sys, threading, time, torch, macatensor
from running import Gate
x = torch.zeros(100, device="maca")
x + 1
torch.maca.synchronize()
begun, stop, attempts, launched, at_fork = threading.Event(), False, 0, 0, []

def launches():
    global attempts, launched
    while not stop:
        attempts += 1
        x + 1
        launched += 1
        time.sleep(0.0002)

def opens():  # once the other thread has met the fork, in a launch that it began before or after
    begun.wait()
    while attempts == at_fork[0] == at_fork[1]:
        time.sleep(0.001)
    for _ in range(50):
        time.sleep(0.001)
    gate.open()

def before():
    at_fork[:] = [attempts, launched]
    begun.set()

os.register_at_fork(before=before)  # runs before those that were registered before it
sys.setswitchinterval(1000)  # a thread goes on until it waits
threads = [threading.Thread(target=launches, daemon=True), threading.Thread(target=opens, daemon=True)]
for thread in threads:
    thread.start()
with Gate(20) as gate:
    y = x + 2
    child = os.fork()
    if child == 0:
        os._exit(0 if y.eq(2).all().item() else 1)
    made = launched - at_fork[1]
assert not gate.writers
stop = True
for thread in threads:
    thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
torch.maca.synchronize()  # nobody had to wait until the gate opened by itself
print(made)
"""


def test_a_fork_waits_for_what_is_queued_alone() -> None:
    """The interpreter's lock is free meanwhile: another thread opens the gate that the fork waits for."""
    made = int(run_python(FORK_BESIDE_A_LAUNCHING_THREAD, MACA_TASK_QUEUE="1").stdout)
    assert made <= 1


def test_a_fork_beside_memory_beyond_the_machine() -> None:
    """Freed, or never touched: the system asks for no more at a fork than what is used."""
    code = """
    import os, torch, macatensor
    total = torch.maca.mem_get_info()[1]
    held = [torch.empty(total * 3 // 5, dtype=torch.uint8, device="maca") for _ in range(2)]
    for _ in range(2):
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        held.clear()
    try:
        torch.empty(total * 3, dtype=torch.uint8, device="maca")
    except torch.OutOfMemoryError:
        print("refused")
    """
    assert run_python(code).stdout == "refused\n"


class Squares(torch.utils.data.Dataset):
    """Host data; with ``device`` each worker computes it on its own fork of the device."""

    def __init__(self, device: bool) -> None:
        self.device = device

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.device:
            return (maca(torch.tensor([float(index)])) ** 2).cpu()
        return torch.tensor([float(index)]) ** 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("device", [False, True])
def test_data_loader(workers: int, pin: bool, device: bool) -> None:
    loader = torch.utils.data.DataLoader(
        Squares(device), batch_size=4, num_workers=workers, pin_memory=pin, timeout=300 * (workers > 0)
    )
    total = 0.0
    for batch in loader:
        assert type(batch) is torch.Tensor and batch.is_pinned() == pin
        total += maca(batch).sum().item()
    assert total == sum(n * n for n in range(12))


def test_tensors_of_the_device_in_a_collated_batch() -> None:
    data = [(maca([float(n)]), n) for n in range(4)]
    images, labels = next(iter(torch.utils.data.DataLoader(data, batch_size=4)))
    assert (
        images.device.type == "maca"
        and images.flatten().tolist() == [0, 1, 2, 3]
        and labels.tolist() == [0, 1, 2, 3]
    )


def test_pinned_memory() -> None:
    x = torch.rand(10)
    pinned = x.pin_memory()
    assert pinned.is_pinned() and not x.is_pinned() and torch.equal(pinned, x)
    assert maca(pinned).tolist() == x.tolist()
    assert pinned.to("maca", non_blocking=True).tolist() == x.tolist()
    with pytest.raises(RuntimeError):  # as in a PyTorch that has no accelerator
        torch.empty(3, pin_memory=True)
    assert not maca(x).is_pinned()
    with pytest.raises(RuntimeError):
        maca(x).pin_memory()


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "import sys; sys.exit(0)",
        "import atexit; atexit.register(lambda: print(x.sum().item()))",
        # not a daemon: plain PyTorch aborts too when a daemon thread computes at the end
        "import threading; threading.Thread(target=lambda: [x + 1 for _ in range(200)]).start()",
        "class Late:\n    def __del__(self): x + 1\nlate = Late()",
        "loss = (torch.ones(3, device='maca', requires_grad=True) * 2).sum(); torch.late = [loss, x]",
    ],
)
def test_interpreter_exit_with_live_tensors(ending: str) -> None:
    code = (
        "import torch, macatensor\nfrom macatensor import maca\nx = maca(torch.rand(64, 64)); y = x @ x\n"
        + ending
    )
    done = run_python(code)
    assert (
        "Fatal" not in done.stderr
        and "Segmentation" not in done.stderr
        and "terminate called" not in done.stderr
    )


def test_a_multiprocessing_child() -> None:
    done = run_python(
        """
        import multiprocessing, sys, torch
        if __name__ == "__main__":
            import macatensor
            context = multiprocessing.get_context("fork")
            queue = context.SimpleQueue()
            def child(q):
                q.put(macatensor.maca(torch.ones(3)).sum().item())
            process = context.Process(target=child, args=(queue,))
            process.start()
            assert queue.get() == 3.0
            process.join()
            assert process.exitcode == 0
        """
    )
    assert done.stderr == ""
    assert os.getpid() > 0


def test_a_system_without_another_thread() -> None:
    """A kernel that finds no thread to share its work with does all of it, loops inside of it included."""
    program = """
    import resource, torch, macatensor
    x = torch.ones(1 << 20, device="maca")
    matrix = torch.rand(256, 256)
    ours = matrix.maca()
    results = torch.empty(2, 256, 256, device="maca")
    x.mul_(1), torch.mm(ours, ours, out=results[0]), x.sum()  # plans, threads and memory of what follows
    torch.maca.synchronize()
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 20), -1))  # a thread's stack is 8 MiB
    torch.set_num_threads(4)
    x.mul_(3)
    torch.mm(ours, ours, out=results[1])
    total = x.sum()
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    assert total.item() == 3 << 20
    torch.testing.assert_close(results[1].cpu(), matrix @ matrix)
    """
    run_python(program, OMP_NUM_THREADS="1")
