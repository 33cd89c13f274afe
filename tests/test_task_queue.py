"""MACA_TASK_QUEUE: the default stream's launches on a thread of their own give what launches at once give."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from running import Gate, nothing_leaked, run_python
from torch import nn

from macatensor import maca
from macatensor.runtime import ffi

LONG = 30_000_000  # of torch.maca._sleep: 30 ms or more


@pytest.fixture(params=["1", "auto"])
def queue(request: pytest.FixtureRequest) -> Iterator[str]:
    before = ffi.set_task_queue(request.param)
    yield request.param
    ffi.set_task_queue(before)


def busy() -> Gate:
    """Gives the default stream work that is unfinished until the gate is opened."""
    gate = Gate()
    assert not torch.maca.current_stream().query()
    return gate


def briefly_busy() -> None:
    """The same, opened soon: what follows is right whether it comes before or after."""
    busy().open_soon()


def with_mode(mode: str, run: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
    before = ffi.set_task_queue(mode)
    try:
        return [t.cpu() for t in run()]
    finally:
        ffi.set_task_queue(before)


def train(make: Callable[[], nn.Module], x: torch.Tensor, classes: int) -> Callable[[], list[torch.Tensor]]:
    """Three training steps: the losses, the weights and the random state's next numbers."""

    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        torch.maca.manual_seed(0)
        model = make().to("maca")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        target = torch.arange(x.shape[0]).remainder(classes).maca()
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.maca()), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [*losses, *model.state_dict().values(), torch.rand(5, device="maca")]

    return run


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(16, 4),
    )  # fmt: skip


def attention() -> nn.Module:
    return nn.Sequential(
        nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True),
        nn.Flatten(),
        nn.Linear(64 * 40, 4),
    )


@pytest.mark.parametrize(
    ("make", "shape"), [(convolutions, (8, 3, 32, 32)), (attention, (8, 40, 64))], ids=["convolutions", "attention"]
)  # fmt: skip
def test_a_training_step_has_the_same_bits(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    run = train(make, torch.rand(shape, generator=torch.Generator().manual_seed(1)), 4)
    expected = with_mode("0", run)
    assert expected[0].isfinite()
    for mode in ("1", "auto"):
        for found, wanted in zip(with_mode(mode, run), expected, strict=True):
            assert torch.equal(found, wanted)


def test_the_host_overlaps_kernels_and_sees_their_results(queue: str) -> None:
    x = torch.zeros(5, device="maca")
    gate = busy()
    for _ in range(5):
        x += 1
    assert not torch.maca.default_stream().query()
    gate.open_soon()
    assert x.tolist() == [5.0] * 5  # waits
    briefly_busy()
    x *= 2
    assert x[0].item() == 10
    briefly_busy()
    x.fill_(float("nan"))
    assert "nan" in repr(x)
    briefly_busy()
    x[:2] = torch.tensor([1.0, float("inf")])  # from the host, behind what is queued
    assert x.cpu().numpy()[:2].tolist() == [1.0, float("inf")]
    briefly_busy()
    x.copy_(torch.arange(5.0))
    x.zero_()
    host = torch.ones(5)
    host.copy_(x, non_blocking=True)
    assert host.eq(0).all() and torch.empty(0, device="maca").sum().item() == 0
    briefly_busy()
    assert torch.tensor(3.0).maca().add(1).item() == 4
    assert torch.tensor([0, 1, 0, 1]).maca().nonzero().flatten().tolist() == [1, 3]  # its size is data


def test_large_and_small_uploads_keep_their_order(queue: str) -> None:
    for n in (10, 1 << 20):
        source = torch.zeros(n)
        x = torch.full((n,), 7.0, device="maca")
        briefly_busy()
        y = x + 0  # reads the old value
        x.copy_(source)
        source.fill_(9)  # the host's side is free on return
        assert y.cpu().eq(7).all() and x.cpu().eq(0).all()


def test_short_launches_alone_run_at_once_with_auto() -> None:
    before = ffi.set_task_queue("auto")
    try:
        x = torch.ones(16, device="maca")
        for _ in range(50):
            x = x + 1
            assert torch.maca.current_stream().query()
        with pytest.raises(IndexError, match=r"size 16$"):
            x[torch.tensor([16]).maca()]  # at its line
    finally:
        ffi.set_task_queue(before)


def test_memory_that_is_freed_while_it_is_read(queue: str) -> None:
    with nothing_leaked():
        for _ in range(5):
            x = torch.full((1 << 16,), 3.0, device="maca")
            briefly_busy()
            y = x * 2
            del x
            other = torch.rand(1 << 16).maca()  # may get the same memory, behind the product
            assert y.cpu().eq(6).all()
            del y, other
    # given back to the system only when nothing runs on it
    x = torch.full((1 << 20,), 3.0, device="maca")
    briefly_busy()
    y = x * 2
    total = y.sum()
    del x, y
    torch.maca.empty_cache()
    assert torch.maca.current_stream().query()
    assert total.item() == 6 << 20
    assert torch.maca.memory_stats()["allocation.all.current"] >= 1


def test_no_memory_left_while_work_is_queued(queue: str) -> None:
    gc.collect()
    torch.maca.empty_cache()
    ffi.lib.maca_memory_set_limit(torch.maca.memory_reserved() + (64 << 20))
    try:
        kept = torch.ones(1 << 20, device="maca")
        for _ in range(40):  # 4 MiB each, freed while the queue reads them
            torch.maca._sleep(1_000_000)
            kept = kept * 1
        torch.maca._sleep(LONG)  # no gate: the wait for memory keeps the interpreter's lock
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 30, device="maca")
        assert kept.cpu().eq(1).all()
    finally:
        ffi.lib.maca_memory_set_limit(ffi.MEMORY_LIMIT or -1)


