"""Training goes on after a failure of any call that a step makes of the device library."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from running import run_python
from test_abi import CONTROLS, TARGET

EVERY = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 17  # so many calls apart
pytestmark = pytest.mark.timeout(3600)

STEPS = (
    CONTROLS
    + """
from macatensor.demo import models
from macatensor.runtime.plan_caches import drop_plans
from small_trainings import Training

spy.interposer_answer_after.argtypes = [ctypes.c_int64]
spy.interposer_answer.argtypes = [ctypes.c_char_p, ctypes.c_int32, ctypes.c_char_p, ctypes.c_int64]
OUT_OF_MEMORY, DEVICE_ERROR = 3, 5

def fail(slot, after, status, calls):
    spy.interposer_answer_after(after)
    spy.interposer_answer(slot.encode(), status, b"planted", calls)

class Attempts(Training):
    def attempt(self):
        try:
            return self.step()
        except Exception as error:
            self.forget()
            return error.with_traceback(None)
"""
)

FAILING = """
training = Attempts(NAME)
# which slot answers what, for how many calls from the nth on, and what makes a step call it
for slot, status, calls, prepare in (
    ("plan_launch", DEVICE_ERROR, 1, None),
    ("plan_launch", OUT_OF_MEMORY, 1, None),
    ("copy", DEVICE_ERROR, 1, None),
    ("memory_commit", OUT_OF_MEMORY, -1, torch.maca.empty_cache),
    ("plan_create", DEVICE_ERROR, 1, drop_plans),
    ("plan_info", DEVICE_ERROR, 1, drop_plans),
):
    def begin():
        training.restore()
        gc.collect()
        if prepare:
            prepare()
        torch.maca.synchronize()
        spy.interposer_reset()
        return allocated()

    begin()
    wanted = training.step()
    count = spy.interposer_count(slot.encode())
    failed = 0
    for nth in range(0, count, EVERY):
        level = begin()
        fail(slot, nth, status, calls)
        given, phase = training.attempt(), training.phase
        spy.interposer_reset()
        if isinstance(given, Exception):
            failed += 1
            kind = torch.OutOfMemoryError if slot == "memory_commit" else RuntimeError
            said = "Tried to allocate" if slot == "memory_commit" else slot
            assert isinstance(given, kind) and said in str(given), (slot, status, nth, phase, repr(given))
            del given
            assert allocated() <= level, (slot, status, nth, phase, allocated() - level)
            if phase in ("optimizer", "end"):
                training.restore()
            given = training.step()
        assert given == wanted, (slot, status, nth, phase, given, wanted)
    assert failed, (slot, count)
    print(slot, status, failed, 'of', count)
torch.maca.synchronize()
"""


def through(library: Path, code: str) -> None:
    run_python(code, timeout=3000, MACA_LIBRARY=library, MACA_INTERPOSER_TARGET=TARGET, MACA_FALLBACK="error")


@pytest.mark.parametrize("model", ["cnn", "gpt", "lstm"])
def test_the_next_step_is_right(interposer: Path, model: str) -> None:
    code = f"EVERY, NAME = {EVERY}, {model!r}\n" + STEPS + FAILING
    through(interposer, code)


# what is recorded or compiled first and run afterwards; each slot's calls are counted over both
REPEATED = """
model, batch = maca(models.digits_resnet().eval()), maca(torch.rand(2, 3, 8, 8))

def captured():
    graph = torch.maca.MacaGraph()
    with torch.no_grad(), torch.maca.graph(graph):
        y = model(batch)
    graph.replay()
    return y.cpu()

def compiled():
    torch._dynamo.reset()
    f = torch.compile(model, backend="maca")
    with torch.no_grad():
        return f(batch).cpu()

for run in (captured, compiled):
    for slot, status, prepare in (("plan_launch", DEVICE_ERROR, None), ("plan_create", DEVICE_ERROR, drop_plans),
                                  ("memory_commit", OUT_OF_MEMORY, torch.maca.empty_cache)):
        def begin():
            gc.collect()
            if prepare:
                prepare()
            spy.interposer_reset()
            return allocated()

        run(), begin()
        wanted = run()
        for nth in range(0, spy.interposer_count(slot.encode()), EVERY):
            level = begin()
            fail(slot, nth, status, -1 if status == OUT_OF_MEMORY else 1)
            try:
                given = run()
            except Exception as error:
                said = "Tried to allocate" if slot == "memory_commit" else slot
                assert said in str(error), (run, slot, nth, repr(error))
                given = None
            spy.interposer_reset()
            if given is None:
                torch._dynamo.reset()
                assert allocated() <= level, (run, slot, nth, allocated() - level)
                given = run()
            assert torch.equal(given, wanted), (run, slot, nth)
            print(run.__name__, slot, nth)
"""


def test_what_was_recorded_or_compiled_is_right(interposer: Path) -> None:
    code = f"EVERY = {EVERY}\n" + STEPS + REPEATED
    through(interposer, code)
