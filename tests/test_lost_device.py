"""A device that is lost: every later call raises that error and asks the library nothing, as torch.cuda does."""

from __future__ import annotations

import textwrap
from pathlib import Path

from test_abi import CONTROLS, through

LOST = (
    CONTROLS
    + """
spy.interposer_lose_device.argtypes = [ctypes.c_int64, ctypes.c_int32]
spy.interposer_calls_after_the_end.restype = ctypes.c_int64
SAID = "MACA error: injected failure 3. The device is lost until this process ends"

def lost(call):
    with pytest.raises(torch.AcceleratorError, match=SAID):
        call()
"""
)


def test_every_later_call_raises_the_error(interposer: Path) -> None:
    code = """
    x, layer = maca(torch.ones(4)), maca(torch.nn.Conv2d(3, 8, 3))
    event, stream = torch.maca.Event(enable_timing=True), torch.maca.Stream()
    pinned, graph = torch.ones(1 << 10).pin_memory(), torch.maca.MacaGraph()
    with torch.maca.graph(graph):
        y = x + 1
    event.record(), x + x
    name, capability, held = torch.maca.get_device_name(), torch.maca.get_device_capability(), torch.maca.memory_allocated()
    spy.interposer_lose_device(1, 0)
    lost(lambda: x + x)
    calls = [
        lambda: x + x, lambda: x.exp(), lambda: x.add_(1), lambda: x.cpu(), lambda: x.sum().item(), lambda: maca(torch.ones(3)),
        lambda: layer(torch.ones(1, 3, 8, 8, device="maca")), lambda: x.copy_(torch.zeros(4)), graph.replay,
        torch.maca.synchronize, torch.maca.empty_cache, torch.maca.mem_get_info, torch.maca.Stream, torch.maca.Event,
        stream.synchronize, stream.query, event.query, event.synchronize, lambda: event.record(stream),
        lambda: stream.wait_event(event), lambda: torch.ones(1 << 12).pin_memory(),
        lambda: torch.empty(1 << 28, device="maca"), lambda: pinned[:4].copy_(x, non_blocking=True),
        torch.accelerator.synchronize,
    ]
    for number, call in enumerate(calls):
        lost(call)
    assert torch.maca.is_available() and torch.maca.device_count() == 1 and torch.maca.is_initialized()
    assert torch.accelerator.is_available() and torch.maca.get_device_name() == name
    assert not torch.maca._is_in_bad_fork() and torch.maca.get_device_capability() == capability
    assert torch.maca.current_stream() == torch.maca.default_stream()
    assert torch.maca.memory_allocated() >= held and "FAIL" not in torch.maca.memory_summary()
    torch.maca.manual_seed(1), torch.set_num_threads(1)
    del x, layer, y, pinned, calls, call, event, stream, graph
    gc.collect()  # nothing is told of memory that cannot be given back
    torch.accelerator.empty_host_cache()
    lost(torch.maca.synchronize)
    assert spy.interposer_calls_after_the_end() == 0
    """
    assert through(interposer, LOST + textwrap.dedent(code)).stderr == ""


def test_queued_work_loses_the_device_at_a_wait(interposer: Path) -> None:
    code = """
    table, bad = maca(torch.arange(5.0)), maca(torch.tensor([1]))
    table[bad], torch.maca.synchronize()
    spy.interposer_lose_device(1, 1)
    with torch.maca.stream(torch.maca.Stream()):
        table[bad]
    lost(torch.maca.synchronize)
    lost(lambda: table + 1)
    lost(torch.maca.current_stream().synchronize)
    """
    assert through(interposer, LOST + textwrap.dedent(code), MACA_TASK_QUEUE="1").stderr == ""


def test_child_of_a_library_that_forks_not(interposer: Path) -> None:
    code = """
    x, held = maca(torch.ones(4)), torch.ones(3).pin_memory()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert torch.maca._is_in_bad_fork() and torch.maca.is_available()
            for call in (lambda: x + x, lambda: x.cpu(), torch.maca.synchronize, lambda: torch.ones(300).pin_memory()):
                with pytest.raises(RuntimeError, match="Cannot use maca in a forked subprocess.*'spawn' start method"):
                    call()
            del x, held
            torch.manual_seed(0)
            counted = spy.interposer_count(b"plan_launch"), spy.interposer_count(b"memory_free")
            assert torch.ones(3).sum() == 3
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (x + x).tolist() == [2.0] * 4 and not torch.maca._is_in_bad_fork()
    loader = torch.utils.data.DataLoader(list(range(8)), batch_size=4, num_workers=2, pin_memory=True)
    assert sum(maca(batch).sum().item() for batch in loader) == 28
    """
    through(interposer, LOST + textwrap.dedent(code), MACA_INTERPOSER_MODE="no_fork")
