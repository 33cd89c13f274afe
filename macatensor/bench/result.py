"""One line of the benchmark's table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """``value`` against ``bar``; a ratio unless ``unit`` says otherwise. Times in seconds."""

    case: str
    baseline: str  # what it is compared with
    value: float
    bar: float | None  # None: reported, not judged
    baseline_seconds: float | None = None
    maca_seconds: float | None = None
    unit: str = "x"  # "x", "s" or "B"
    fallbacks: int | None = None  # calls that ran on the host, where that is counted
    spread: tuple[float, float] | None = None  # smallest and largest value of the rounds
    note: str = ""
    is_at_ceiling: bool = False  # as quick as the machine's memory: passes whatever the ratio

    @property
    def verdict(self) -> str:
        """``pass``, ``FAIL`` or ``report`` (no bar). Any fallback fails."""
        if self.fallbacks:
            return "FAIL"
        if self.bar is None:
            return "report"
        return "pass" if self.value <= self.bar or self.is_at_ceiling else "FAIL"

    def facts(self) -> dict[str, Any]:
        """The result as JSON-able values."""
        return {**asdict(self), "verdict": self.verdict}
