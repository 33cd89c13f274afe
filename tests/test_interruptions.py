"""Exceptions at any line of ours, signals in every wait, hooks that raise, deep recursion: all is right afterwards."""

from __future__ import annotations

import os

import pytest
from running import run_python

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
pytestmark = pytest.mark.timeout(3600 if LONG else 600)

TRAINING = """
import collections, contextlib, gc, itertools, signal, sys, threading, torch, macatensor
from macatensor import maca
from macatensor.runtime.plan_caches import drop_plans
from small_trainings import Training, forget_backward

def level():
    gc.collect()
    torch.maca.synchronize()
    return torch.maca.memory_allocated()

def made(name):
    training = Training(name)
    gc.collect(), gc.freeze()  # what PyTorch holds need not be looked through each time
    return training

class Interruption(BaseException):
    pass
"""

AT_EACH_LINE = """
lines, at, place = 0, -1, ""  # lines of ours that ran, the one that raises, and where that was

def in_ours(frame, event, argument):
    global lines, place
    if event == "line":
        lines += 1
        if lines == at:
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            sys.settrace(None)
            raise Interruption
    return in_ours

def in_all(frame, event, argument):
    name = frame.f_code.co_filename
    return in_ours if "/macatensor/" in name and "/macatensor/demo/" not in name else None

def attempt(line):
    global lines, at, place
    lines, at, place = 0, line, ""
    sys.settrace(in_all)
    try:
        return training.step()
    except Interruption:
        return None
    finally:
        sys.settrace(None)
        training.forget()

training = made(NAME)

def begin():
    training.restore()
    if COLD:
        drop_plans()
    return level()

begin()
wanted = training.step()
begin()
assert attempt(-1) == wanted
count = lines
interrupted = 0
for line in range(1, count, max(1, count // TIMES)):
    before = begin()
    given = attempt(line)
    if not place:  # caches that fill once: a later step has fewer lines
        break
    assert given is None, ("swallowed", place, given)
    interrupted += 1
    assert level() <= before, (place, level() - before)
    training.restore()
    assert training.step() == wanted, place
assert interrupted >= 5, (interrupted, count)
"""


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("model", ["cnn", "gpt", "lstm"])
def test_an_exception_at_any_line(model: str, cold: bool) -> None:
    """As Ctrl-C may raise: a step's lines of macatensor, with what earlier steps left in caches and without."""
    times = 1_000_000 if LONG and not cold else 2000 if LONG else 8
    code = f"NAME, COLD, TIMES = {model!r}, {cold}, {times}\n" + TRAINING + AT_EACH_LINE
    run_python(code, timeout=3600, MACA_FALLBACK="error")


@pytest.mark.parametrize("queue", ["0", "1"])
def test_a_signal_in_every_wait(queue: str) -> None:
    run_python(
        TRAINING
        + """
def raise_it(*_):
    raise Interruption
signal.signal(signal.SIGALRM, raise_it)
x = maca(torch.rand(64, 64))
wanted = (x @ x).cpu()
event, other = torch.maca.Event(), torch.maca.Stream()
waits = {
    "device": torch.maca.synchronize, "event": event.synchronize, "stream": other.synchronize,
    "a number": lambda: x.sum().item(), "a copy": x.cpu, "a list": x.tolist, "text": lambda: repr(x),
    "how many": x.nonzero, "a bool": lambda: bool((x == x).all()),
}
for name, wait in waits.items():
    with torch.maca.stream(other):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            torch.maca._sleep(60_000_000)
            event.record()
            wait()
            signal.pause()  # where the wait had ended before the alarm
        except Interruption:
            pass
        else:
            raise AssertionError(name)
    assert torch.equal((x @ x).cpu(), wanted), name
assert torch.maca.current_stream() != other
""",
        MACA_TASK_QUEUE=queue,
    )


def test_ctrl_c_ends_a_program() -> None:
    """By the first one, unless Python says that it was lost in a callback of a weak reference, as imports have: then by
    another."""
    code = """
import os, signal, sys, threading, time, torch, macatensor
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job has ignored
x = torch.rand(256, 256).maca()
def press(wait=0.3):
    while True:
        time.sleep(wait)
        print("pressed", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGINT)
        wait = 15
threading.Thread(target=press, daemon=True).start()
while True:
    x = torch.tanh(x @ x)
"""
    for queue in ("0", "1"):
        done = run_python(
            code, expect=-2, timeout=60, MACA_TASK_QUEUE=queue
        )  # Python ends by the signal itself
        assert "KeyboardInterrupt" in done.stderr and "Fatal" not in done.stderr
        assert done.stderr.count("pressed") == 1 or "Exception ignored in" in done.stderr


