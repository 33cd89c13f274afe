"""One line of the benchmark's table."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from macatensor.files.untrusted import made


@dataclass(frozen=True)
class Rate:
    """What a call reached, and the machine's ceiling: bytes or operations a second."""

    value: float
    ceiling: float
    of: str  # which ceiling: "copy", "read", "multiply-add" or "product"

    def __post_init__(self) -> None:
        if not self.ceiling > 0:
            raise ValueError(f"a ceiling of {self.ceiling}")

    @property
    def share(self) -> float:
        """Of the ceiling; above 1 where data stayed in a cache."""
        return self.value / self.ceiling


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
    middle: tuple[float, float] | None = None  # quartiles of the rounds
    note: str = ""
    rate: Rate | None = None
    is_at_ceiling: bool = False  # as quick as the machine's memory: passes whatever the ratio

    @property
    def verdict(self) -> str:
        """``met``, ``missed`` or ``report`` (no bar). With any fallback a bar is missed."""
        if self.fallbacks:
            return "missed"
        if self.bar is None:
            return "report"
        return "met" if self.value <= self.bar or self.is_at_ceiling else "missed"

    def facts(self) -> dict[str, object]:
        """The result as JSON-able values."""
        share = None if self.rate is None else self.rate.share
        return {**asdict(self), "share": share, "verdict": self.verdict}

    @classmethod
    def of(cls, facts: object) -> Result:
        """The result that :meth:`facts`, as JSON, came from. Raises ValueError for other values."""
        return made(cls, cls.known(facts), "a result")

    @classmethod
    def known(cls, facts: object) -> object:
        """What of :meth:`facts` makes the result again; what is no such object, as it is."""
        if not isinstance(facts, dict):
            return facts
        return {f.name: facts[f.name] for f in fields(cls) if f.name in facts}
