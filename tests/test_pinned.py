"""Pinned memory: ``pin_memory()``, ``is_pinned()`` and copies that run on, as torch.cuda has them."""

from __future__ import annotations

import textwrap
import threading
from pathlib import Path

import pytest
import torch
from running import Gate, run_python
from test_abi import CONTROLS, through

from macatensor import maca
from macatensor.runtime import ffi

N = 1 << 16


def pinned(*values: float) -> torch.Tensor:
    return torch.tensor(values * N, dtype=torch.float32).pin_memory()


@pytest.mark.supports("torch.Tensor: pin_memory is_pinned")
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.float64, torch.complex64])
def test_any_strides_and_dtypes(dtype: torch.dtype) -> None:
    plain = torch.arange(24).reshape(2, 3, 4).to(dtype)
    for x in (plain, plain.mT, plain[:, ::2], plain[0, 0, 0], plain[:0], plain.expand(2, 2, 3, 4)):
        copied = x.pin_memory()
        assert torch.equal(copied, x) and copied.dtype == dtype
        assert copied.stride() == x.stride() or 0 in x.stride()
        assert copied.is_pinned() == (x.numel() > 0) and not x.is_pinned()
        assert copied.pin_memory() is copied or not x.numel()
        assert torch.equal(copied.to("maca", non_blocking=True).cpu(), x)


def test_views_and_storages_are_pinned_copies_not() -> None:
    x = torch.arange(12.0).reshape(3, 4).pin_memory()
    assert x[1:, 2].is_pinned() and x.mT.is_pinned() and x.view(torch.int32).is_pinned()
    assert x.untyped_storage().is_pinned() and torch.from_numpy(x.numpy()).is_pinned()
    assert not (x + 1).is_pinned() and not x.clone().is_pinned() and not x[:0].clone().is_pinned()
    assert torch.UntypedStorage(5).pin_memory().is_pinned() and torch.nn.Parameter(x).is_pinned()


def test_memory_lives_as_long_as_a_view() -> None:
    array = torch.arange(1000.0).pin_memory()[10:20].numpy()[2:]
    others = [torch.full((1000,), -1.0).pin_memory() for _ in range(20)]
    assert array.tolist() == list(range(12, 20)) and all(o.eq(-1).all() for o in others)


@pytest.mark.supports("torch.accelerator.empty_host_cache")
def test_memory_is_used_again_and_given_back() -> None:
    torch.accelerator.empty_host_cache()
    x = pinned(1, 2)
    address = x.data_ptr()
    del x
    again = pinned(3, 4)
    assert again.data_ptr() == address and again.sum().item() == 7 * N
    del again
    torch.accelerator.empty_host_cache()
    assert not ffi.lib.maca_host_is_pinned(ffi.ffi.cast("void*", address))


def test_an_upload_runs_on_and_keeps_its_memory() -> None:
    source, x = pinned(1, 2), torch.zeros(2 * N, device="maca")
    address = source.data_ptr()
    stream = torch.maca.Stream()
    with torch.maca.stream(stream), Gate() as gate:
        x.copy_(source, non_blocking=True)
        assert not stream.query()
        del source
        other = pinned(5, 6)  # not the memory that is still to be read
        assert other.data_ptr() != address
        gate.open()
    assert x.sum().item() == 3 * N
    assert pinned(7, 8).data_ptr() == address


def test_download_runs_on_until_it_is_awaited() -> None:
    target, x = pinned(0, 0), maca(torch.ones(2 * N))
    stream = torch.maca.Stream()
    stream.wait_stream(torch.maca.current_stream())
    with torch.maca.stream(stream), Gate() as gate:
        y = x + 1
        assert target.copy_(y, non_blocking=True) is target
        assert not stream.query() and target.sum().item() == 0
        gate.open()
        stream.synchronize()
    assert target.eq(2).all()


def test_other_copies_are_done_on_return() -> None:
    x = maca(torch.ones(2 * N))
    with torch.maca.stream(torch.maca.Stream()):
        for target, non_blocking in ((torch.zeros(2 * N), True), (pinned(0, 0), False)):
            with Gate() as gate:
                y = x * 2
                gate.open_soon()
                assert target.copy_(y, non_blocking=non_blocking).eq(2).all()
        with Gate() as gate:
            gate.open_soon()
            assert (x * 3).to("cpu", non_blocking=True).eq(3).all()


def test_streams_that_share_pinned_memory_keep_their_order() -> None:
    shared, first, second = pinned(0, 0), maca(torch.ones(2 * N)), torch.zeros(2 * N, device="maca")
    one, two = torch.maca.Stream(), torch.maca.Stream()
    with torch.maca.stream(one), Gate() as gate:
        shared.copy_(first, non_blocking=True)
        with torch.maca.stream(two):
            second.copy_(shared, non_blocking=True)
            assert not two.query()
        gate.open()
    assert second.cpu().eq(1).all()


