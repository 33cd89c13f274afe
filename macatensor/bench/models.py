"""Whole models against native PyTorch on the same machine and threads."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import macatensor
from macatensor.bench.measure import interleave
from macatensor.bench.result import Result
from macatensor.demo.models import GPT, GPTConfig, SequenceModel, resnet18

RESNET_INFERENCE = 1.0
RESNET_TRAINING = 1.25
GPT_FORWARD = 1.1
GPT_TRAINING = 1.25
GPT_SIZES = GPTConfig(vocabulary=100, layers=6, width=384, heads=6, context=128)

Call = Callable[[], Any]


def resnet_inference(rounds: int, quick: bool) -> list[Result]:
    """ResNet-18, 8 images of 3x64x64, ``inference_mode``."""
    torch.manual_seed(0)
    model, x = resnet18().eval(), torch.randn(8, 3, 64, 64)
    channels_last: Any = copy.deepcopy(model)
    channels_last.to(memory_format=torch.channels_last)
    contenders = {
        "maca": _forward(copy.deepcopy(model).to("maca"), x.to("maca")),
        "NCHW": _forward(model, x),
        "channels_last": _forward(channels_last, x.contiguous(memory_format=torch.channels_last)),
    }
    return _judged("resnet18.inference", contenders, RESNET_INFERENCE, rounds, quick)


def resnet_training(rounds: int, quick: bool) -> list[Result]:
    """ResNet-18, 8 images of 3x64x64: forward, backward, SGD with momentum."""
    torch.manual_seed(0)
    model, x, y = resnet18(), torch.randn(8, 3, 64, 64), torch.randint(1000, (8,))
    channels_last: Any = copy.deepcopy(model)
    channels_last.to(memory_format=torch.channels_last)

    def step(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> Call:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        return _training(lambda: F.cross_entropy(model(x), y), optimizer)

    contenders = {
        "maca": step(copy.deepcopy(model).to("maca"), x.to("maca"), y.to("maca")),
        "NCHW": step(model, x, y),
        "channels_last": step(channels_last, x.contiguous(memory_format=torch.channels_last), y),
    }
    return _judged("resnet18.training", contenders, RESNET_TRAINING, rounds, quick)


def gpt_forward(rounds: int, quick: bool) -> list[Result]:
    """GPT of 6 layers, width 384, 6 heads on 4 x 128 tokens, ``inference_mode``."""
    torch.manual_seed(0)
    model, tokens = GPT(GPT_SIZES).eval(), torch.randint(GPT_SIZES.vocabulary, (4, GPT_SIZES.context))
    contenders = {
        "maca": _forward(copy.deepcopy(model).to("maca"), tokens.to("maca")),
        "native": _forward(model, tokens),
    }
    return _judged("gpt.forward", contenders, GPT_FORWARD, rounds, quick)


def gpt_training(rounds: int, quick: bool) -> list[Result]:
    """The same GPT: forward, backward, AdamW as torch.optim chooses it."""
    torch.manual_seed(0)
    model, tokens = GPT(GPT_SIZES), torch.randint(GPT_SIZES.vocabulary, (4, GPT_SIZES.context + 1))

    def step(model: GPT, tokens: torch.Tensor) -> Call:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        x, y = tokens[:, :-1], tokens[:, 1:].flatten()
        return _training(lambda: F.cross_entropy(model(x).flatten(0, 1), y), optimizer)

    contenders = {
        "maca": step(copy.deepcopy(model).to("maca"), tokens.to("maca")),
        "native": step(model, tokens),
    }
    return _judged("gpt.training", contenders, GPT_TRAINING, rounds, quick)


def lstm(rounds: int, quick: bool) -> list[Result]:
    """Two-layer LSTM, hidden 128, 32 time steps, batch 16: forward and backward."""
    torch.manual_seed(0)
    model, x, y = SequenceModel(), torch.randn(32, 16, 128), torch.randint(10, (16,))

    def step(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> Call:
        def run() -> Any:
            model.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return run

    contenders = {
        "maca": step(copy.deepcopy(model).to("maca"), x.to("maca"), y.to("maca")),
        "native": step(model, x, y),
    }
    return _judged("lstm.backward", contenders, None, rounds, quick)


def _forward(model: torch.nn.Module, x: torch.Tensor) -> Call:
    def run() -> Any:
        with torch.inference_mode():
            return model(x)

    return run


def _training(loss_of: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> Call:
    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss

    return run


def _judged(
    case: str, contenders: dict[str, Call], bar: float | None, rounds: int, quick: bool
) -> list[Result]:
    """maca against the quickest of the others, with fallbacks counted over all its calls."""
    maca = contenders["maca"]
    fallbacks = 0

    def counted() -> None:
        nonlocal fallbacks
        with macatensor.fallback("silent"):
            before = macatensor.counters()["fallbacks"]
            maca()
            fallbacks += macatensor.counters()["fallbacks"] - before

    counted()  # outside the timed blocks: reading counters takes some microseconds
    counted()
    timing = interleave(contenders, rounds, 0.01 if quick else 0.3)
    better = min((name for name in contenders if name != "maca"), key=timing.seconds)
    baseline = f"native {better}" if better != "native" else "native"
    return [
        Result(
            case, baseline, timing.ratio("maca", better), bar, timing.seconds(better), timing.seconds("maca"),
            fallbacks=fallbacks, spread=timing.spread("maca", better), note=f"{torch.get_num_threads()} threads",
        )
    ]  # fmt: skip
