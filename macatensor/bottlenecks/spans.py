"""Unions of intervals (start, end), in any unit."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

Span = tuple[int, int]
_END = 1 << 63  # after every time


def union(spans: Iterable[Span]) -> list[Span]:
    """In order, without overlaps."""
    joined: list[Span] = []
    for start, end in sorted(s for s in spans if s[1] > s[0]):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def length(spans: Sequence[Span]) -> int:
    """Of spans without overlaps."""
    return sum(end - start for start, end in spans)


def clipped(spans: Iterable[Span], within: Span) -> list[Span]:
    """The union of what lies inside of ``within``."""
    return union((max(start, within[0]), min(end, within[1])) for start, end in spans)


def covers(spans: Sequence[Span], point: int) -> bool:
    """Does one of spans without overlaps, in order, hold the point?"""
    at = bisect.bisect_right(spans, (point, _END)) - 1
    return at >= 0 and spans[at][0] <= point < spans[at][1]
