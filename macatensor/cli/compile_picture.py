"""The launches of compiled graphs as a picture: SVG, or a page of HTML that holds it."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from macatensor.compiling.explained import Explanation

_ROW, _WIDTH, _NAMES, _BARS = 18, 900, 400, 300  # pixels
_COLOURS = ("#4878a8", "#5a9a5a", "#b07a3a", "#8a5aa0", "#a85050", "#3a9a9a")


def write(explanations: Sequence[Explanation], path: Path) -> None:
    """As HTML where the path ends so, else as SVG."""
    picture = svg(explanations)
    if path.suffix == ".html":
        picture = f'<!doctype html><meta charset="utf-8"><title>Compiled graphs</title>{picture}\n'
    path.write_text(picture, encoding="utf-8")


def svg(explanations: Sequence[Explanation]) -> str:
    """A line for each operator, a bar as long as the bytes it reads and writes; what was fused stands in one frame."""
    largest = max((step.bytes for e in explanations for step in e.steps), default=1) or 1
    lines: list[str] = []
    y = _ROW
    for number, explanation in enumerate(explanations):
        programs = len({step.fused for step in explanation.steps} - {None})
        lines.append(_text(8, y, f"graph {number}: {len(explanation.steps)} operators, {explanation.launches} launches, "
                                 f"{programs} of them fused", bold=True))  # fmt: skip
        y += _ROW
        for begin, end, program in _runs(explanation):
            if program is not None:
                lines.append(
                    f'<rect x="4" y="{y - 13}" width="{_WIDTH - 8}" height="{(end - begin) * _ROW}" rx="4" fill="none" '
                    f'stroke="{_colour(program)}"/>'
                )
            for step in explanation.steps[begin:end]:
                name = step.operator.removeprefix("aten.").removesuffix(".default")
                lines.append(_text(12, y, f"{name}   {step.kernel} {step.implementation}"))
                lines.append(
                    f'<rect x="{_NAMES}" y="{y - 10}" width="{max(1.0, step.bytes / largest * _BARS):.1f}" height="11" '
                    f'fill="{_colour(program)}"/>'
                )
                into = "" if program is None else f", program {program}"
                lines.append(_text(_NAMES + _BARS + 8, y, f"{step.bytes / 2**10:,.1f} KiB{into}"))
                y += _ROW
        y += _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" font-family="monospace" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(lines)}</svg>'
    )


def _runs(explanation: Explanation) -> Iterator[tuple[int, int, int | None]]:
    """Neighbours of one program, and each that is in none: where they begin and end."""
    begin = 0
    steps = explanation.steps
    for end in range(1, len(steps) + 1):
        if end == len(steps) or steps[end].fused != steps[begin].fused or steps[begin].fused is None:
            yield begin, end, steps[begin].fused
            begin = end


def _colour(program: int | None) -> str:
    return "#888888" if program is None else _COLOURS[program % len(_COLOURS)]


def _text(x: int, y: int, text: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}"{weight}>{html.escape(text)}</text>'
