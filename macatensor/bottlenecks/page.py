"""The report of a profiled program: one HTML file that needs nothing else, and the same as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from macatensor.bench.ceilings import Ceilings
from macatensor.bottlenecks import plots
from macatensor.bottlenecks.findings import Finding
from macatensor.bottlenecks.lines import NOWHERE, Line
from macatensor.bottlenecks.session import WARM_UP
from macatensor.bottlenecks.summary import Summary, Work
from macatensor.demo.main import environment
from macatensor.runtime.ffi import size_text

_ROWS = 40  # of a table


@dataclass(frozen=True)
class Row:
    """A line of a table on what the host sees: ``count`` in a step."""

    line: Line
    what: str
    count: str
    name: str = ""


def basis(summary: Summary) -> str:
    """What the figures rest on, in a sentence."""
    session = summary.session
    end = f"a step ends with {session.clock.source}" if session.clock.source else "no step was found in it"
    if not summary.is_warm:
        return (
            f"The whole run as one, as {end}, or fewer than {WARM_UP + 1} ended: building plans is part of it, and Python is "
            "overstated, because its lines were noted."
        )
    stopped = "; then the program was stopped" if session.is_stopped else ""
    return f"{len(summary.timed)} steps timed and {len(summary.traced)} traced after {session.warm_up} of warm-up{stopped}; {end}."


def _calls(value: float) -> str:
    return f"{value:,.0f}" if value >= 0.95 else f"{value:.1f}"


def _row(work: Work, summary: Summary, ceilings: Ceilings | None) -> dict[str, object]:
    share = work.seconds / summary.kernel_seconds if summary.kernel_seconds else 0.0
    rate = work.bytes / work.seconds if work.seconds else 0.0
    arithmetic = work.flops / work.seconds if work.seconds else 0.0
    reached = None
    if ceilings is not None:
        reached = max(rate / ceilings.copy, arithmetic / ceilings.arithmetic[0])
    return {
        "name": work.name,
        "implementation": work.implementation,
        "calls": _calls(work.calls),
        "ms": f"{1e3 * work.seconds:.3f}",
        "each": f"{1e6 * work.seconds / work.calls:,.1f}" if work.calls else "",
        "share": f"{share:.1%}",
        "bandwidth": f"{rate / 1e9:.1f}",
        "arithmetic": f"{arithmetic / 1e9:.2f}" if work.flops else "",
        "ceiling": "" if reached is None else f"{reached:.0%}",
        "line": work.line if work.line is not NOWHERE else "",
    }


def _waits(summary: Summary) -> list[Row]:
    counted = Counter((w.line, w.what) for s in summary.traced for w in s.waits)
    return [
        Row(line, what, _calls(summary.per_step(n))) for (line, what), n in counted.most_common(_ROWS // 4)
    ]


def _copies(summary: Summary) -> list[Row]:
    counted: Counter[tuple[Line, str, str]] = Counter()
    for c in summary.calls:
        for what, n in (
            ("changes the layout", c.conversions),
            ("makes dense", c.strided),
            ("on the host", c.fallbacks),
        ):
            if n:
                counted[c.line, c.name, what] += n
    return [
        Row(line, what, _calls(summary.per_step(n)), name)
        for (line, name, what), n in counted.most_common(_ROWS // 2)
    ]


def write(
    path: Path, name: str, summary: Summary, findings: list[Finding], ceilings: Ceilings | None
) -> Path:
    """Renders the page of the program ``name``; returns where it lies."""
    import jinja2

    environment_ = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader("macatensor.bottlenecks", ""), jinja2.PackageLoader("macatensor.demo", "")]
        ),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    works = summary.operators
    html = environment_.get_template("page.html.j2").render(
        name=name,
        basis=basis(summary),
        summary=summary,
        peak=size_text(summary.peak),
        findings=findings,
        shares=plots.shares(summary.shares),
        times=plots.times(works, summary.kernel_seconds),
        roofline=plots.roofline(works, ceilings) if ceilings is not None else "",
        operators=[_row(w, summary, ceilings) for w in works[:_ROWS]],
        kernels=[_row(w, summary, ceilings) for w in summary.kernels[:_ROWS]],
        waits=_waits(summary),
        host_lines=[(line, share) for line, share in summary.host_lines[:10] if share >= 0.001],
        copies=_copies(summary),
        memory=plots.memory(summary.memory) if summary.memory else "",
        held=plots.held(summary.at_peak) if summary.memory else "",
        environment=environment(),
    )
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")
    return path


def _line(line: Line) -> dict[str, object] | None:
    return {"file": line.file, "line": line.number, "code": line.code} if line is not NOWHERE else None


def facts(
    name: str,
    summary: Summary,
    findings: list[Finding],
    ceilings: Ceilings | None,
    page: Path | None,
    status: int,
) -> dict[str, object]:
    """The report as JSON-able values; times in seconds of one step, memory in bytes."""

    def work(w: Work) -> dict[str, object]:
        return {
            "name": w.name,
            "implementation": w.implementation,
            "calls": w.calls,
            "seconds": w.seconds,
            "bytes": w.bytes,
            "flops": w.flops,
            "line": _line(w.line),
        }

    return {
        "program": name,
        "exit_status": status,
        "stopped": summary.session.is_stopped,
        "steps": {
            "timed": len(summary.timed),
            "traced": len(summary.traced),
            "end": summary.session.clock.source,
        },
        "seconds": summary.seconds,
        "shares": asdict(summary.shares),
        "launches": summary.launches,
        "findings": [
            {
                "kind": f.kind,
                "title": f.title,
                "text": f.text,
                "remedy": f.remedy,
                "share": f.share,
                "lines": [_line(line) for line in f.lines],
            }
            for f in findings
        ],
        "operators": [work(w) for w in summary.operators],
        "kernels": [work(w) for w in summary.kernels],
        "waits": [{**asdict(row), "line": _line(row.line)} for row in _waits(summary)],
        "copies": [{**asdict(row), "line": _line(row.line)} for row in _copies(summary)],
        "host_lines": [{"share": share, "line": _line(line)} for line, share in summary.host_lines],
        "memory": [asdict(moment) for moment in summary.memory],
        "at_peak": [{"what": h.what, "bytes": h.bytes, "line": _line(h.line)} for h in summary.at_peak],
        "ceilings": None if ceilings is None else asdict(ceilings),
        "environment": environment(),
        "page": page and str(page),
    }
