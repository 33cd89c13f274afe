"""Wrong answers of a device library: each is an exception that says which function, which status and which reason."""

from __future__ import annotations

import textwrap
from pathlib import Path

from running import run_python
from test_abi import CONTROLS, TARGET, refusals_of

ANSWERS = (
    CONTROLS
    + """
spy.interposer_answer.argtypes = [ctypes.c_char_p, ctypes.c_int32, ctypes.c_char_p, ctypes.c_int64]
spy.interposer_number.argtypes = [ctypes.c_char_p]
NAMES = ("MACA_OK", "MACA_DECLINED", "MACA_INVALID", "MACA_OUT_OF_MEMORY", "MACA_NOT_READY", "MACA_DEVICE_ERROR",
         "MACA_UNSUPPORTED")
KINDS = {3: torch.OutOfMemoryError, 6: NotImplementedError}

def answer(slot, status, calls=1, reason=""):
    spy.interposer_answer(slot.encode(), status, reason.encode(), calls)

def words(slot, status):
    return f"{slot} returned {NAMES[status]} ({status})" if 0 <= status < 7 else f"{slot} returned {status}, which is no"

def raised(call):
    try:
        result = call()
    except Exception as error:
        return error
    raise AssertionError(f"nothing was raised: {result}")
"""
)


def through(library: Path, code: str, mode: str | None = None) -> None:
    run_python(
        ANSWERS + textwrap.dedent(code), timeout=600, MACA_LIBRARY=library, MACA_INTERPOSER_TARGET=TARGET,
        MACA_INTERPOSER_MODE=mode, MACA_FALLBACK="error",
    )  # fmt: skip


# {slots} of the first kind answer their caller; those of the second are told of at the next wait.
EVERY_SLOT = """
from macatensor.profiling import activities

x, w = maca(torch.ones(4)), maca(torch.ones(4))
layer, image = maca(torch.nn.Conv2d(3, 8, 3)), maca(torch.rand(2, 3, 16, 16))
stream, event, later = torch.maca.Stream(), torch.maca.Event(enable_timing=True), torch.maca.Event(enable_timing=True)
event.record(stream), later.record(stream), torch.maca.synchronize()
sizes = iter(range(5, 10_000))

def packs():
    with torch.inference_mode():
        other = maca(torch.nn.Conv2d(3, 8, 3))
        for _ in range(3):
            other(image)

def allocates():
    torch.maca.empty_cache()
    return torch.empty(1 << 24, device="maca")

def frees():
    del_me = torch.empty(1 << 24, device="maca")
    del del_me
    torch.maca.empty_cache()

def profiles():
    activities.start(False)
    activities.stop()

CALLS = {
    "device_info": (torch.maca.get_device_properties, ""),
    "device_synchronize": (torch.maca.synchronize, "synchronize()"),
    "device_set_threads": (lambda: torch.set_num_threads(1), "set_num_threads"),
    "memory_info": (torch.maca.mem_get_info, "mem_get_info()"),
    "memory_commit": (allocates, ""),
    "copy": (lambda: x.cpu(), "copy to the host"),
    "fill": (lambda: x.zero_(), "aten.zero_"),
    "stream_create": (torch.maca.Stream, "torch.maca.Stream"),
    "stream_synchronize": (stream.synchronize, "Stream.synchronize"),
    "stream_query": (stream.query, "Stream.query"),
    "stream_wait_event": (lambda: stream.wait_event(event), "Event.wait"),
    "event_create": (torch.maca.Event, "torch.maca.Event"),
    "event_record": (lambda: later.record(stream), "Event.record"),
    "event_query": (event.query, "Event.query"),
    "event_synchronize": (event.synchronize, "Event.synchronize"),
    "event_elapsed": (lambda: event.elapsed_time(later), "Event.elapsed_time"),
    "plan_create": (lambda: torch.ones(next(sizes), device="maca").exp(), "aten."),
    "plan_info": (lambda: torch.ones(next(sizes), device="maca").exp(), "aten."),
    "plan_pack": (packs, "aten.convolution"),
    "plan_launch": (lambda: x + w, "aten.add.Tensor"),
    "error_take": (torch.maca.synchronize, ""),
    "profile_set": (profiles, "profiler"),
    "host_allocate": (lambda: pinned.append(torch.ones(1).pin_memory()), "pin_memory()"),
}
pinned = []  # what lives is not used again
AT_THE_NEXT_WAIT = {
    "host_free": lambda: (torch.ones(1 << 10).pin_memory() is None, torch.accelerator.empty_host_cache()),
    "memory_decommit": frees,
    "stream_destroy": lambda: torch.maca.Stream().__del__(),
    "event_destroy": lambda: torch.maca.Event().__init__(),
    "plan_destroy": lambda: (torch.ones(next(sizes), device="maca").exp(), macatensor.runtime.plan_caches.drop_plans(), gc.collect()),
}
ALLOWED = {("stream_query", 4), ("event_query", 4), ("device_set_threads", 6), ("plan_pack", 1), ("plan_pack", 3),
           ("plan_pack", 6), ("memory_decommit", 3), ("host_allocate", 6), ("profile_set", 6)}

x + w, x.cpu(), x.zero_(), packs(), frees(), torch.maca.synchronize()
before, wanted = allocated(), x.cpu()
for slot, (call, operator) in CALLS.items():
    for status in (1, 2, 3, 4, 5, 6, 42, -1, 100):
        answer(slot, status, -1)
        if (slot, status) in ALLOWED:
            call()
        else:
            error = raised(call)
            said = str(error)
            if slot.startswith("memory_") and status == 3 and slot != "memory_info":
                assert "Tried to allocate 64.00 MiB" in said, said
            elif slot == "event_elapsed" and status == 4:
                assert "not ready" in said, said
            elif slot == "plan_create" and status in (1, 2):  # the library's word on the request
                assert words(slot, status) + " without a reason" in said, said
            else:
                assert words(slot, status) in said and operator in said, (slot, status, said)
                assert "expected" in said or status == 3, said
                assert "unset MACA_LIBRARY" in said or status == 3, said
            kind = KINDS.get(status, RuntimeError)
            assert isinstance(error, kind), (slot, status, type(error))
        error = None  # whose traceback holds operands
        spy.interposer_reset()
        assert torch.equal((x + w).cpu(), wanted + 1), (slot, status)
        torch.maca.synchronize()  # nothing is left to say
        assert allocated() == before, (slot, status)
for slot, call in AT_THE_NEXT_WAIT.items():
    for status in (2, 5, 42):
        answer(slot, status, -1)
        call()
        spy.interposer_reset()
        error = raised(torch.maca.synchronize)
        assert words(slot, status) in str(error) and isinstance(error, RuntimeError), (slot, error)
        torch.maca.synchronize()
"""


