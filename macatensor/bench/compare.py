"""Two stored runs, case by case: what became slower by more than both runs' spread?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from macatensor.bench.result import Result
from macatensor.bench.stored import Run

TOLERANCE = 0.05
_FACTS = ("processor", "cores", "simd", "device", "threads", "pytorch", "quick")


@dataclass(frozen=True)
class Change:
    """One case in both runs. ``factor`` is the new value over the old one, None where that means nothing."""

    case: str
    baseline: str
    unit: str
    old: float
    new: float
    factor: float | None
    verdict: str  # "slower", "faster", "same", "not compared"
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """The cases of both runs, and what only one has."""

    changes: Sequence[Change]
    differences: dict[str, tuple[object, object]]  # facts of the machines and settings: old, new
    only_old: Sequence[str]
    only_new: Sequence[str]
    tolerance: float

    @property
    def slower(self) -> list[Change]:
        """What fails the comparison."""
        return [c for c in self.changes if c.verdict == "slower"]

    def facts(self) -> dict[str, object]:
        """JSON-able values."""
        return {**asdict(self), "slower": len(self.slower), "passed": not self.slower}


def compare(old: Run, new: Run, tolerance: float = TOLERANCE) -> Comparison:
    """Compares ratios by ratios. A case is slower, or faster, where its value changed by more than ``tolerance`` and
    the middle halves of both runs' rounds lie apart.

    Seconds are compared only where processor, threads and PyTorch are the same; bytes by whether they still meet
    their bar. Raises ValueError where the runs have no case in common.
    """
    before = {(r.case, r.baseline if r.unit == "x" else ""): r for r in map(_nameless, old.results)}
    after = {(r.case, r.baseline if r.unit == "x" else ""): r for r in map(_nameless, new.results)}
    common = [key for key in after if key in before]
    if not common:
        raise ValueError(
            f"the runs have no case in common: {_some(before)} there, {_some(after)} here; measure the cases of one in "
            "the other"
        )
    differences = {
        name: (getattr(old, name), getattr(new, name))
        for name in _FACTS
        if getattr(old, name) != getattr(new, name)
    }
    return Comparison(
        [_change(before[key], after[key], bool(differences), tolerance) for key in common],
        differences,
        sorted({case for case, _ in before if case not in {name for name, _ in after}}),
        sorted({case for case, _ in after if case not in {name for name, _ in before}}),
        tolerance,
    )


def _nameless(result: Result) -> Result:
    """Under one name whichever layout of native PyTorch was the quicker one."""
    if not result.baseline.startswith("native"):
        return result
    return replace(result, baseline="native")


def _change(old: Result, new: Result, differs: bool, tolerance: float) -> Change:
    def change(factor: float | None, verdict: str, note: str = "") -> Change:
        return Change(new.case, new.baseline, new.unit, old.value, new.value, factor, verdict, note)

    if (new.fallbacks or 0) > (old.fallbacks or 0):
        return change(None, "slower", f"{new.fallbacks} calls on the host, {old.fallbacks or 0} before")
    if new.unit == "B":
        if new.verdict == old.verdict:
            return change(None, "same")
        return change(
            None, "slower" if new.verdict == "missed" else "faster", f"the bar is {new.verdict} now"
        )
    if new.unit == "s" and differs:
        return change(None, "not compared", "seconds of another machine or setting")
    if not old.value > 0:
        return change(None, "not compared", "the old value is not above 0")
    factor = new.value / old.value
    note = "" if old.verdict == new.verdict else f"the bar is {new.verdict} now"
    (old_low, old_high), (new_low, new_high) = _middle(old), _middle(new)
    if factor > 1 + tolerance:
        if new_low > old_high:
            return change(factor, "slower", note)
        return change(factor, "same", _joined("within the spread", note))
    if factor < 1 / (1 + tolerance):
        if new_high < old_low:
            return change(factor, "faster", note)
        return change(factor, "same", _joined("within the spread", note))
    return change(factor, "same", note)


def _middle(result: Result) -> tuple[float, float]:
    return result.middle or result.spread or (result.value, result.value)


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def _some(cases: dict[tuple[str, str], Result]) -> str:
    names = list(dict.fromkeys(case for case, _ in cases))
    return "none" if not names else ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