def test_waits_raise_errors_that_name_the_kernel(queue: str) -> None:
    table, bad = maca(torch.arange(5.0)), maca(torch.tensor([0, 99]))
    event = torch.maca.Event()
    found = table

    def waits_for_an_event() -> None:
        event.record()
        event.synchronize()

    waits = (
        torch.maca.synchronize,
        lambda: found.cpu(),  # the tensor of the round it is called in
        lambda: (table + 1).sum().item(),
        waits_for_an_event,
        torch.maca.default_stream().synchronize,
    )
    for wait in waits:
        briefly_busy()
        found = table[bad]
        with pytest.raises(
            IndexError, match=r"index 99 is out of bounds.*kernel index .*MACA_LAUNCH_BLOCKING=1"
        ):
            wait()
        torch.maca.synchronize()  # raised once
    briefly_busy()
    torch.multinomial(-table - 1, 1)
    with pytest.raises(RuntimeError, match="nan|inf|element < 0"):
        torch.maca.synchronize()
    assert (table + 1).sum().item() == 15


def test_events_and_other_streams(queue: str) -> None:
    default, side = torch.maca.default_stream(), torch.maca.Stream()
    start, end = torch.maca.Event(enable_timing=True), torch.maca.Event(enable_timing=True)
    x = torch.zeros(1000, device="maca")
    start.record()
    torch.maca._sleep(LONG)
    gate = busy()
    x += 1
    end.record()
    assert not end.query() and not default.query()
    with pytest.raises(RuntimeError, match="not ready"):
        start.elapsed_time(end)
    with torch.maca.stream(side):
        y = x * 3  # the runtime orders it behind the default stream
    gate.open_soon()
    assert y.cpu().eq(3).all()
    end.synchronize()
    assert LONG / 1e6 <= start.elapsed_time(end)
    # the default stream behind a side stream, while the host goes on
    with torch.maca.stream(side):
        gate = Gate()
        x += 1
    z = x * 1
    default.wait_stream(side)
    assert not default.query()
    gate.open_soon()
    assert z.cpu().eq(2).all() and default.query()
    # memory that goes from stream to stream
    for _ in range(20):
        big = torch.ones(1 << 16, device="maca")
        busy_total = (big * 2).sum()
        del big
        with torch.maca.stream(side):
            other = torch.zeros(1 << 16, device="maca").fill_(7)
        assert busy_total.item() == 2 << 16 and other.sum().item() == 7 << 16


