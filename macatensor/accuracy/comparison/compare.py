"""Two runs held against each other: pairs of calls, their tensors, distances and verdicts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from macatensor.accuracy.comparison import mistakes
from macatensor.accuracy.comparison import verdict as rules
from macatensor.accuracy.comparison.align import Pair, align, share_paired
from macatensor.accuracy.comparison.distance import Distance, of_summaries, of_tensors
from macatensor.accuracy.comparison.judge import Judge
from macatensor.accuracy.comparison.rows import CallRow, TensorRow
from macatensor.accuracy.comparison.verdict import SEVERITY
from macatensor.accuracy.elements import TensorEntry
from macatensor.accuracy.records import Argument, Process, Run, tensors_of

# fewer of the shorter run's API calls have a counterpart: not the same model
LEAST_PAIRED = 0.3

Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much

_COLLECTIVES = ("torch.distributed.", "c10d::", "c10d.", "_c10d_functional")


@dataclass
class Comparison:
    """What :func:`compare` found."""

    runs: tuple[Run, Run]
    calls: list[CallRow]
    notes: list[str]  # what a reader should know first: cut-off runs, ranks of one side only

    @property
    def verdict(self) -> rules.Verdict:
        return max((c.judged.verdict for c in self.calls), key=SEVERITY.__getitem__, default="pass")

    def counts(self, level: str) -> Counter[str]:
        """Calls of a level: ``pass``, ``warning``, ``error``, and ``paired``, ``moved``, ``only 0``, ``only 1``."""
        found: Counter[str] = Counter()
        for row in self.calls:
            if row.call.level != level:
                continue
            found[row.judged.verdict] += 1
            if row.pair.left is None or row.pair.right is None:
                found["only 1" if row.pair.left is None else "only 0"] += 1
            else:
                found["paired"] += 1
                found["moved"] += row.pair.moved
        return found

    def first_warning(self) -> CallRow | None:
        """The first call whose result is a warning; where none's is, the first call with a warning: a view of an input
        that differs says less than the call that made it."""
        for row in self.calls:
            if any(t.role == "output" and t.judged.verdict == "warning" for t in row.tensors):
                return row
        return self.first("warning")

    def _time(self) -> Callable[[CallRow], tuple[int, bool, int]]:
        """What orders the calls of all ranks: how many collectives the rank had called before. Of calls in the same
        interval a collective is the last: what is wrong in its result has come from a rank that was wrong before."""
        before: dict[int, int] = {}
        met: dict[int, int] = defaultdict(int)
        for row in self.calls:
            before[row.index] = met[row.rank]
            met[row.rank] += _is_collective(row)
        return lambda row: (before[row.index], _is_collective(row), row.index)

    def first(self, verdict: rules.Verdict = "error") -> CallRow | None:
        """The first call with a verdict, and of the calls inside of it again the first: where the runs part."""
        below: dict[int | None, list[CallRow]] = defaultdict(list)
        for row in self.calls:
            if row.judged.verdict == verdict:
                below[row.above].append(row)
        marked = {row.index for rows in below.values() for row in rows}
        tops = [row for rows in below.values() for row in rows if row.above not in marked]
        found = min(tops, key=self._time(), default=None)
        while found is not None and below.get(found.index):
            found = below[found.index][0]
        return found


def _is_collective(row: CallRow) -> bool:
    return row.call.op.startswith(_COLLECTIVES)


def _parts(place: str, entry: TensorEntry) -> Iterator[tuple[str, TensorEntry]]:
    """A tensor, or the parts of a sparse, quantized or nested one."""
    if entry.parts is None:
        yield place, entry
    else:
        for name, part in entry.parts.items():
            yield from _parts(f"{place}.{name}", part)


def _places(arguments: list[Argument]) -> dict[str, TensorEntry]:
    return {p: e for place, entry in tensors_of(arguments) for p, e in _parts(place, entry)}


def matched_tensors(
    left: list[Argument], right: list[Argument]
) -> Iterator[tuple[str, TensorEntry | None, TensorEntry | None]]:
    """Tensors of two calls by their place; those whose places differ (by position here, by keyword there) by order."""
    mine, others = _places(left), _places(right)
    rest = [p for p in mine if p not in others], [p for p in others if p not in mine]
    by_order = dict(zip(*rest)) if len(rest[0]) == len(rest[1]) else {}
    for place, entry in mine.items():
        yield place, entry, others.get(by_order.get(place, place))
    if not by_order:
        for place in rest[1]:
            yield place, None, others[place]


class _Measured:
    """Distances of two processes' tensors; what several calls share is read once."""

    def __init__(self, left: Process, right: Process):
        self.left, self.right = left, right
        self.known: dict[tuple[str | None, str | None, str | None, str | None], Distance] = {}

    def between(self, a: TensorEntry, b: TensorEntry) -> Distance | None:
        if a.shape != b.shape:
            return None
        same_bytes = a.hash is not None and a.hash == b.hash and a.dtype == b.dtype
        if same_bytes or a.file is None or b.file is None:
            return of_summaries(a, b)
        key = (a.file, a.key, b.file, b.key)
        found = self.known.get(key)
        if found is None:
            one, two = self.left.tensor(a), self.right.tensor(b)
            found = self.known[key] = of_tensors(one, two)
            summarize(a, one)
            summarize(b, two)
        return found