def test_every_slot_and_every_status(interposer: Path) -> None:
    through(interposer, EVERY_SLOT)


def test_no_handle_that_is_null_goes_on(interposer: Path) -> None:
    code = """
    x = maca(torch.ones(4))
    calls = {
        "stream_create": torch.maca.Stream,
        "event_create": torch.maca.Event,
        "plan_create": lambda: x.exp(),
        "memory_allocate": lambda: torch.empty(1 << 24, device="maca"),
    }
    for slot, call in calls.items():
        torch.maca.empty_cache()
        answer(slot, 0, -1)
        said = str(raised(call))
        assert f"the device library's {slot} returned MACA_OK and the" in said and "NULL" in said, said
        spy.interposer_reset()
    assert x.exp().sum().item() > 10
    """
    through(interposer, code, "segments")


def test_segments_whose_memory_is_wrong(interposer: Path) -> None:
    code = """
    for status in (1, 2, 4, 5, 6, 42):
        answer("memory_allocate", status, -1)
        error = raised(lambda: torch.empty(1 << 24, device="maca"))
        assert words("memory_allocate", status) in str(error) and isinstance(error, KINDS.get(status, RuntimeError))
    spy.interposer_reset()
    spy.interposer_number(b"misaligned")
    assert "memory_allocate gave the address" in str(raised(lambda: torch.empty(1 << 24, device="maca")))
    spy.interposer_reset()
    x = torch.ones(1 << 24, device="maca")
    del x
    answer("memory_free", 2)
    torch.maca.empty_cache()
    assert words("memory_free", 2) in str(raised(torch.maca.synchronize))
    assert torch.ones(1 << 24, device="maca").sum().item() == 1 << 24
    """
    through(interposer, code, "segments")


def test_ranges_that_are_wrong(interposer: Path) -> None:
    code = """
    large = lambda: torch.empty(1 << 24, device="maca")
    for status in (1, 2, 4, 5, 42, 0):
        answer("memory_reserve", status, -1)
        said = str(raised(large))
        assert (words("memory_reserve", status) if status else "memory_reserve gave granularity = 0") in said, said
    spy.interposer_reset()
    for number, said in ((b"granularity", "gave granularity = 0; expected a multiple of the alignment"),
                         (b"misaligned", "gave the address")):
        spy.interposer_number(number)
        assert f"memory_reserve {said}" in str(raised(large))
    spy.interposer_reset()
    spy.interposer_number(b"memory_info")
    for call in (large, torch.maca.mem_get_info):
        assert "memory_info gave" in str(raised(call))
    spy.interposer_reset()
    answer("memory_reserve", 6, -1)  # it has none: segments
    assert torch.ones(1 << 24, device="maca").sum().item() == 1 << 24
    assert spy.interposer_count(b"memory_allocate") > 0 and spy.interposer_count(b"memory_commit") == 0
    """
    through(interposer, code)


