"""How far losses on maca may be from the CPU's."""

from __future__ import annotations

FIRST = 1e-5  # of the losses


def apart(
    got: list[float],
    want: list[float],
    tolerance: float = 1e-3,
    moved: list[float] | None = None,
    compared: int = 10,
) -> str:
    """How the losses differ too far, or nothing. ``moved`` are the CPU's when its weights move by one unit in the last
    place: twice as far as those is not too far. ``compared``: how many, of the first."""
    explained = 0.0
    for i, (g, w) in enumerate(zip(got[:compared], want[:compared])):
        if moved is not None:
            explained = max(explained, 2 * abs(moved[i] - w) / abs(w))
        bound = max(tolerance if i else min(FIRST, tolerance) if tolerance <= 1e-3 else tolerance, explained)
        if not abs(g - w) <= bound * max(abs(w), 1e-6) and not (g != g and w != w):
            return f"loss {i}: {g:.8g}, the CPU's {w:.8g}"
    return "" if len(got) == len(want) else f"{len(got)} losses, on the CPU {len(want)}"
