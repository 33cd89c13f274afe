"""How far losses on maca may be from the CPU's."""

from __future__ import annotations

from collections.abc import Sequence

FIRST = 1e-5  # of the losses


def apart(
    got: list[float],
    want: list[float],
    tolerance: float = 1e-3,
    moved: Sequence[list[float]] = (),
    compared: int = 10,
) -> str:
    """How the losses differ too far, or nothing. ``moved`` are the CPU's of runs that round otherwise: twice as far as one of those is not too far. ``compared``: how many, of the first."""
    explained = 0.0
    for i, (g, w) in enumerate(zip(got[:compared], want[:compared])):
        for run in moved:
            explained = max(explained, 2 * abs(run[i] - w) / max(abs(w), 1e-6))
        bound = max(tolerance if i else min(FIRST, tolerance) if tolerance <= 1e-3 else tolerance, explained)
        if not abs(g - w) <= bound * max(abs(w), 1e-6) and not (g != g and w != w):
            return f"loss {i}: {g:.8g}, the CPU's {w:.8g}"
    return "" if len(got) == len(want) else f"{len(got)} losses, on the CPU {len(want)}"
