"""What a run came to, written down: a page with a badge, JSON, and JUnit XML for continuous integration."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from macatensor.conformance.outcome import ABSENT, FAIL, Line
from macatensor.conformance.runner import LEVELS


@dataclass(frozen=True)
class Summary:
    """One level's counts by verdict."""

    level: int
    title: str
    counts: dict[str, int]
    seconds: float

    @property
    def holds(self) -> bool:
        return not self.counts.get(FAIL)


def summaries(lines: Sequence[Line]) -> list[Summary]:
    """The levels that were asked, in order."""
    return [
        Summary(level, title, dict(Counter(x.verdict for x in of_level)), sum(x.seconds for x in of_level))
        for level, title in LEVELS.items()
        if (of_level := [x for x in lines if x.level == level])
    ]


def reached(lines: Sequence[Line]) -> int:
    """The highest level up to which all that was asked holds; -1: not even level 0."""
    level = -1
    for summary in summaries(lines):
        if not summary.holds or summary.level != level + 1:
            break
        level = summary.level
    return level


def badge(lines: Sequence[Line]) -> str:
    """An SVG: ``maca | level 3``."""
    level = reached(lines)
    right = f"level {level}" if level >= 0 else "does not conform"
    colour = (
        "#047857"
        if all(s.holds for s in summaries(lines)) and level >= 0
        else "#b45309"
        if level >= 0
        else "#b91c1c"
    )
    width = 8 * len(right) + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{52 + width}" height="20" role="img" '
        f'aria-label="maca: {right}"><rect width="{52 + width}" height="20" rx="3" fill="#334155"/>'
        f'<rect x="52" width="{width}" height="20" rx="3" fill="{colour}"/>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="26" y="14">maca</text><text x="{52 + width / 2}" y="14">{right}</text></g></svg>'
    )


def junit(lines: Sequence[Line]) -> str:
    """A testsuite a level, a testcase a line; what is declined or absent is skipped."""
    root = ET.Element("testsuites", name="macatensor conform")
    for summary in summaries(lines):
        mine = [x for x in lines if x.level == summary.level]
        suite = ET.SubElement(
            root, "testsuite", name=f"level {summary.level}: {summary.title}", tests=str(len(mine)),
            failures=str(summary.counts.get(FAIL, 0)), errors="0",
            skipped=str(sum(x.verdict not in ("pass", FAIL) for x in mine)), time=f"{summary.seconds:.3f}",
        )  # fmt: skip
        for line in mine:
            case = ET.SubElement(
                suite,
                "testcase",
                classname=f"level{line.level}.{line.group}",
                name=line.name,
                time=f"{line.seconds:.3f}",
            )
            if line.verdict == FAIL:
                ET.SubElement(case, "failure", message=_clean(line.text)).text = _clean(
                    f"{line.text}\n{line.sentence}\n{line.remedy}".strip()
                )
            elif line.verdict != "pass":
                ET.SubElement(case, "skipped", message=_clean(line.text or line.verdict))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    """What XML may hold: a library's text may have anything."""
    return "".join(
        c if c in "\t\n" or (" " <= c <= "\ud7ff") or "\ue000" <= c <= "\ufffd" else "?" for c in text
    )


def write(lines: Sequence[Line], library: Path, step: str, path: Path) -> Path:
    """Renders the page, with the badge beside it; returns where it lies."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("macatensor.conformance", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    levels = [(s, [x for x in lines if x.level == s.level]) for s in summaries(lines)]
    html = environment.get_template("page.html.j2").render(
        library=library.name, levels=levels, badge=badge(lines), step=step, FAIL=FAIL, ABSENT=ABSENT,
        failures=[x for x in lines if x.verdict == FAIL], samples=sum(x.samples for x in lines),
    )  # fmt: skip
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")
    path.with_suffix(".svg").write_text(badge(lines), encoding="utf-8")
    return path