def test_a_wait_may_fail_while_memory_returns(interposer: Path) -> None:
    """What still runs may use what is free, so nothing is given back."""
    code = """
    kept = torch.empty(1 << 24, device="maca")
    reserved = torch.maca.memory_reserved()
    del kept
    answer("device_synchronize", 5, -1)
    for call in (torch.maca.empty_cache, lambda: (spy.interposer_fail_allocation(-1), torch.empty(1 << 28, device="maca"))):
        assert words("device_synchronize", 5) in str(raised(call))
        assert torch.maca.memory_reserved() == reserved
    """
    through(interposer, code)


def test_numbers_of_a_plan_that_cannot_be(interposer: Path) -> None:
    code = """
    x = maca(torch.ones(4))
    before = allocated()
    for number, said in (("workspace_bytes", "gave workspace_bytes = 9223335399692107776; expected at most"),
                         ("packed_operand", "gave packed_operand = 99; expected -1, or one of the plan's 2 operands"),
                         ("cost", "gave cost = 7; expected a maca_cost, 0 or 1")):
        spy.interposer_number(number.encode())
        told = str(raised(lambda: x.exp()))
        assert told.startswith("aten.exp.default") and f"plan_info {said}" in told, told
        spy.interposer_reset()
        assert allocated() == before
    spy.interposer_number(b"implementation")
    assert x.exp().sum().item() > 10
    """
    through(interposer, code)


def test_reasons(interposer: Path) -> None:
    code = """
    x = maca(torch.ones(4))
    for status, kind in ((2, RuntimeError), (3, torch.OutOfMemoryError), (5, RuntimeError), (6, NotImplementedError),
                         (42, RuntimeError), (1, NotImplementedError)):
        answer("plan_create", status, -1, "there are no more tiles")
        error = raised(lambda: x.exp())
        assert isinstance(error, kind) and "there are no more tiles" in str(error), error
        assert "Tried to allocate" not in str(error)
    answer("plan_create", 3, -1, "no end" * 100)  # not zero-terminated
    said = str(raised(lambda: maca(torch.ones(5)).exp()))
    assert "no endno end" in said and len(said) < 2000
    """
    through(interposer, code)


def test_synchronize_ends_whatever_error_take_says(interposer: Path) -> None:
    code = """
    x = maca(torch.ones(4))
    spy.interposer_number(b"endless_errors")
    for wait in (torch.maca.synchronize, torch.maca.default_stream().synchronize):
        said = str(raised(wait))
        assert "error_take gave 10000 errors and has more; expected MACA_OK" in said and "once more" in said, said
    spy.interposer_fail_launch(1, 2)
    assert "error_take gave" in str(raised(lambda: x + 1)) or True
    spy.interposer_reset()
    torch.maca.synchronize() if not macatensor.runtime.ffi._pending else raised(torch.maca.synchronize)
    torch.maca.synchronize()
    assert (x + 1).tolist() == [2.0] * 4
    """
    through(interposer, code)


def test_a_queue_that_is_never_empty(interposer: Path) -> None:
    code = """
    x = maca(torch.ones(4))
    torch.maca._sleep(1_000_000)  # long, so it makes the queue
    answer("stream_query", 4, -1)
    assert "unfinished work each time" in str(raised(lambda: macatensor.runtime.ffi.set_task_queue("0")))
    spy.interposer_reset()
    macatensor.runtime.ffi.set_task_queue("0")
    """
    through(interposer, code)


REFUSED = {
    "size:0": ["interface table of 0 bytes", "mandatory function device_open", "expected", "bytes or more"],
    "size:8": ["interface table of 8 bytes", "mandatory function device_open", "of maca.h 2."],
    "size:40": ["interface table of 40 bytes", "mandatory function device_info"],
    "number:threads": ["device_info gave threads = -5; expected 1 or more"],
    "number:no_alignment": ["device_info gave alignment = 0; expected a power of two"],
    "number:alignment": ["device_info gave alignment = 24; expected a power of two, 16 or more"],
    "number:kernel_count": ["device_info gave kernel_count = -1"],
    "number:kernel_name": ["kernel_name gave a name, one more, at index", "expected NULL past the last"],
    "answer:device_count:0": [],  # leaves the number as it was: one
    "answer:device_count:5": ["device_count returned MACA_DEVICE_ERROR (5)"],
    "answer:device_open:0": ["device_open returned MACA_OK and the device NULL"],
    "answer:device_open:42": [
        "device_open returned 42, which is no maca_status",
        "as the interposer was told",
    ],
    "answer:device_open:3": ["device_open returned MACA_OUT_OF_MEMORY (3): as the interposer was told"],
    "answer:device_info:0": ["device_info gave threads = 0"],
    "answer:device_info:6": ["device_info returned MACA_UNSUPPORTED (6)"],
}


def test_what_a_library_says_while_it_is_loaded(interposer: Path) -> None:
    for mode, (_, said) in refusals_of(dict.fromkeys(REFUSED, interposer)).items():
        if not REFUSED[mode]:
            assert said == "imported", (mode, said)
            continue
        for word in [*REFUSED[mode], str(interposer), "Point MACA_LIBRARY at a library"]:
            assert word in said, (mode, said)