@pytest.mark.supports("torch.maca.CUDAGraph")
def test_captured_graphs(queue: str) -> None:
    weight = maca(torch.rand(200, 200, generator=torch.Generator().manual_seed(0)))
    x = torch.ones(200, 200, device="maca")
    with torch.inference_mode():
        (x @ weight).cpu()
        briefly_busy()
        x += 1  # queued before the capture
        graph = torch.maca.CUDAGraph()
        with torch.maca.graph(graph):
            y = (x @ weight).relu() + 1
    for value in (2.0, 3.0):
        briefly_busy()
        x.fill_(value)
        graph.replay()
        result = y * 1  # behind the replay
        torch.testing.assert_close(result.cpu(), (torch.full((200, 200), value) @ weight.cpu()).relu() + 1)
    weight.zero_()  # packed anew
    graph.replay()
    assert y.cpu().eq(1).all()
    briefly_busy()
    graph.replay()
    del graph, y  # while it runs
    torch.maca.synchronize()


def test_packed_weights_follow_what_is_queued(queue: str) -> None:
    layer = maca(nn.Conv2d(8, 16, 3))
    image = torch.rand(2, 8, 24, 24)
    on_device = maca(image)
    with torch.inference_mode():
        for step in range(4):
            briefly_busy()
            layer.weight.fill_(step / 10)
            for _ in range(3):  # packed at the second
                found = layer(on_device)
            expected = F.conv2d(image, torch.full((16, 8, 3, 3), step / 10), layer.bias.cpu())
            torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_threads(queue: str) -> None:
    matrix = maca(torch.rand(150, 150, generator=torch.Generator().manual_seed(0)))
    product = (matrix.cpu() @ matrix.cpu()).sum().item()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(30):
                x = torch.full((step + 1, 5), float(number), device="maca") + 1
                assert (matrix @ matrix).sum().item() == pytest.approx(product, rel=1e-4)
                assert x.sum().item() == (step + 1) * 5 * (number + 1)
                if step % 10 == number:
                    torch.maca.synchronize()
                if step == 15:
                    torch.maca.empty_cache()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
        assert not thread.is_alive(), "a thread hangs"
    assert not failures, failures[0]


def test_waiting_lets_other_python_threads_run(queue: str) -> None:
    x = torch.ones(4, device="maca")
    waits = (
        lambda: x.cpu(), torch.maca.synchronize, torch.maca.empty_cache,
        lambda: torch.set_num_threads(torch.get_num_threads()),
    )  # fmt: skip
    for wait in waits:
        gate = Gate(20)
        x += 1
        gate.open_soon()  # by another thread; else the gate fails
        wait()
    torch.maca.synchronize()


def test_python_does_not_run_far_ahead(queue: str) -> None:
    x = torch.zeros(100, device="maca")
    first = torch.maca.Event()
    gate = busy()
    first.record()
    for _ in range(400):
        x += 1
    assert not first.query()
    gate.open_soon()
    for _ in range(1200):
        x += 1
    assert first.query()
    assert x.cpu().eq(1600).all()


def test_a_hook_may_read_on_backwards_own_thread(queue: str) -> None:
    w = torch.rand(200, 200, device="maca", requires_grad=True)
    seen: list[float] = []
    w.register_hook(lambda g: seen.append(g.sum().item()))
    briefly_busy()
    (w @ w).sum().backward()
    host = w.detach().cpu().requires_grad_()
    (host @ host).sum().backward()
    torch.testing.assert_close(w.grad.cpu(), host.grad)
    assert seen == [pytest.approx(host.grad.sum().item(), rel=1e-4)]


