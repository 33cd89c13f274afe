"""The lines of a comparison: pairs of calls, and the tensors of both."""

from __future__ import annotations

from dataclasses import dataclass, field

from macatensor.accuracy.comparison.align import Pair
from macatensor.accuracy.comparison.distance import Distance
from macatensor.accuracy.comparison.verdict import Judged
from macatensor.accuracy.elements import TensorEntry
from macatensor.accuracy.records import Call


@dataclass(slots=True)
class TensorRow:
    """One tensor of a call, on both sides."""

    role: str  # "input" or "output"
    place: str
    left: TensorEntry | None
    right: TensorEntry | None
    distance: Distance | None = None
    inherited: float | None = None  # of an output: the inputs' error
    judged: Judged = field(default_factory=Judged)


@dataclass(slots=True)
class CallRow:
    """A pair of calls, or a call that only one run has, with its tensors and the worst of their verdicts."""

    index: int  # in the order of the first run
    rank: int
    pair: Pair
    tensors: list[TensorRow] = field(default_factory=list)
    judged: Judged = field(default_factory=Judged)
    above: int | None = None  # the index of the row of the call during which it ran
    stacks: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))

    @property
    def call(self) -> Call:
        return self.pair.call

    @property
    def error(self) -> float | None:
        """The largest error among its outputs, each as its rule took it."""
        found = [t.judged.error for t in self.tensors if t.role == "output" and t.judged.error is not None]
        return max(found, default=None)
