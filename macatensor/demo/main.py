"""Runs the demo: trains both models, checks one step of each op by op, writes the report."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import macatensor
from macatensor.demo import digits, text
from macatensor.demo.training import Report, Training, silent
from macatensor.runtime import counters

if TYPE_CHECKING:
    from macatensor.parity.step import OpRecord


@dataclass
class Demo:
    """Everything the demo found out."""

    trainings: list[Training] = field(default_factory=list)
    parity: list[list[OpRecord]] = field(default_factory=list)  # one list for each training
    fallbacks: dict[str, int] = field(default_factory=dict)  # operator -> calls that ran on the host
    launches: int = 0
    seconds: float = 0.0
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def failures(self) -> list[str]:
        """Bars that were missed, in words. Empty when the demo passed."""
        missed = [
            f"{t.name}: {t.metric} {t.formatted(t.value)}, the bar is {t.formatted(t.bar)}"
            for t in self.trainings
            if not t.met
        ]
        for training, records in zip(self.trainings, self.parity):
            wrong = dict.fromkeys(r.op for r in records if r.verdict.startswith("FAIL"))  # once each
            if wrong:
                missed.append(f"{training.name}: outside the bound of their rows: {', '.join(wrong)}")
            if not records:
                missed.append(f"{training.name}: the parity check saw no operator")
        if self.fallbacks:
            calls = ", ".join(f"{name} ({n})" for name, n in self.fallbacks.items())
            missed.append(f"operators that ran on the host: {calls}")
        return missed


@dataclass(frozen=True)
class Budget:
    """How long to train, and how well. The defaults are the demo's; tests take less."""

    epochs: int = digits.EPOCHS
    accuracy: float = digits.ACCURACY_BAR
    steps: int = text.STEPS
    loss: float = text.LOSS_BAR
    every: int = text.EVERY


Tracker = Callable[[str], Report]
"""Called with the name of a part of the demo when it begins; gives what is told of its progress."""


def run(seed: int = 0, budget: Budget = Budget(), tracker: Tracker = lambda name: silent) -> Demo:
    """Trains on ``maca`` and checks. Everything is decided by ``seed``; operators that run on the host are counted."""
    from macatensor.parity.step import check_step

    demo = Demo(environment=environment())
    start = time.perf_counter()
    macatensor.reset_counters()
    with macatensor.fallback("silent"):
        demo.trainings.append(
            digits.train(
                "maca", seed, budget.epochs, budget.accuracy, tracker("ResNet on handwritten digits")
            )
        )
        demo.trainings.append(
            text.train(
                "maca",
                seed,
                budget.steps,
                budget.loss,
                tracker("GPT on Python's standard library"),
                budget.every,
            )
        )
        demo.launches = macatensor.counters()["launches"]
        report = tracker("One step of each, op by op")
        for i, training in enumerate(demo.trainings):
            report(i, len(demo.trainings), f"{training.name} against float64")
            assert training.step is not None
            demo.parity.append(check_step(training.step))
        checked = sum(r.calls for records in demo.parity for r in records)
        report(2, 2, f"{checked} calls against float64")
    demo.fallbacks = dict(counters.fallbacks)
    demo.seconds = time.perf_counter() - start
    return demo


def environment() -> dict[str, str]:
    """What the figures depend on."""
    module = torch.get_device_module("maca")
    properties = module.get_device_properties()
    return {
        "device": f"{properties.name} (maca:0)",
        "SIMD level": properties.simd,
        "threads": str(properties.multi_processor_count),
        "PyTorch": torch.__version__,
        "Python": platform.python_version(),
        "macatensor": macatensor.__version__,
    }


def facts(demo: Demo, page: Path | None) -> dict[str, object]:
    """The demo as JSON-able values."""
    from dataclasses import asdict

    return {
        "passed": not demo.failures,
        "failures": demo.failures,
        "fallbacks": demo.fallbacks,
        "launches": demo.launches,
        "seconds": demo.seconds,
        "environment": demo.environment,
        "trainings": [
            {
                "name": t.name,
                "metric": t.metric,
                "value": t.value,
                "bar": t.bar,
                "met": t.met,
                "steps": t.steps,
                "seconds": t.seconds,
                "parameters": t.parameters,
                "losses": t.losses,
                "metrics": t.metrics,
                "parity": [asdict(r) for r in records],
            }
            for t, records in zip(demo.trainings, demo.parity)
        ],
        "report": None if page is None else str(page),
    }
