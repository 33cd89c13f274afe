"""The plot of errors along a network, as SVG text that stands in a page."""

from __future__ import annotations

import math
from html import escape

from macatensor.accuracy.comparison.rows import CallRow

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 1160, 260, 56, 26, 10
POINTS = 1000  # of these many stretches of the network, each shows its worst call
_COLOURS = {"pass": "#2563eb", "warning": "#d97706", "error": "#dc2626"}
_LOWEST = 1e-17  # of equal tensors, which a logarithm has no place for


def errors_along(calls: list[CallRow]) -> str:
    """Each API call's output error over the order of calls, backward calls hollow, coloured by verdict.

    Aten calls stand in where no API call has a measure. Empty text if nothing has.
    """
    known = [row for row in calls if row.error is not None]
    measured = [row for row in known if row.call.level == "api"] or known
    if not measured:
        return ""
    step = max(1, math.ceil(len(measured) / POINTS))
    order = {"pass": 0, "warning": 1, "error": 2}
    worst = [
        max(measured[i : i + step], key=lambda r: (order[r.judged.verdict], r.error or 0.0))
        for i in range(0, len(measured), step)
    ]
    values = [min(max(row.error or 0.0, _LOWEST), 1e3) for row in worst]
    positive = [v for v in values if v > _LOWEST] or [1e-8]
    low = math.floor(math.log10(min(positive))) - 1
    high = max(math.ceil(math.log10(max(positive))), low + 2)

    def y(value: float) -> float:
        share = (max(math.log10(value), low) - low) / (high - low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Error of each call">']
    for power in range(low, high + 1, max(1, (high - low) // 7)):
        at = y(10.0**power)
        label = "0" if power == low else f"1e{power}"
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{label}</text>')
    scale = (_WIDTH - _LEFT - 12) / max(1, len(worst) - 1)
    for i, (row, value) in enumerate(zip(worst, values)):
        colour = _COLOURS[row.judged.verdict]
        fill = "#fff" if row.call.direction == "bwd" else colour
        title = f"{row.call.name} {row.call.module or ''} error {value:.2g}"
        parts.append(
            f'<circle cx="{_LEFT + 6 + i * scale:.1f}" cy="{y(value):.1f}" r="3" fill="{fill}" stroke="{colour}" '
            f'data-call="{row.index}"><title>{escape(title)}</title></circle>'
        )
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 6}">calls in order; hollow: backward</text></svg>')
    return "".join(parts)
