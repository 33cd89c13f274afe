"""The plots of the page, as SVG text."""

from __future__ import annotations

from typing import Any

from macatensor.bench.ceilings import Ceilings
from macatensor.bottlenecks.summary import Held, Moment, Shares, Work
from macatensor.demo.plots import BLUE, GRAY, GREEN, ORANGE, PALE, RED, STYLE, blank, svg

PARTS = (  # of a step: name, colour, what it means
    ("kernel", BLUE, "the device computes"),
    ("launch", ORANGE, "PyTorch and the launch, device idle"),
    ("python", RED, "Python between operators, device idle"),
    ("idle", GRAY, "everything waits"),
)
_MANY = 10  # bars
_NAMED = 5  # points of the roofline
_LEAST = 0.01  # operations a byte: what has fewer moves data, and is no point of the roofline


def shares(of: Shares) -> str:
    """One bar: where the time of a step goes."""
    import matplotlib

    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure, axes = blank(11.2, 1.0)
        left = 0.0
        for name, colour, meaning in PARTS:
            width = 100 * getattr(of, name)
            axes.barh([0], [width], left=left, color=colour, height=0.7, label=f"{name}: {meaning}")
            if width > 4:
                axes.text(left + width / 2, 0, f"{width:.0f} %", ha="center", va="center", color="white", fontsize=11, weight="bold")  # fmt: skip
            left += width
        axes.set_xlim(0, 100)
        axes.set_axis_off()
        figure.legend(loc="outside lower center", ncols=4, fontsize=8.5)
        return svg(figure)


def times(works: list[Work], total: float) -> str:
    """Horizontal bars: what takes the device's time in a step, in ms."""
    import matplotlib

    shown = works[:_MANY]
    names = [f"{w.name}  x{w.calls:,.0f}" for w in shown]
    values = [1e3 * w.seconds for w in shown]
    if len(works) > _MANY:
        names.append(f"{len(works) - _MANY} others")
        values.append(max(0.0, 1e3 * total - sum(values)))
    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "x"}):
        figure, axes = blank(5.6, 0.6 + 0.27 * len(names))
        bars = axes.barh(
            names, values, color=[BLUE] * len(shown) + [GRAY] * (len(names) - len(shown)), height=0.66
        )
        axes.bar_label(bars, labels=[f"{v:.2f}" for v in values], padding=3, fontsize=8, color="#475569")
        axes.invert_yaxis()
        axes.margins(x=0.1)
        axes.set_xlabel("ms of the device in one step")
        return svg(figure)


def roofline(works: list[Work], ceilings: Ceilings) -> str:
    """Operations a second over operations a byte, beneath what this machine can do at most."""
    import matplotlib
    import numpy

    points = [w for w in works if w.bytes and w.seconds and w.flops > _LEAST * w.bytes]
    peak, loop = ceilings.arithmetic
    with matplotlib.rc_context(STYLE):
        figure, axes = blank(5.6, 3.5)
        ridge = peak / ceilings.copy
        at = [w.flops / w.bytes for w in points] + [ridge / 30, ridge * 3]
        x = numpy.geomspace(min(at) / 3, max(at) * 4, 200)
        axes.plot(x, numpy.minimum(x * ceilings.copy, peak) / 1e9, color=GREEN, linewidth=1.8)
        axes.text(
            x[-1],
            peak / 1e9,
            f"{peak / 1e9:.0f} Gflop/s ({loop})",
            ha="right",
            va="bottom",
            fontsize=8,
            color=GREEN,
        )
        axes.annotate(f"{ceilings.copy / 1e9:.1f} GB/s", (x[20], x[20] * ceilings.copy / 1e9), xytext=(-2, 8),
                      textcoords="offset points", fontsize=8, color=GREEN, ha="center")  # fmt: skip
        longest = max((w.seconds for w in points), default=1.0)
        for i, w in enumerate(points):
            where = w.flops / w.bytes, w.flops / w.seconds / 1e9
            size = 24 + 500 * w.seconds / longest
            axes.scatter(*where, s=size, color=BLUE, alpha=0.55 if i < _NAMED else 0.25, linewidth=0)
            if i < _NAMED:
                way = 1 if i % 2 else -1  # neighbours' names on either side
                axes.annotate(w.name, where, xytext=(0, way * (5 + size**0.5 / 2)), textcoords="offset points",
                              fontsize=7.5, ha="center", va="center", color="#0f172a")  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("operations a byte")
        axes.set_ylabel("10⁹ operations a second")
        return svg(figure)


def memory(moments: list[Moment]) -> str:
    """Memory in use over a step."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, axes = blank(5.6, 3.1)
        x = [1e3 * m.seconds for m in moments]
        y = [m.bytes / 2**20 for m in moments]
        axes.fill_between(x, y, step="post", color=PALE, linewidth=0)
        axes.step(x, y, where="post", color=BLUE, linewidth=1.3)
        top = max(range(len(y)), key=y.__getitem__)
        axes.plot(x[top], y[top], "o", color=RED, markersize=5)
        axes.annotate(f"{y[top]:,.1f} MiB", (x[top], y[top]), xytext=(0, 6), textcoords="offset points",
                      ha="center", color=RED, fontsize=9)  # fmt: skip
        axes.set_xlabel("ms of a traced step")
        axes.set_ylabel("MiB in use")
        axes.set_ylim(bottom=0)
        axes.margins(y=0.15)
        return svg(figure)


def held(parts: list[Held], most: int = 8) -> str:
    """Horizontal bars: what was in use at the peak."""
    import matplotlib

    shown = parts[:most]
    names = [f"{h.what}  {h.line}" if h.line.file else h.what for h in shown]
    values = [h.bytes / 2**20 for h in shown]
    if len(parts) > most:
        names.append(f"{len(parts) - most} others")
        values.append(sum(h.bytes for h in parts[most:]) / 2**20)
    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "x"}):
        figure, axes = blank(5.6, 0.6 + 0.27 * len(names))
        bars: Any = axes.barh(
            names,
            values,
            color=[BLUE if h.line.file else GREEN for h in shown] + [GRAY] * (len(names) - len(shown)),
            height=0.66,
        )
        axes.bar_label(bars, labels=[f"{v:,.2f}" for v in values], padding=3, fontsize=8, color="#475569")
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel("MiB at the peak (green: there before the step)")
        return svg(figure)
