"""A run as a picture: the ratio of each case with its bar, and its share of the machine's ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from macatensor.bench.result import Result
from macatensor.bench.stored import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# of a result that met its bar, missed it, has none; text; a bar
GREEN, RED, BLUE, TEXT, DARK = "#059669", "#dc2626", "#2563eb", "#475569", "#0f172a"
_COLOURS = {"met": GREEN, "missed": RED, "report": BLUE}
_STYLE: dict[str, object] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.edgecolor": "#cbd5e1",
    "axes.labelcolor": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "axes.axisbelow": True,
    "grid.color": "#e2e8f0",
    "grid.linewidth": 0.7,
    "xtick.color": TEXT,
    "ytick.color": DARK,
    "legend.frameon": False,
}
_MOST = 140.0  # percent: what stayed in a cache has a longer way to go, and says how far in figures
_LINE = 0.19  # inches of a case: 60 of them make a page of 13


def plot(run: Run, path: Path) -> int:
    """Writes the ratios of ``run`` as a figure, in the format that the name ends in; returns how many cases it shows.

    Results in seconds and bytes are not shown. Raises ModuleNotFoundError without matplotlib, ValueError where no case
    has a ratio or the format is not known, OSError where the file cannot be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    shown = [r for r in run.results if r.unit == "x" and r.value > 0]
    if not shown:
        raise ValueError("no case of this run has a ratio to draw")
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(11, 1.6 + _LINE * len(shown)), layout="constrained", dpi=120)
        ratios, shares = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        _ratios(ratios, shown)
        _shares(shares, shown)
        ratios.set_yticks(range(len(shown)), _names(shown))
        ratios.tick_params(axis="y", length=0)
        shares.tick_params(axis="y", length=0, labelleft=False)
        ratios.set_ylim(len(shown) - 0.4, -0.6)
        for axes in (ratios, shares):
            for i in range(1, len(shown)):  # a line between suites
                if _suite(shown[i]) != _suite(shown[i - 1]):
                    axes.axhline(i - 0.5, color="#94a3b8", linewidth=0.7)
        figure.suptitle(
            f"{run.processor}, {run.simd}, {run.threads} threads, PyTorch {run.pytorch}, {run.rounds} rounds"
            + (", quick: figures mean little" if run.quick else ""),
            fontsize=9,
        )
        figure.savefig(path)
    return len(shown)


def _suite(result: Result) -> str:
    return result.case.partition(".")[0]


def _names(results: Sequence[Result]) -> list[str]:
    """A case, and against what where that is not PyTorch."""
    return [r.case if r.baseline.startswith("native") else f"{r.case} / {r.baseline}" for r in results]


def _ratios(axes: Axes, results: Sequence[Result]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    rows, values = range(len(results)), [r.value for r in results]
    colours = [_COLOURS[r.verdict] for r in results]
    spreads = [r.spread or (r.value, r.value) for r in results]
    axes.hlines(rows, *zip(*spreads), colors=colours, linewidth=1.0, alpha=0.6)
    axes.scatter(values, rows, c=colours, s=16, zorder=3)
    bars = [(i, r.bar) for i, r in enumerate(results) if r.bar]
    if bars:
        at = [i for i, _ in bars]
        axes.vlines(
            [bar for _, bar in bars],
            [i - 0.38 for i in at],
            [i + 0.38 for i in at],
            colors=DARK,
            linewidth=1.4,
        )
    axes.axvline(1, color="#94a3b8", linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlabel("time over native PyTorch's (below 1: maca is faster)")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=10))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    marks = [
        Line2D([], [], color=GREEN, marker="o", markersize=4, label="bar met"),
        Line2D([], [], color=RED, marker="o", markersize=4, label="bar missed"),
        Line2D([], [], color=BLUE, marker="o", markersize=4, label="no bar"),
        Line2D([], [], color=DARK, marker="|", markersize=9, linestyle="none", label="bar"),
    ]
    axes.figure.legend(handles=marks, loc="outside lower left", ncols=4)


def _shares(axes: Axes, results: Sequence[Result]) -> None:
    percent = {i: 100 * r.rate.share for i, r in enumerate(results) if r.rate is not None}
    colours = [_COLOURS[results[i].verdict] for i in percent]
    shown = [min(p, _MOST) for p in percent.values()]
    bars = axes.barh(list(percent), shown, color=colours, height=0.6, alpha=0.75)
    axes.bar_label(bars, labels=[f"{p:.0f} %" for p in percent.values()], padding=2, fontsize=6.5, color=TEXT)
    axes.axvline(100, color="#94a3b8", linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlim(0, 1.15 * _MOST)
    axes.set_xlabel("share of the machine's ceiling in % (copy, read or multiply-add)")
