"""Streams and events: order, timing, and errors of queued work."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import time

import pytest
import torch
from running import nothing_leaked, run_python

from macatensor import maca


@pytest.mark.supports("torch.maca: Stream current_stream default_stream set_stream stream")
def test_current_stream_and_nesting() -> None:
    default = torch.maca.current_stream()
    assert default == torch.maca.default_stream() and default.stream_id == 0
    a, b = torch.maca.Stream(), torch.maca.Stream(priority=-1)
    assert a != b and a != default and len({a, b, default}) == 3
    with torch.maca.stream(a):
        assert torch.maca.current_stream() == a
        with torch.maca.stream(b):
            assert torch.maca.current_stream() == b
            with torch.maca.stream(a), a:
                assert torch.maca.current_stream() == a
            assert torch.maca.current_stream() == b
        with torch.maca.stream(None):
            assert torch.maca.current_stream() == a
        with a:
            pass
        assert torch.maca.current_stream() == a
    assert torch.maca.current_stream() == default
    with pytest.raises(ZeroDivisionError), torch.maca.stream(a):
        raise ZeroDivisionError
    assert torch.maca.current_stream() == default
    torch.maca.set_stream(b)
    assert torch.maca.current_stream() == b
    torch.maca.set_stream(default)


def test_the_current_stream_belongs_to_a_thread() -> None:
    seen = []
    with torch.maca.stream(torch.maca.Stream()):
        thread = threading.Thread(target=lambda: seen.append(torch.maca.current_stream().stream_id))
        thread.start()
        thread.join()
    assert seen == [0]


def test_results_do_not_depend_on_timing() -> None:
    x = maca(torch.rand(400, 400) / 20)
    expected = x.cpu()
    for _ in range(6):
        expected = expected @ x.cpu()
    streams = [torch.maca.Stream() for _ in range(3)]
    for _ in range(5):
        y = x
        for i in range(6):
            with torch.maca.stream(streams[i % 3]):
                y = y @ x
        torch.testing.assert_close(y.cpu(), expected, rtol=1e-4, atol=1e-5)
    # a buffer that is freed while a stream still reads it is not handed out too early
    for _ in range(20):
        with torch.maca.stream(streams[0]):
            big = torch.ones(1 << 16, device="maca")
            total = (big * 2).sum()
            del big
        other = torch.zeros(1 << 16, device="maca").fill_(7)
        assert total.item() == 2 << 16
        del other


@pytest.mark.supports(
    "torch.maca: Event",
    "torch.maca.Stream: wait_stream wait_event record_event query synchronize",
    "torch.maca.Event: record wait query synchronize elapsed_time",
)
def test_events_time_and_order() -> None:
    stream = torch.maca.Stream()
    start, end = torch.maca.Event(enable_timing=True), torch.maca.Event(enable_timing=True)
    assert start.query()  # nothing was recorded
    x = maca(torch.rand(300, 300))
    with torch.maca.stream(stream):
        start.record()
        for _ in range(10):
            x = x @ x / 100
        end.record()
    end.synchronize()
    assert end.query() and start.elapsed_time(end) > 0
    torch.maca.current_stream().wait_event(end)
    other = torch.maca.Stream()
    other.wait_stream(stream)
    end.wait(other)
    other.synchronize()
    assert other.query() and stream.record_event().synchronize() is None
    with pytest.raises(ValueError, match="enable_timing"):
        torch.maca.Event().elapsed_time(end)
    with pytest.raises(ValueError, match="recorded"):
        torch.maca.Event(enable_timing=True).elapsed_time(end)
    with pytest.raises(NotImplementedError):
        torch.maca.Event(interprocess=True)


def test_torch_stream_and_event_do_not_crash() -> None:
    for make in (lambda: torch.Stream(device="maca"), lambda: torch.Event(device="maca"),
                 lambda: torch.accelerator.current_stream(), lambda: torch.accelerator.synchronize(),
                 lambda: torch.accelerator.current_device_index(), lambda: torch.accelerator.device_count()):  # fmt: skip
        try:
            make()
        except Exception as error:
            assert isinstance(
                error, (RuntimeError, NotImplementedError, AttributeError, TypeError, ValueError)
            ), error


def test_synchronize() -> None:
    stream = torch.maca.Stream()
    with torch.maca.stream(stream):
        x = torch.ones(500, 500, device="maca")
        for _ in range(5):
            x = x @ x / 500
    torch.maca.synchronize()
    assert stream.query()
    assert x[0, 0].item() == pytest.approx(1)


def test_waits_raise_the_errors_of_queued_work() -> None:
    table = maca(torch.arange(5.0))
    bad = maca(torch.tensor([0, 99]))
    stream = torch.maca.Stream()
    result = table
    waits = (
        stream.synchronize,
        torch.maca.synchronize,
        lambda: result.cpu(),  # the tensor of the round it is called in
        lambda: stream.record_event().synchronize(),
    )
    for wait in waits:
        with torch.maca.stream(stream):
            result = table[bad]
        with pytest.raises(IndexError, match="out of"):
            wait()
        torch.maca.synchronize()  # raised once
    # a later failure on the default stream is not mistaken for it
    with torch.maca.stream(stream):
        result = table[bad]
    stream.query()
    time.sleep(0.05)
    with pytest.raises(RuntimeError, match="nan|inf|element < 0"):
        torch.multinomial(-table, 1)
    with pytest.raises(IndexError):
        torch.maca.synchronize()
    assert (table + 1).sum().item() == 15


def test_a_stream_may_go_while_its_work_runs() -> None:
    with nothing_leaked():
        matrix = torch.full((300, 300), 1 / 300, device="maca")
        x = torch.ones(300, 300, device="maca")
        stream = torch.maca.Stream()
        with torch.maca.stream(stream):
            for _ in range(20):
                x = matrix @ x
        del stream
        gc.collect()
        assert (x - 1).abs().max().item() < 1e-3
        del x, matrix


def test_backward_of_work_from_a_stream() -> None:
    w = torch.rand(50, 50, device="maca", requires_grad=True)
    stream = torch.maca.Stream()
    with torch.maca.stream(stream):
        loss = (w @ w).sum()
        loss.backward()
    host = w.detach().cpu().requires_grad_()
    (host @ host).sum().backward()
    torch.testing.assert_close(w.grad.cpu(), host.grad)


def test_interpreter_exit_with_live_streams_and_pending_work() -> None:
    done = run_python(
        """
        import torch, macatensor
        from macatensor import maca
        stream, event = torch.maca.Stream(), torch.maca.Event()
        x = maca(torch.rand(500, 500))
        with torch.maca.stream(stream):
            for _ in range(20):
                x = x @ x / 200
            event.record()
        kept = [x, stream, event, macatensor]
        x.self = kept  # a cycle
        """
    )
    assert done.stderr == ""


@pytest.mark.supports("torch.maca: StreamContext Stream.priority")
@pytest.mark.refuses(
    "torch.maca: ExternalStream get_stream_from_external",
    reason="what a stream of another library is, the device library cannot know",
)
def test_streams_as_cuda_has_them() -> None:
    least, greatest = torch.maca.Stream.priority_range()
    assert greatest <= -1 and least == 0
    assert torch.maca.Stream(priority=100).priority == least
    assert torch.maca.Stream(priority=-100).priority == greatest
    stream = torch.maca.Stream("maca:0", priority=-1)
    assert repr(stream) == f"<torch.maca.Stream device=maca:0 maca_stream={stream.stream_id:#x}>"
    assert stream.device == torch.device("maca", 0) and stream.device_index == 0
    same = torch.maca.Stream(stream_id=stream.stream_id)
    assert stream == same and hash(stream) == hash(same) and stream != "stream" and stream.query()
    with torch.maca.StreamContext(stream):
        assert torch.maca.current_stream() == stream
    torch.maca.set_stream(None)
    assert torch.maca.current_stream().stream_id == 0
    for refused in (
        lambda: torch.maca.ExternalStream(1234),
        lambda: torch.maca.get_stream_from_external(1234),
    ):
        with pytest.raises(NotImplementedError, match="streams of other libraries"):
            refused()


@pytest.mark.supports("torch.Tensor.record_stream")
def test_foreign_streams_and_events_are_refused() -> None:
    stream, event = torch.maca.Stream(), torch.maca.Event()
    host = torch.Stream(device="cpu")
    for use in (event.record, event.wait, stream.wait_stream, torch.maca.set_stream, torch.maca.stream):
        with pytest.raises(RuntimeError, match="device type cpu"):
            use(host)
        with pytest.raises(TypeError):
            use(5)
    for wrong in (None, 5, torch.Event(device="cpu")):
        with pytest.raises(TypeError):
            stream.wait_event(wrong)
    with pytest.raises(TypeError):
        stream.wait_stream(None)
    with pytest.raises(TypeError):
        event.elapsed_time(5)
    x = torch.ones(2, device="maca")
    x.record_stream(stream)
    with pytest.raises(TypeError, match="record_stream"):
        x.record_stream(host)


@pytest.mark.supports("torch.maca._sleep")
def test_a_delay_is_measured_by_events_in_milliseconds() -> None:
    stream = torch.maca.Stream()
    start, end = torch.maca.Event(enable_timing=True, blocking=True), torch.maca.Event(enable_timing=True)
    assert repr(start) == "<torch.maca.Event uninitialized>"
    with torch.maca.stream(stream):
        start.record()
        torch.maca._sleep(300_000_000)
        end.record()
    assert not end.query() and not stream.query()
    with pytest.raises(RuntimeError, match="not ready"):
        start.elapsed_time(end)
    other = torch.maca.Stream()
    end.wait(other)
    done = other.record_event()
    assert not done.query()  # the other stream waits, the host does not
    end.synchronize()
    assert 300 <= start.elapsed_time(end) < 5000
    assert end.elapsed_time(start) < 0 and "0x" in repr(end)
    with pytest.raises(ValueError):
        torch.maca._sleep(-1)
    for refused in (
        lambda: torch.maca.Event(external=True),
        start.ipc_handle,
        lambda: torch.maca.Event.from_ipc_handle(0, b""),
    ):
        with pytest.raises(NotImplementedError):
            refused()


def test_work_may_fail_during_a_wait() -> None:
    table, bad = maca(torch.arange(5.0)), maca(torch.tensor([99]))
    stream = torch.maca.Stream()
    for _ in range(20):
        with torch.maca.stream(stream):
            torch.maca._sleep(2_000_000)
            table[bad]
        with pytest.raises(IndexError):
            torch.maca.synchronize()  # waits while the worker puts its failure down


def test_freed_memory_waits_for_its_stream() -> None:
    """What record_stream() is for on CUDA: the runtime does it by itself."""
    stream = torch.maca.Stream()
    x = torch.full((1 << 16,), 3.0, device="maca")
    with torch.maca.stream(stream):
        torch.maca._sleep(50_000_000)
        y = x * 2
    del x
    other = torch.zeros(1 << 16, device="maca")
    assert y.min().item() == 6 and other.max().item() == 0


def test_streams_are_not_copied() -> None:
    """A copy would end the queue that the original still uses."""
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot copy or pickle a torch.maca.Stream"):
            copied(torch.maca.Stream())
