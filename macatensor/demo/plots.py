"""The report's plots, as SVG text that stands in a page."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

from macatensor.demo.training import Training

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from macatensor.parity.step import OpRecord

BLUE, PALE, ORANGE, GREEN, RED, GRAY = "#2563eb", "#bfd3fb", "#d97706", "#059669", "#dc2626", "#64748b"
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": "#cbd5e1",
    "axes.labelcolor": "#475569",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e2e8f0",
    "grid.linewidth": 0.7,
    "xtick.color": "#475569",
    "ytick.color": "#475569",
    "legend.frameon": False,
    "svg.hashsalt": "macatensor",  # the same figure gives the same file
}


def blank(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of that many inches and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def svg(figure: Figure) -> str:
    """The figure as the text of an SVG element."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]  # an XML declaration has no place inside HTML


def smoothed(values: list[float], span: int = 15) -> list[float]:
    """The exponential moving average with PyTorch Lightning's and Adam's correction of the start."""
    decay, mean, out = 1 - 1 / span, 0.0, []
    for i, value in enumerate(values):
        mean = decay * mean + (1 - decay) * value
        out.append(mean / (1 - decay ** (i + 1)))
    return out


def curves(training: Training) -> str:
    """Training loss, its moving average, the metric and its bar over steps."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, axes = blank(7.2, 3.1)
        steps = [s for s, _ in training.losses]
        losses = [v for _, v in training.losses]
        axes.plot(steps, losses, color=PALE, linewidth=0.9, label="training loss")
        axes.plot(steps, smoothed(losses), color=BLUE, linewidth=1.8, label="its moving average")
        axes.set_xlabel("step")
        axes.set_ylabel("loss (nats)")
        axes.set_xlim(left=0)
        other = axes
        scale = 1.0
        if training.higher_is_better:  # an accuracy has an axis of its own
            other = axes.twinx()
            other.spines["right"].set_visible(True)
            other.grid(False)
            other.set_ylabel(f"{training.metric} (%)")
            other.set_ylim(0, 102)
            axes.set_ylim(bottom=0)
            scale = 100.0
        other.plot(
            [s for s, _ in training.metrics],
            [scale * v for _, v in training.metrics],
            color=ORANGE, marker="o", markersize=4, linewidth=1.5, label=training.metric,
        )  # fmt: skip
        other.axhline(scale * training.bar, color=GREEN, linestyle=(0, (5, 3)), linewidth=1.2, label="bar")
        handles, labels = axes.get_legend_handles_labels()
        if other is not axes:
            more = other.get_legend_handles_labels()
            handles, labels = handles + more[0], labels + more[1]
        figure.legend(handles, labels, loc="outside upper center", ncols=4)
        return svg(figure)


def seconds_per_op(records: list[OpRecord], most: int = 14) -> str:
    """Horizontal bars: where one step's time goes."""
    import matplotlib

    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    for r in records:  # one operator has a record for each layout
        seconds[r.op] = seconds.get(r.op, 0.0) + r.seconds
        calls[r.op] = calls.get(r.op, 0) + r.calls
    slowest = sorted(seconds, key=lambda op: -seconds[op])[:most]
    names = [f"{op}  x{calls[op]}" for op in slowest]
    values = [1e3 * seconds[op] for op in slowest]
    if len(seconds) > most:
        names.append(f"{len(seconds) - most} others")
        values.append(1e3 * sum(seconds.values()) - sum(values))
    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "x"}):
        figure, axes = blank(5.6, 0.6 + 0.235 * len(names))
        bars = axes.barh(names, values, color=[BLUE] * len(slowest) + [GRAY], height=0.66)
        axes.bar_label(bars, labels=[f"{v:.2f}" for v in values], padding=3, fontsize=8, color="#475569")
        axes.invert_yaxis()
        axes.margins(x=0.09)
        axes.set_xlabel("ms in one step")
        return svg(figure)


def error_per_op(records: list[OpRecord]) -> str:
    """The largest relative error of each operator that computes, on a logarithmic axis; exact ones at the left edge."""
    import matplotlib

    errors: dict[str, float] = {}
    failed: set[str] = set()
    for r in records:
        if r.row_kind != "view" and r.max_rel is not None and math.isfinite(r.max_rel):
            errors[r.op] = max(errors.get(r.op, 0.0), r.max_rel)
            if r.verdict.startswith("FAIL"):
                failed.add(r.op)
    shown = sorted(errors, key=lambda op: errors[op])
    nonzero = [e for e in errors.values() if e]
    edge = 10.0 ** (math.floor(math.log10(min(nonzero))) - 1) if nonzero else 1e-9
    values = [errors[op] or edge for op in shown]
    colours = [RED if op in failed else BLUE if errors[op] else GREEN for op in shown]
    with matplotlib.rc_context(STYLE):
        figure, axes = blank(5.6, 0.7 + 0.205 * len(shown))
        rows = range(len(shown))
        axes.hlines(rows, edge, values, color="#cbd5e1", linewidth=1)
        axes.scatter(values, rows, color=colours, s=22, zorder=3)
        axes.axvline(2.0**-24, color=ORANGE, linestyle=(0, (5, 3)), linewidth=1)
        axes.text(2.0**-24, len(shown) - 0.3, " half a float32 ulp", color=ORANGE, fontsize=8, va="bottom")
        axes.set_xscale("log")
        axes.set_yticks(rows, shown, fontsize=8)
        axes.set_ylim(-0.8, len(shown) + 0.4)
        axes.set_xlabel("largest relative error (green: exact, red: outside its bound)")
        return svg(figure)