def test_hooks_and_modes_that_raise() -> None:
    """Not ``saved_tensors_hooks`` that raise when they unpack: PyTorch then keeps what was packed, on the CPU too."""
    run_python(
        TRAINING
        + """
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

def raise_it(*_):
    raise Interruption

class Function(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.left -= 1
        return function(*args, **(kwargs or {})) if self.left else raise_it()

class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.left -= 1
        return function(*args, **(kwargs or {})) if self.left else raise_it()

@contextlib.contextmanager
def hook(register):
    handle = register(raise_it)
    try:
        yield
    finally:
        handle.remove()

training = made("cnn")
convolution = next(m for m in training.model.modules() if isinstance(m, torch.nn.Conv2d))
contexts = {
    name: hook(getattr(owner, name))
    for owner, names in (
        (convolution, ("register_forward_pre_hook", "register_forward_hook", "register_full_backward_pre_hook",
                       "register_full_backward_hook")),
        (convolution.weight, ("register_hook", "register_post_accumulate_grad_hook")),
    )
    for name in names
}
contexts["pack"] = torch.autograd.graph.saved_tensors_hooks(raise_it, lambda x: x)
for mode in (Function, Dispatch):
    for left in range(1, 200, 19):
        contexts[f"{mode.__name__} {left}"] = context = mode()
        context.left = left
training.restore()
before = level()
wanted = training.step()
raised = 0
for name, context in contexts.items():
    training.restore()
    try:
        with context:
            training.step()
    except Interruption:
        raised += 1
    training.forget()
    assert level() <= before, (name, level() - before)
    training.restore()
    assert training.step() == wanted, name
assert raised > 15, raised
"""
    )


def test_garbage_cycles_and_threads_that_die() -> None:
    run_python(
        TRAINING
        + """
class Cycle:
    def __init__(self, training):
        self.me = self
        self.y = training.model(maca(training.batch))
        self.graph = self.y.grad_fn

def dies(training):
    with torch.maca.stream(torch.maca.Stream()), torch.no_grad():
        cycle = Cycle(training)
        torch.maca._sleep(1_000_000)
        raise Interruption

training = made("lstm")
wanted, before = training.step(), level()
gc.set_threshold(1)  # a collection at nearly each allocation, in any thread, in the middle of anything
for _ in range(30):
    Cycle(training), training.step()
gc.set_threshold(700)
assert level() <= before
died = []
threading.excepthook = died.append
for _ in range(10):
    threads = [threading.Thread(target=dies, args=(training,)) for _ in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
assert len(died) == 40 and all(a.exc_type is Interruption for a in died)
died.clear()
del threads
assert level() <= before and torch.is_grad_enabled()
training.restore()
first = training.step()
training.restore()
assert training.step() == first
"""
    )


def test_the_end_of_the_stack() -> None:
    """RecursionError or the result, wherever the limit falls."""
    run_python(
        TRAINING
        + """
x, r = maca(torch.rand(8, 8)), maca(torch.rand(8, 8)).requires_grad_()
calls = {
    "launch": lambda: x + 1, "another": lambda: torch.nn.functional.gelu(x), "backward": lambda: (r * r).sum().backward(),
    "download": lambda: x.cpu(), "upload": lambda: maca(torch.ones(3)), "text": lambda: repr(x), "list": lambda: torch.cat([x, x]),
    "in place": lambda: x.add_(0), "linalg": lambda: torch.linalg.svd(x), "host": lambda: torch.linalg.eig(x),
    "new signature": lambda: torch.linalg.eig(torch.eye(next(sizes), device="maca")),
}
sizes = itertools.count(3)

def deep(levels, call):
    return deep(levels - 1, call) if levels else call()

ended = collections.Counter()
for name, call in calls.items():
    for room in range(2, 60, 3):
        used, frame = 0, sys._getframe()
        while frame:
            used, frame = used + 1, frame.f_back
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(300)
        try:
            deep(300 - used - room, call)
            ended["a result"] += 1
        except RecursionError:
            ended["RecursionError"] += 1
        finally:
            sys.setrecursionlimit(limit)
        forget_backward()
    call()
assert ended["a result"] > 20 and ended["RecursionError"] > 20, ended
"""
    )


def test_a_sub_interpreter_is_refused() -> None:
    """By us where Python's own modules would load in one; PyTorch's own import hangs there."""
    run_python(
        """
try:
    import _xxsubinterpreters as interpreters
    other = interpreters.create()
    run = interpreters.run_string
except ImportError:
    import _interpreters as interpreters
    other, run = interpreters.create(), interpreters.exec
try:
    said = run(other, "import macatensor")
except Exception as error:
    said = error
assert "macatensor: PyTorch works in a process's main interpreter alone" in str(said) or "subinterpreters" in str(said), said
import macatensor
"""
    )
