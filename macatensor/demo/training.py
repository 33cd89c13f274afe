"""What a training run leaves behind, and how it tells of its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Report = Callable[[int, int, str], None]
"""Called with (steps done, steps at most, a line about the state) after every step."""


def silent(done: int, total: int, line: str) -> None:
    """A :data:`Report` that says nothing."""


@dataclass
class Training:
    """A finished run: its curves and whether it met its bar."""

    name: str  # "ResNet on handwritten digits"
    metric: str  # "test accuracy"
    bar: float
    higher_is_better: bool
    parameters: int = 0
    steps: int = 0
    seconds: float = 0.0
    losses: list[tuple[int, float]] = field(default_factory=list)  # (step, training loss)
    metrics: list[tuple[int, float]] = field(default_factory=list)  # (step, metric)
    facts: dict[str, str] = field(default_factory=dict)  # what a reader wants to know: data, batch, optimizer
    sample: str = ""  # text that a language model wrote
    step: Callable[[], object] | None = None  # runs one more training step, for the parity check

    @property
    def value(self) -> float:
        """The metric at the end; NaN before the first evaluation."""
        return self.metrics[-1][1] if self.metrics else float("nan")

    @property
    def met(self) -> bool:
        """Is the metric on the right side of the bar?"""
        return self.value >= self.bar if self.higher_is_better else self.value <= self.bar

    def short(self, value: float) -> str:
        """:meth:`formatted` for a narrow place."""
        return self.formatted(value).removesuffix(" per character")

    def formatted(self, value: float) -> str:
        """An accuracy in per cent, a loss in nats."""
        return f"{100 * value:.2f} %" if self.higher_is_better else f"{value:.3f} nats per character"