def summarize(entry: TensorEntry, tensor: object) -> None:
    """Fills in an entry's numbers where the record has none, as those of other tools."""
    import torch

    if entry.norm is not None or not isinstance(tensor, torch.Tensor) or not tensor.numel():
        return
    values = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()
    finite = values[values.isfinite()]
    entry.nan, entry.inf = int(values.isnan().sum()), int(values.isinf().sum())
    if finite.numel():
        entry.min, entry.max = float(finite.min()), float(finite.max())
        entry.mean, entry.norm = float(finite.mean()), float(finite.norm())


def _tree(rows: list[CallRow]) -> None:
    """Which row each row's call ran in."""
    left = {row.pair.left.number: row for row in rows if row.pair.left is not None}
    right = {row.pair.right.number: row for row in rows if row.pair.right is not None}
    for row in rows:
        call = row.call
        above = (
            (left if row.pair.left is not None else right).get(call.parent)
            if call.parent is not None
            else None
        )
        row.above = above.index if above is not None else None


def _processes(runs: tuple[Run, Run], notes: list[str]) -> list[tuple[Process, Process]]:
    """Processes of both runs by rank; several of a rank by their order."""
    by_rank: list[dict[int, list[Process]]] = []
    for run in runs:
        found: dict[int, list[Process]] = defaultdict(list)
        for process in run.processes:
            found[process.rank].append(process)
        by_rank.append(found)
    pairs: list[tuple[Process, Process]] = []
    for rank in sorted(by_rank[0].keys() | by_rank[1].keys()):
        left, right = by_rank[0].get(rank, []), by_rank[1].get(rank, [])
        pairs += zip(left, right)
        if len(left) != len(right):
            notes.append(
                f"rank {rank}: {len(left)} processes in run 0, {len(right)} in run 1; the rest is not compared"
            )
    if not pairs:
        raise ValueError(
            f"accuracy: no rank is in both runs: {sorted(by_rank[0])} in {runs[0].folder}, "
            f"{sorted(by_rank[1])} in {runs[1].folder}"
        )
    return pairs


def compare(
    run0: Run, run1: Run, *, progress: Progress | None = None, least_paired: float = LEAST_PAIRED
) -> Comparison:
    """Aligns two runs and judges every tensor.

    Args:
        run0: the reference.
        run1: the run that is examined.
        progress: called with what is done, how much of it and of how much.
        least_paired: the share of the shorter run's calls that must have a counterpart.

    Raises:
        ValueError: no rank in common, an empty run, different models, or elements that cannot be read.
    """
    notes = []
    for name, run in (("run 0", run0), ("run 1", run1)):
        for process in run.processes:
            if process.cut_off:
                notes.append(f"{name}, {process.folder.name}: cut off after {len(process.calls)} calls")
    rows: list[CallRow] = []
    for left, right in _processes((run0, run1), notes):
        fresh = _process(left, right, len(rows), progress, least_paired)
        rank = f"rank {left.rank}: " if len(run0.processes) > 1 else ""
        notes += [rank + sentence for sentence in mistakes.sentences(fresh)]
        rows += fresh
    return Comparison((run0, run1), rows, notes)


def _process(
    left: Process, right: Process, start: int, progress: Progress | None, least_paired: float
) -> list[CallRow]:
    for process in (left, right):
        if not process.calls:
            raise ValueError(f"accuracy: {process.folder} holds no call; was anything run while recording?")
    if progress is not None:
        progress("align", 0, 1)
    pairs = align(left.calls, right.calls)
    both, mine, others = share_paired(pairs)
    if both < least_paired * min(mine, others) or not both:
        raise ValueError(
            f"accuracy: these are records of different programs: of {mine} calls in {left.folder} and {others} in "
            f"{right.folder} only {both} have a counterpart (module path, API name, shapes); record the same model "
            f"on both sides, or accept fewer with least_paired (now {least_paired:g})"
        )
    measured = _Measured(left, right)
    rows = []
    for i, pair in enumerate(pairs):
        if progress is not None and i % 256 == 0:
            progress("compare", i, len(pairs))
        row = CallRow(start + i, left.rank, pair)
        stacks = []
        for process, call in ((left, pair.left), (right, pair.right)):
            stacks.append(
                process.stacks.get(call.stack, []) if call is not None and call.stack is not None else []
            )
        row.stacks = stacks[0], stacks[1]
        row.tensors = list(_tensors(pair, measured))
        rows.append(row)
    if progress is not None:
        progress("compare", len(pairs), len(pairs))
    _tree(rows)
    Judge(rows, left, right).run()
    return rows


def _tensors(pair: Pair, measured: _Measured) -> Iterator[TensorRow]:
    for role in ("input", "output"):
        sides = [getattr(c, f"{role}s") if c is not None else [] for c in (pair.left, pair.right)]
        for place, a, b in matched_tensors(sides[0], sides[1]):
            distance = measured.between(a, b) if a is not None and b is not None else None
            yield TensorRow(role, place, a, b, distance)
