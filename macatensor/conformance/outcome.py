"""One line of a report: something that was asked of a library, and what came of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

PASS, FAIL, DECLINED, ABSENT = "pass", "FAIL", "DECLINED", "n/a"


@dataclass(frozen=True)
class Line:
    """``verdict``: ``"pass"``, ``"FAIL"``, ``"DECLINED"`` (nothing is wrong, and some calls are not served) or ``"n/a"``
    (the library has no such thing)."""

    name: str
    level: int
    group: str
    verdict: str
    text: str = ""  # what is wrong, and with what
    sentence: str = ""  # of maca.h
    remedy: str = ""  # what to do next
    seconds: float = 0.0
    samples: int = 0

    def as_json(self) -> dict[str, object]:
        return asdict(self)
