"""What a replay of a captured graph costs: per launch, and for a step too small for Python."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F

from macatensor.bench.measure import interleave, quartiles
from macatensor.bench.result import Result
from macatensor.demo.models import GPT, GPTConfig

SECONDS_PER_LAUNCH = 0.5e-6
SMALL_STEP = 0.5
SMALL = GPTConfig(vocabulary=96, layers=2, width=64, heads=4, context=32)
_LAUNCHES = 1000


def launches(rounds: int, quick: bool) -> list[Result]:
    """Seconds a launch of 1000 additions to 16 floats, the kernels' own time included."""
    module = torch.get_device_module("maca")
    x = torch.rand(16).to("maca")

    def additions() -> torch.Tensor:
        y = x
        for _ in range(_LAUNCHES):
            y = y + 1
        return y

    graph = module.MacaGraph()
    with module.graph(graph):
        additions()
    timing = interleave({"maca": graph.replay, "eager": additions}, rounds, 0.01 if quick else 0.1)
    taken = [seconds / _LAUNCHES for seconds in timing.rounds["maca"]]
    replayed, eager = timing.seconds("maca") / _LAUNCHES, timing.seconds("eager") / _LAUNCHES
    return [
        Result("graph.launch", "seconds a launch", replayed, SECONDS_PER_LAUNCH, eager, replayed, unit="s",
               spread=(min(taken), max(taken)), middle=quartiles(taken),
               note="the kernel included; the first time is without a graph")
    ]  # fmt: skip


def small_step(rounds: int, quick: bool) -> list[Result]:
    """A captured training step of a small GPT (2 layers, width 64, batch 1, 32 tokens, AdamW) against native PyTorch."""
    torch.manual_seed(0)
    module = torch.get_device_module("maca")
    model = GPT(SMALL)
    tokens = torch.randint(SMALL.vocabulary, (1, SMALL.context + 1))

    def step(model: GPT, tokens: torch.Tensor, capturable: bool) -> Callable[[], torch.Tensor]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=capturable)
        x, y = tokens[:, :-1], tokens[:, 1:].flatten()

        def run() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x).flatten(0, 1), y)
            loss.backward()
            optimizer.step()
            return loss

        return run

    ours = step(copy.deepcopy(model).to("maca"), tokens.to("maca"), capturable=True)
    ours()  # makes the optimizer's state
    graph = module.MacaGraph()
    with module.graph(graph):
        ours()
    native = step(model, tokens, capturable=False)
    timing = interleave({"maca": graph.replay, "native": native}, rounds, 0.02 if quick else 0.3)
    return [
        Result("graph.gpt", "native", timing.ratio("maca", "native"), SMALL_STEP, timing.seconds("native"),
               timing.seconds("maca"), spread=timing.spread("maca", "native"), middle=timing.middle("maca", "native"), note=f"{graph.launches()} launches")
    ]  # fmt: skip


def graphs(rounds: int, quick: bool) -> list[Result]:
    """Both."""
    return launches(rounds, quick) + small_step(rounds, quick)
