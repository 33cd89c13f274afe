"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path

from macatensor.demo import plots
from macatensor.demo.main import Demo


def error_text(value: float | None) -> str:
    """``0``, ``0.51``, ``3.1e-07``; nothing where there is no such measure."""
    if value is None or value != value:
        return ""
    if value == 0:
        return "0"
    if 100 <= value < 1e7:
        return f"{value:,.0f}"
    return f"{value:.3g}" if 0.01 <= value < 100 else f"{value:.1e}"


def write(demo: Demo, path: Path) -> Path:
    """Renders the page; returns where it lies."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("macatensor.demo", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["error"] = error_text
    sections = [
        {
            "training": training,
            "curves": plots.curves(training),
            "times": plots.seconds_per_op(records),
            "errors": plots.error_per_op(records),
            "records": sorted(records, key=lambda r: -r.seconds),
            "total": sum(r.seconds for r in records),
            "calls": sum(r.calls for r in records),
        }
        for training, records in zip(demo.trainings, demo.parity)
    ]
    html = environment.get_template("page.html.j2").render(
        demo=demo, sections=sections, operators=len({r.op for records in demo.parity for r in records})
    )
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")
    return path