@pytest.mark.parametrize("mode", ["0", "1", "auto"])
def test_copies_of_the_default_stream(mode: str) -> None:
    before = ffi.set_task_queue(mode)
    try:
        host, x = torch.ones(1 << 20).pin_memory(), torch.zeros(1 << 20, device="maca")
        for _ in range(3):
            x.copy_(host, non_blocking=True)
            x += 1
            host.copy_(x, non_blocking=True)
        torch.maca.synchronize()
        assert host.eq(4).all() and x.cpu().eq(4).all()
    finally:
        ffi.set_task_queue(before)


def test_threads_pin_and_drop() -> None:
    def work() -> None:
        for n in range(50):
            x = torch.full((n * 100 + 1,), float(n)).pin_memory()
            assert x.to("maca", non_blocking=True).sum().item() == n * (n * 100 + 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


EXIT = """
import atexit, os, threading, torch, macatensor
x = torch.ones(1 << 20).pin_memory()
y = x.to("maca", non_blocking=True)
torch.maca._sleep(50_000_000)
host = torch.zeros(1 << 20).pin_memory()
host.copy_(y, non_blocking=True)
kept = [x.numpy()[1:], host[5:]]
kept.append(kept)  # a cycle, which ends with the interpreter
threading.kept = x.view(2, -1)  # outlives this module
atexit.register(lambda: print("pinned", host.is_pinned(), x.sum().item()))
child = os.fork()
if child == 0:
    # little, since PyTorch's own threads are gone
    assert host.is_pinned() and host[:9].eq(1).all() and x[-9:].sum().item() == 9
    del x, kept, host, threading.kept
    z = torch.ones(1 << 10).pin_memory()
    assert z.to("maca", non_blocking=True).sum().item() == 1 << 10
    torch.accelerator.empty_host_cache()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("mode", ["0", "1"])
def test_exit_and_fork_with_pinned_tensors(mode: str) -> None:
    done = run_python(
        EXIT,
        MACA_TASK_QUEUE=mode,
    )
    assert done.stdout == "pinned True 1048576.0\n" and done.stderr == ""


def test_library_is_asked_for_memory_and_copies(interposer: Path) -> None:
    code = """
    spy.interposer_queued_copies.restype = spy.interposer_timed_events.restype = ctypes.c_int64
    x = torch.zeros(1 << 20).pin_memory()
    assert spy.interposer_count(b"host_allocate") == 1 and spy.interposer_count(b"host_free") == 0
    stream = torch.maca.Stream()
    with torch.maca.stream(stream):
        y = x.to("maca", non_blocking=True)
        assert spy.interposer_queued_copies() == 1
        x.to("maca"), torch.ones(1 << 20).to("maca", non_blocking=True), x.copy_(y)
        assert spy.interposer_queued_copies() == 1
    assert spy.interposer_timed_events() == 0
    torch.maca.Event(enable_timing=True)
    assert spy.interposer_timed_events() == 1
    stream.synchronize()
    del x
    torch.accelerator.empty_host_cache()
    assert spy.interposer_count(b"host_free") == 1 and spy.interposer_foreign_addresses() == 0
    # where memory is short what is free is given back first
    torch.ones(1 << 10).pin_memory()
    spy.interposer_answer.argtypes = [ctypes.c_char_p, ctypes.c_int32, ctypes.c_char_p, ctypes.c_int64]
    spy.interposer_answer(b"host_allocate", 3, b"", 1)
    assert torch.ones(1 << 20).pin_memory().is_pinned() and spy.interposer_count(b"host_free") == 2
    spy.interposer_answer(b"host_allocate", 3, b"", -1)
    with pytest.raises(torch.OutOfMemoryError, match="pin_memory.*host_allocate returned MACA_OUT_OF_MEMORY"):
        torch.ones(1 << 22).pin_memory()
    """
    through(interposer, CONTROLS + textwrap.dedent(code))
    through(
        interposer, CONTROLS + "assert not torch.zeros(0).pin_memory().is_pinned()", MACA_LAUNCH_BLOCKING="1"
    )


def test_a_library_without_pinned_memory_says_so_once(interposer: Path) -> None:
    code = """
    import warnings
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        x = torch.arange(1000.0).pin_memory()
        torch.arange(3).pin_memory()
    assert len(said) == 1 and "pins no host memory" in str(said[0].message) and said[0].filename == "<string>", said
    assert not x.is_pinned() and x.sum().item() == 499500
    stream = torch.maca.Stream()
    with torch.maca.stream(stream):
        gate = Gate()
        gate.open_soon()
        y = x.to("maca", non_blocking=True)
        x.zero_()
    assert y.sum().item() == 499500
    spy.interposer_queued_copies.restype = ctypes.c_int64
    assert spy.interposer_queued_copies() == 0
    """
    through(interposer, CONTROLS + textwrap.dedent(code), MACA_INTERPOSER_MODE="optional")
