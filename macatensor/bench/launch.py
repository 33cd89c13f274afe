"""What one small operator costs: the way from Python to a kernel and back."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch

from macatensor.bench.baselines import Delegate, Floor, LeanFloor
from macatensor.bench.measure import Timing, interleave_short, quartiles
from macatensor.bench.result import Result

ADD_OVER_DELEGATE = 0.8
ADD_OVER_FLOOR = 1.25
BACKWARD_OVER_FLOOR = 1.3
GRADIENT_OVER_NATIVE = 3.0
VIEW_OVER_FLOOR = 1.3
BUSY_OVER_FLOOR = 1.25

_TURN = 1e6  # nanoseconds: a call that took longer has waited while another thread ran

Operator = Callable[..., object]
KERNELS: dict[str, Operator] = {
    "add": lambda a, b: a + b,
    "relu": lambda a, b: torch.relu(a),
    "mul_number": lambda a, b: a * 2.0,
    "add_": lambda a, b: a.add_(b),
}
VIEWS: dict[str, Operator] = {
    "view": lambda a, b: a.view(16),
    "transpose": lambda a, b: a.transpose(0, 1),
    "slice": lambda a, b: a[1:3],
    "select": lambda a, b: a[1],
}


def kernel(name: str, rounds: int, quick: bool) -> list[Result]:
    """An operator on 16 floats against native PyTorch, a lean delegate, the floor and the lean floor."""
    a, b = torch.rand(16) / 1e6, torch.rand(16) / 1e6  # small: add_ runs a million times
    pairs = {
        "maca": (a.to("maca"), b.to("maca")),
        "floor": (Floor((16,)), Floor((16,))),
        "lean floor": (LeanFloor((16,)), LeanFloor((16,))),
        "lean delegate": (Delegate(a.clone()), Delegate(b.clone())),
        "native": (a.clone(), b.clone()),
    }
    timing = interleave_short(_bound(KERNELS[name], pairs), rounds, 4 if quick else 40)
    bars = {"lean delegate": ADD_OVER_DELEGATE, "floor": ADD_OVER_FLOOR} if name == "add" else {}
    return [_against(f"launch.{name}", timing, base, bars.get(base)) for base in list(pairs)[1:]]


def backward(rounds: int, quick: bool) -> list[Result]:
    """The backward of ``a + b`` on 16 floats, into ``.grad`` of both, against the floor's."""

    def call(a: torch.Tensor, b: torch.Tensor, gradient: torch.Tensor) -> Callable[[], object]:
        a.requires_grad_(), b.requires_grad_()
        y = a + b

        def run() -> None:
            a.grad = b.grad = None
            y.backward(gradient, retain_graph=True)

        return run

    host = [torch.rand(16) for _ in range(3)]
    contenders = {
        "maca": call(*(t.to("maca") for t in host)),
        "floor": call(*(Floor((16,)) for _ in range(3))),
        "native": call(*host),
    }
    timing = interleave_short(contenders, rounds, 4 if quick else 40)
    return [
        _against("launch.add.backward", timing, "floor", BACKWARD_OVER_FLOOR),
        _against("launch.add.backward", timing, "native", None),
    ]


def gradient(rounds: int, quick: bool) -> list[Result]:
    """The gradient of ``(v + v).sum()``, 16 floats, forward included, against native PyTorch."""

    def call(v: torch.Tensor) -> Callable[[], object]:
        v.requires_grad_()
        return lambda: torch.autograd.grad((v + v).sum(), v)

    host = torch.rand(16)
    contenders = {"maca": call(host.to("maca")), "native": call(host)}
    timing = interleave_short(contenders, rounds, 4 if quick else 40)
    return [_against("launch.gradient", timing, "native", GRADIENT_OVER_NATIVE)]


def view(name: str, rounds: int, quick: bool) -> list[Result]:
    """A view of a 4x4 tensor against the floor and native PyTorch."""
    a = torch.rand(4, 4)
    pairs = {"maca": (a.to("maca"), None), "floor": (Floor((4, 4)), None), "native": (a, None)}
    timing = interleave_short(_bound(VIEWS[name], pairs), rounds, 4 if quick else 40)
    return [
        _against(f"launch.view.{name}", timing, "floor", VIEW_OVER_FLOOR),
        _against(f"launch.view.{name}", timing, "native", None),
    ]


def busy(rounds: int, quick: bool) -> list[Result]:
    """``a + b`` while a second Python thread computes: how many times as long as alone, against the floor's factor.

    Two Python threads share the interpreter's lock in turns of 5 ms, whatever they do: everything takes twice as long.
    That is not ours to mend, nor what a request for the lock costs each call on this machine. Ours is not to give the
    lock away within an operator, since each time the way back costs 85 us. So calls are timed one by one, and the mean of
    those that did not wait for a turn says what an operator costs while its thread runs. Their median would not: some
    half of them wake the other thread, which takes 1.5 us, and whether the middle one does is chance.
    """
    a, b = torch.rand(16).to("maca"), torch.rand(16).to("maca")
    f, g = Floor((16,)), Floor((16,))
    count = 2_000 if quick else 20_000
    factors: dict[str, list[float]] = {"maca": [], "floor": []}
    beside: dict[str, list[float]] = {"maca": [], "floor": []}
    for _ in range(rounds):
        alone = {"maca": _running_call(a, b, count), "floor": _running_call(f, g, count)}
        stop = threading.Event()
        other = threading.Thread(target=_spin, args=(stop,), daemon=True)
        other.start()
        try:
            contended = {"maca": _running_call(a, b, count), "floor": _running_call(f, g, count)}
        finally:
            stop.set()
            other.join()
        for name, seconds in contended.items():
            factors[name].append(seconds / alone[name])
            beside[name].append(seconds)
    ours, floor = (statistics.median(factors[name]) for name in ("maca", "floor"))
    ratios = [factor / of_floor for factor, of_floor in zip(factors["maca"], factors["floor"])]
    return [
        Result(
            "launch.busy", "floor's factor", statistics.median(ratios), BUSY_OVER_FLOOR,
            statistics.median(beside["floor"]), statistics.median(beside["maca"]), spread=(min(ratios), max(ratios)),
            middle=quartiles(ratios), note=f"calls that did not wait, {ours:.2f} x of alone; the floor {floor:.2f} x",
        )
    ]  # fmt: skip


CASES: dict[str, Callable[[int, bool], list[Result]]] = {
    **{f"launch.{name}": partial(kernel, name) for name in KERNELS},
    "launch.add.backward": backward,
    "launch.gradient": gradient,
    **{f"launch.view.{name}": partial(view, name) for name in VIEWS},
    "launch.busy": busy,
}


def _bound(
    operator: Operator, pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor | None]]
) -> dict[str, Callable[[], object]]:
    return {name: lambda a=a, b=b: operator(a, b) for name, (a, b) in pairs.items()}  # type: ignore[misc]


def _against(case: str, timing: Timing, baseline: str, bar: float | None) -> Result:
    return Result(
        case, baseline, timing.ratio("maca", baseline), bar, timing.seconds(baseline), timing.seconds("maca"),
        spread=timing.spread("maca", baseline), middle=timing.middle("maca", baseline),
    )  # fmt: skip


def _running_call(a: torch.Tensor, b: torch.Tensor, count: int) -> float:
    clock = time.perf_counter_ns
    taken = []
    for _ in range(count):
        start = clock()
        a + b
        taken.append(clock() - start)
    return statistics.fmean(t for t in taken if t < _TURN) / 1e9


def _spin(stop: threading.Event) -> None:
    while not stop.is_set():
        sum(range(100))
