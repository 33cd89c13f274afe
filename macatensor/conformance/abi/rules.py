"""What a rule is, and the list of them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .device import Opened
from .verdicts import Broken, NotAsked, expect

__all__ = ["RULES", "Broken", "NotAsked", "Rule", "expect", "rule"]


@dataclass(frozen=True)
class Rule:
    """One rule of maca.h. ``sentence`` is the header's own; ``remedy`` says what to do about it next."""

    name: str
    level: int
    group: str
    sentence: str
    remedy: str
    check: Callable[[Opened], None]
    opens: bool = True  # is a device open when the rule is asked?


RULES: dict[str, Rule] = {}


def rule(
    level: int, group: str, sentence: str, remedy: str, opens: bool = True
) -> Callable[[Callable[[Opened], None]], Callable[[Opened], None]]:
    """Decorates the check of a rule. It returns, or raises :class:`Broken` or :class:`NotAsked`."""

    def register(check: Callable[[Opened], None]) -> Callable[[Opened], None]:
        assert check.__name__ not in RULES, check.__name__
        RULES[check.__name__] = Rule(check.__name__, level, group, sentence, remedy, check, opens)
        return check

    return register