FORK = """
import os, torch, macatensor
x = torch.zeros(300, 300, device="maca")
(x @ x).sum().item()
for _ in range(2):
    torch.maca._sleep(30_000_000)
    x += 1                              # unfinished when the child is made
    y = x @ x
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert y[0, 0].item() == 300 * x[0, 0].item() ** 2, y
            torch.maca._sleep(5_000_000)
            z = x @ x + 1
            assert z[0, 0].item() == y[0, 0].item() + 1
            torch.maca.synchronize()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (y + 0)[0, 0].item() == 300 * x[0, 0].item() ** 2
print(macatensor.runtime.ffi.lib.maca_task_queue_get())
"""

EXIT = """
import atexit, torch, macatensor
x = torch.ones(300, 300).maca()
atexit.register(lambda: print("sum", (x @ x).sum().item()))
torch.maca._sleep(50_000_000)
for _ in range(20):
    x = x @ x / 300
kept = [x, torch.maca.Event()]
kept.append(kept)  # a cycle, which ends with the interpreter
"""


@pytest.mark.parametrize("mode", ["1", "auto"])
def test_fork_and_exit_with_work_in_the_queue(mode: str) -> None:
    assert run_python(FORK, MACA_TASK_QUEUE=mode).stdout == {"1": "1\n", "auto": "2\n"}[mode]
    done = run_python(EXIT, MACA_TASK_QUEUE=mode)
    assert done.stderr == "" and done.stdout == "sum 27000000.0\n"


def test_an_unmet_error_is_told_at_exit() -> None:
    failing = """
    import torch, macatensor
    x, i = torch.arange(5).maca(), torch.tensor([9]).maca()
    torch.maca._sleep(100_000_000)
    x[i]
    """
    assert "index 9 is out of bounds" in run_python(failing, MACA_TASK_QUEUE="1").stderr


@pytest.mark.supports("MACA_TASK_QUEUE")
def test_the_switch() -> None:
    line = """
    import torch, macatensor
    print(macatensor.runtime.ffi.lib.maca_task_queue_get())
    try:
        torch.arange(5).maca()[torch.tensor([9]).maca()]
    except IndexError as error:
        print(error)
    """
    for mode, blocking, number in ((None, None, 2), ("0", None, 0), ("1", "1", 0)):
        done = run_python(line, MACA_TASK_QUEUE=mode, MACA_LAUNCH_BLOCKING=blocking)
        assert done.stdout == f"{number}\nindex 9 is out of bounds for dimension 0 with size 5\n"
    refused = run_python(
        "try:\n import macatensor\nexcept ImportError as e: print(e)", MACA_TASK_QUEUE="yes"
    ).stdout
    assert "MACA_TASK_QUEUE='yes'; accepted: 0, 1, auto" in refused


def test_denormals_are_flushed_where_python_says_so(queue: str) -> None:
    x = torch.full((1 << 20,), 2e-38).maca()
    assert (x * 0.25).cpu().min() > 0
    assert torch.set_flush_denormal(True)
    try:
        assert not (x * 0.25).cpu().any()
    finally:
        torch.set_flush_denormal(False)
    assert (x * 0.25).cpu().min() > 0


def test_a_profiler_gives_every_operator_its_time() -> None:
    x = torch.randn(700, 700).maca()
    before = ffi.set_task_queue("auto")
    try:
        (x @ x).sum()  # plans are made, the queue's thread is there
        torch.maca.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            (x @ x).sum()
            assert torch.maca.current_stream().query()  # nothing was queued
    finally:
        ffi.set_task_queue(before)
    assert {"aten::mm", "aten::sum"} <= {e.key for e in profiler.key_averages()}
