"""``gen_report``: two runs compared, and the files that say so."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from macatensor.accuracy import sources
from macatensor.accuracy.comparison.columns import COLUMNS, Value, cells
from macatensor.accuracy.comparison.compare import LEAST_PAIRED, Comparison, Progress, compare
from macatensor.accuracy.comparison.judge import devices
from macatensor.accuracy.comparison.rows import CallRow, TensorRow
from macatensor.accuracy.comparison.sentences import describe
from macatensor.accuracy.output_folder import output_folder
from macatensor.accuracy.records import CALLS, ENVIRONMENT, Run
from macatensor.files.tables import write_csv

NAME = "accuracy_report"


@dataclass(repr=False)
class Report:
    """What a comparison found, and the files that hold it."""

    comparison: Comparison
    paths: dict[str, Path] = field(default_factory=dict)  # "csv", "html", "xlsx"
    missing: dict[str, str] = field(default_factory=dict)  # a file that was not written, and why

    def __str__(self) -> str:
        return summary(self)

    __repr__ = __str__  # the records of both runs are in it

    @property
    def verdict(self) -> str:
        """The worst verdict: "pass", "warning" or "error"."""
        return self.comparison.verdict

    @property
    def first(self) -> CallRow | None:
        """The first call that is an error: where the runs part."""
        return self.comparison.first()

    @property
    def rows(self) -> list[dict[str, Value]]:
        """A dictionary for each tensor, and for each call without any, by the names of the columns."""
        names = [c.name for c in COLUMNS]
        return [dict(zip(names, cells(row, t))) for row, t in lines(self.comparison.calls)]

    def facts(self, limit: int = 200) -> dict[str, object]:
        """The summary as JSON has it, with the first ``limit`` calls that do not pass."""
        found = self.comparison
        suspects = [row for row in found.calls if row.judged.verdict != "pass"]
        suspects.sort(key=lambda r: (r.judged.verdict != "error", r.index))
        first = self.first
        return {
            "verdict": self.verdict,
            "runs": [str(run.folder) for run in found.runs],
            "calls": {level: dict(found.counts(level)) for level in ("api", "aten")},
            "first_divergence": None if first is None else call_facts(first),
            "not_passing": [call_facts(row) for row in suspects[:limit]],
            "not_shown": max(0, len(suspects) - limit),
            "notes": found.notes,
            "files": {kind: str(path) for kind, path in self.paths.items()},
            "not_written": self.missing,
        }


def call_facts(row: CallRow) -> dict[str, object]:
    """One call as JSON has it."""
    names = [c.name for c in COLUMNS]
    shown = dict(zip(names, cells(row, None)))
    kept = (
        "index",
        "rank",
        "verdict",
        "rule",
        "level",
        "run 0",
        "run 1",
        "alignment",
        "module",
        "error",
        "stack 0",
        "stack 1",
    )
    return {name: shown[name] for name in kept}


def lines(calls: list[CallRow]) -> Iterator[tuple[CallRow, TensorRow | None]]:
    """What stands in a line of the files: a tensor, or a call without any, or a call that one run lacks."""
    for row in calls:
        if row.pair.left is None or row.pair.right is None or not row.tensors:
            yield row, None
        else:
            for t in row.tensors:
                yield row, t


def _refuse(folders: tuple[Path, Path], runs: tuple[Run, Run], cpu_against_cpu: bool) -> None:
    """A run against itself, and the CPU against the CPU: what a mistake looks like."""
    if runs[0].folder.resolve() == runs[1].folder.resolve():
        raise ValueError(
            f"accuracy: {runs[0].folder} would be compared with itself; name the folders of two runs"
        )
    originals = []
    for run in runs:
        files = [p.folder / ENVIRONMENT for p in run.processes]
        originals.append([f.read_bytes() + (f.parent / CALLS).read_bytes() for f in files if f.is_file()])
    if originals[0] and originals[0] == originals[1]:
        raise ValueError(
            f"accuracy: {runs[1].folder} is a copy of {runs[0].folder}: the same process wrote both"
        )
    kinds = [set().union(*(devices(p) for p in run.processes)) for run in runs]
    if not cpu_against_cpu and kinds == [{"cpu"}, {"cpu"}]:
        raise ValueError(
            "accuracy: both runs have tensors of the CPU only, so nothing of a device would be examined; was the model "
            "moved to the device? To compare two CPU runs, pass cpu_against_cpu=True (--cpu-against-cpu)"
        )


def _free_stem(folder: Path) -> Path:
    """``accuracy_report``, or the first of ``accuracy_report_2``, … that no file has yet."""
    count = 1
    while True:
        stem = folder / (NAME if count == 1 else f"{NAME}_{count}")
        if not any(folder.glob(f"{stem.name}.*")):
            return stem
        count += 1


def _write_csv(comparison: Comparison, path: Path) -> None:
    write_csv(path, [c.name for c in COLUMNS], (cells(row, t) for row, t in lines(comparison.calls)))


def make_report(
    dir0: str | Path,
    dir1: str | Path,
    output_dir: str | Path = "./",
    *,
    cpu_against_cpu: bool = False,
    least_paired: float = LEAST_PAIRED,
    progress: Progress | None = None,
) -> Report:
    """As :func:`gen_report`, and prints nothing."""
    with _no_collector():
        return _report(dir0, dir1, output_dir, cpu_against_cpu, least_paired, progress)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Millions of records are made and none of them lies in a cycle: looking for those took 26 of 96 s for 100,000 calls."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _report(
    dir0: str | Path,
    dir1: str | Path,
    output_dir: str | Path,
    cpu_against_cpu: bool,
    least_paired: float,
    progress: Progress | None,
) -> Report:
    from macatensor.accuracy.comparison import page

    folders = Path(dir0), Path(dir1)
    if folders[0].resolve() == folders[1].resolve():
        raise ValueError(
            f"accuracy: {folders[0]} would be compared with itself; name the folders of two runs"
        )
    output = output_folder(output_dir)
    runs = []
    for i, folder in enumerate(folders):
        if progress is not None:
            progress("read", i, 2)
        runs.append(sources.read(folder))
    _refuse(folders, (runs[0], runs[1]), cpu_against_cpu)
    report = Report(compare(runs[0], runs[1], progress=progress, least_paired=least_paired))
    output.mkdir(parents=True, exist_ok=True)
    stem = _free_stem(output)
    writers = {"csv": _write_csv, "html": page.write, "xlsx": _write_workbook}
    for i, (kind, write) in enumerate(writers.items()):
        if progress is not None:
            progress(f"write {kind}", i, len(writers))
        path = stem.with_name(f"{stem.name}.{kind}")
        try:
            write(report.comparison, path)
        except ModuleNotFoundError as error:
            report.missing[kind] = f"{error}; pip install 'macatensor[accuracy]'"
        else:
            report.paths[kind] = path.resolve()
    if progress is not None:
        progress("write", len(writers), len(writers))
    return report


def _write_workbook(comparison: Comparison, path: Path) -> None:
    from macatensor.accuracy.comparison import workbook

    workbook.write(comparison, path)


def gen_report(
    dir0: str | Path,
    dir1: str | Path,
    output_dir: str | Path = "./",
    *,
    cpu_against_cpu: bool = False,
    least_paired: float = LEAST_PAIRED,
) -> Report:
    """Compares two recorded runs, writes a workbook, a page and a CSV file, and prints a short summary.

    Args:
        dir0: the reference's folder: of ``start_record``, of mcPyTorch's maca_tools or of msprobe.
        dir1: the folder of the run that is examined.
        output_dir: where ``accuracy_report.xlsx``, ``.html`` and ``.csv`` go; files that are there are kept, and the
            new ones numbered.
        cpu_against_cpu: compare two runs of the CPU, which is refused otherwise: it is mostly a mistake.
        least_paired: the share of the shorter run's calls that must have a counterpart, else these are two models.

    Returns:
        A report with ``verdict``, ``first`` (the first divergence), ``rows``, ``paths``, ``comparison``.

    Raises:
        ValueError: no record, a damaged or mixed one, two different models, a run against itself. Nothing is written.
    """
    report = make_report(dir0, dir1, output_dir, cpu_against_cpu=cpu_against_cpu, least_paired=least_paired)
    print(summary(report))
    return report


def summary(report: Report) -> str:
    """A few lines in plain text."""
    found = report.comparison
    out = [f"accuracy: {report.verdict}"]
    for level in ("api", "aten"):
        counts = found.counts(level)
        if counts:
            out.append(
                f"  {level} calls: {counts['paired']} paired ({counts['moved']} moved), {counts['only 0']} only in run 0, "
                f"{counts['only 1']} only in run 1; {counts['error']} errors, {counts['warning']} warnings"
            )
    first = report.first
    if first is not None:
        out.append(f"  first divergence: {describe(first)}")
        for side, stack in enumerate(first.stacks):
            if stack:
                out.append(f"    run {side}: {stack[-1]}")
    out += [f"  {note}" for note in found.notes]
    out += [f"  {kind}: {path}" for kind, path in report.paths.items()]
    out += [f"  no {kind}: {why}" for kind, why in report.missing.items()]
    return "\n".join(out)
