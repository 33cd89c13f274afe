"""What ``torch.profiler`` costs: a step profiled with shapes over the plain step, on maca and natively; and whether each
kernel carries its operator."""

from __future__ import annotations

import copy
import statistics
import time

import torch
import torch.nn.functional as F
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from macatensor.bench.measure import Call, quartiles
from macatensor.bench.models import gpt, gpt_step, resnet, resnet_step
from macatensor.bench.result import Result
from macatensor.profiling.hooks import quiet_kineto

BAR = 1.25
ATTRIBUTION = 0.01  # share of kernels without an operator
_STEPS = 3  # of a profile


def _seconds(step: Call, steps: int) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.get_device_module("maca").synchronize()
    return (time.perf_counter() - start) / steps


def _profiled(step: Call, steps: int) -> tuple[float, profile]:
    """Seconds of a step inside of a profile; what starting and ending it take is not part of them."""
    found = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1], record_shapes=True)
    with quiet_kineto():
        found.start()
    seconds = _seconds(step, steps)
    with quiet_kineto():
        found.stop()
    return seconds, found


def _judged(case: str, steps: dict[str, Call], bar: float | None, rounds: int, quick: bool) -> list[Result]:
    count = 1 if quick else _STEPS
    ratios: dict[str, list[float]] = {name: [] for name in steps}
    plain: dict[str, list[float]] = {name: [] for name in steps}
    lost = total = 0
    for step in steps.values():
        _profiled(step, 1)
    for _ in range(rounds):
        for name, step in steps.items():
            plain[name].append(_seconds(step, count))
            seconds, found = _profiled(step, count)
            ratios[name].append(seconds / plain[name][-1])
            if name == "maca":
                events = found.events()
                total += sum(e.device_type == DeviceType.PrivateUse1 for e in events)
                lost -= sum(len(e.kernels) for e in events if e.device_type == DeviceType.CPU)
    native = statistics.median(ratios["native"])
    return [
        Result(
            f"profiling.{case}", "the plain step", statistics.median(ratios["maca"]), native if bar is None else bar,
            statistics.median(plain["maca"]), statistics.median(plain["maca"]) * statistics.median(ratios["maca"]),
            spread=(min(ratios["maca"]), max(ratios["maca"])), middle=quartiles(ratios["maca"]),
            note=f"native's own factor {native:.2f}",
        ),
        Result(f"profiling.{case}.attribution", f"{total} kernels", (total + lost) / max(total, 1), ATTRIBUTION,
               note="share of kernels without an operator"),
    ]  # fmt: skip


def profile_gpt(rounds: int, quick: bool) -> list[Result]:
    """The GPT's training step."""
    model = gpt(quick)
    tokens = torch.randint(model.config.vocabulary, (4, 129))
    steps = {
        "maca": gpt_step(copy.deepcopy(model).to("maca"), tokens.to("maca")),
        "native": gpt_step(model, tokens),
    }
    return _judged("gpt", steps, BAR, rounds, quick)


def profile_resnet(rounds: int, quick: bool) -> list[Result]:
    """ResNet-18's training step, 8 images of 3x64x64."""
    model = resnet(18, quick)
    x, y = torch.randn(8, 3, *(2 * (32 if quick else 64,))), torch.randint(10, (8,))
    steps = {
        "maca": resnet_step(copy.deepcopy(model).to("maca"), x.to("maca"), y.to("maca")),
        "native": resnet_step(model, x, y),
    }
    return _judged("resnet18", steps, BAR, rounds, quick)


def profile_tiny(rounds: int, quick: bool) -> list[Result]:
    """A network whose kernels are shorter than their launch: no worse than native's own factor."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(8))
    )
    x = torch.randn(8, 16)

    def step(model: torch.nn.Module, x: torch.Tensor) -> Call:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def run() -> None:
            optimizer.zero_grad()
            F.mse_loss(model(x), x).backward()
            optimizer.step()

        return run

    steps = {"maca": step(copy.deepcopy(model).to("maca"), x.to("maca")), "native": step(model, x)}
    return _judged("tiny", steps, None, rounds, quick)


CASES = {
    "profiling.gpt": profile_gpt,
    "profiling.resnet18": profile_resnet,
    "profiling.tiny": profile_tiny,
}
