"""Two runs held against each other: pairs of calls, their tensors, distances and verdicts."""

from __future__ import annotations

import re
import reprlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from macatensor.accuracy.comparison import verdict as rules
from macatensor.accuracy.comparison.align import Pair, align, share_paired
from macatensor.accuracy.comparison.distance import Distance, elements, of_summaries, of_tensors
from macatensor.accuracy.comparison.verdict import SEVERITY, Judged, Sight
from macatensor.accuracy.elements import TensorEntry
from macatensor.accuracy.records import Argument, Call, Process, Run, tensors_of

_DEVICE = r"(torch\.)?(device\(.*|cpu|cuda|maca|meta)\b"
# fewer of the shorter run's API calls have a counterpart: not the same model
LEAST_PAIRED = 0.3

Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much


@dataclass(slots=True)
class TensorRow:
    """One tensor of a call, on both sides."""

    role: str  # "input" or "output"
    place: str
    left: TensorEntry | None
    right: TensorEntry | None
    distance: Distance | None = None
    inherited: float | None = None  # of an output: the inputs' error
    judged: Judged = field(default_factory=Judged)


@dataclass(slots=True)
class CallRow:
    """A pair of calls, or a call that only one run has, with its tensors and the worst of their verdicts."""

    index: int  # in the order of the first run
    rank: int
    pair: Pair
    tensors: list[TensorRow] = field(default_factory=list)
    judged: Judged = field(default_factory=Judged)
    above: int | None = None  # the index of the row of the call during which it ran
    stacks: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))

    @property
    def call(self) -> Call:
        return self.pair.call

    @property
    def error(self) -> float | None:
        """The largest error among its outputs, each as its rule took it."""
        found = [t.judged.error for t in self.tensors if t.role == "output" and t.judged.error is not None]
        return max(found, default=None)


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

    def first(self, verdict: rules.Verdict = "error") -> CallRow | None:
        """The first call with a verdict, and of the calls inside of it again the first: where the runs part."""
        below: dict[int | None, list[CallRow]] = defaultdict(list)
        for row in self.calls:
            if row.judged.verdict == verdict:
                below[row.above].append(row)
        marked = {row.index for rows in below.values() for row in rows}
        tops = [row for rows in below.values() for row in rows if row.above not in marked]
        found = min(tops, key=lambda r: r.index, default=None)
        while found is not None and below.get(found.index):
            found = below[found.index][0]
        return found


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


def arguments_differ(left: Call, right: Call) -> Iterator[str]:
    """Numbers and texts among the arguments that are not the same; the names of devices may differ."""
    mine, others = ({a.place: a.value for a in call.inputs if a.tensor is None} for call in (left, right))
    for place in {**mine, **others}:
        one, two = mine.get(place), others.get(place)
        if one == two or not all(v is None or isinstance(v, (bool, int, float, str)) for v in (one, two)):
            continue
        if all(v is None or isinstance(v, str) and re.match(_DEVICE, v) for v in (one, two)):
            continue
        if isinstance(one, float) and isinstance(two, float) and not _apart(one, two):
            continue
        yield f"argument {place}: {reprlib.repr(one)} against {reprlib.repr(two)}"


def _apart(one: float, two: float) -> bool:
    """More than rounding: a number may come out of the computation itself."""
    return one == one and two == two and abs(one - two) > 1e-3 * max(abs(one), abs(two))


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


def _group(place: str, op: str) -> str | None:
    """Of operators over lists of tensors, the element that an argument belongs to: its error explains only that one."""
    name = op.rpartition("aten.")[2]
    if name.startswith(("_foreach_", "_fused_", "_amp_foreach_")):
        return place.rpartition(".")[2]
    return None


def devices(process: Process) -> set[str]:
    """The kinds of device that a process's tensors were on."""
    found = set()
    for call in process.calls:
        for _, entry in (*tensors_of(call.inputs), *tensors_of(call.outputs)):
            found.add(entry.device.partition(":")[0])
    return found


def _dtypes(process: Process) -> set[str]:
    return {e.dtype for c in process.calls for _, e in (*tensors_of(c.inputs), *tensors_of(c.outputs))}


def _tf32(environment: dict[str, object]) -> bool:
    """Were products allowed to round their factors to 10 bits?"""
    flags = environment.get("flags")
    if not isinstance(flags, dict):
        return False
    allowed = [
        v for group in flags.values() if isinstance(group, dict) for k, v in group.items() if "tf32" in k
    ]
    return any(allowed) or flags.get("float32_matmul_precision", "highest") != "highest"


class _Judge:
    """Verdicts for one pair of processes."""

    def __init__(self, rows: list[CallRow], left: Process, right: Process):
        self.rows = rows
        self.numbers = {c.number for c in left.calls}
        self.of_left = {row.pair.left.number: row for row in rows if row.pair.left is not None}
        self.tf32 = any(_tf32(p.environment) for p in (left, right))
        self.dataflow = any(e.made_by is not None for c in left.calls for _, e in tensors_of(c.inputs))
        mixed = [_dtypes(p) for p in (left, right)]
        self.mixed = all(rules.mixes(m) for m in mixed) and devices(left) != devices(right)
        self.below: dict[int, list[CallRow]] = defaultdict(list)
        for row in rows:
            if row.above is not None:
                self.below[row.above].append(row)
        self.dtypes: dict[int, set[str]] = {}
        self.errors: dict[int, float] = {}  # the largest error among a call's tensors
        self.random: set[int] = set()

    def run(self) -> None:
        for row in reversed(self.rows):  # calls inside of others come after them
            if row.pair.left is None or row.pair.right is None:
                continue
            entries = [e for t in row.tensors for e in (t.left, t.right) if e is not None]
            dtypes = {e.dtype for e in entries if rules.floating(e.dtype)}
            inside = self.below.get(row.index, [])
            for child in inside:
                dtypes |= self.dtypes.get(child.index, set())
            self.dtypes[row.index] = dtypes
            if rules.is_random(row.pair.left, row.pair.right) or any(c.index in self.random for c in inside):
                self.random.add(row.index)
            self.errors[row.index] = max(
                (rules.input_error(t.left, t.distance) for t in row.tensors if t.left and t.distance),
                default=0.0,
            )
        for row in reversed(self.rows):
            self.row(row)

    def row(self, row: CallRow) -> None:
        left, right = row.pair.left, row.pair.right
        if left is None or right is None:
            row.judged = self._alone(row)
            return
        tolerance = rules.tolerance_of(self.dtypes[row.index], self.tf32)
        inputs = [t for t in row.tensors if t.role == "input"]
        self._inputs(left, inputs, tolerance)
        outputs = [t for t in row.tensors if t.role == "output"]
        below = self._below(row)
        for t in outputs:
            if t.left is None or t.right is None:
                t.judged = Judged("error", f"only run {0 if t.right is None else 1} has this result")
                continue
            kind = rules.short_name(left.op)
            if t.left.shape != t.right.shape and rules.is_kept(kind, t.place):
                t.judged = Judged(rule="kept for the backward: each device's own affair")
                continue
            wrong = rules.structure(t.left, t.right, self.mixed or kind in rules.CASTING)
            if t.distance is None:
                t.judged = wrong or Judged(rule="" if t.left.norm is not None else "structure only")
                continue
            group = _group(t.place, left.op)
            near = [i for i in inputs if group is None or _group(i.place, left.op) in (group, "")] or inputs
            sight = self._sight(row, near, tolerance, below)
            t.inherited = sight.inherited
            t.judged = rules.judge_output(t.left, t.distance, sight)
            if wrong is not None and SEVERITY[wrong.verdict] >= SEVERITY[t.judged.verdict]:
                wrong.error, wrong.bound = t.judged.error, t.judged.bound
                t.judged = wrong
        if (left.error is None) != (right.error is None):
            row.judged = Judged(
                "error", f"only run {0 if right.error is None else 1} raised: {left.error or right.error}"
            )
            return
        differing = next(arguments_differ(left, right), None)
        worst = max(row.tensors, key=lambda t: SEVERITY[t.judged.verdict], default=None)
        if worst is not None:
            row.judged = Judged(worst.judged.verdict, worst.judged.rule, row.error, worst.judged.bound)
            if worst.judged.rule and worst.judged.verdict != "pass":
                row.judged.rule = f"{worst.role} {worst.place}: {worst.judged.rule}"
        if differing is not None:
            rule = f"{row.judged.rule}; {differing}" if row.judged.verdict != "pass" else differing
            verdict = "warning" if row.judged.verdict == "pass" else row.judged.verdict
            row.judged = Judged(verdict, rule, row.judged.error, row.judged.bound)

    def _alone(self, row: CallRow) -> Judged:
        only = "only in run 1" if row.pair.left is None else "only in run 0"
        if not row.tensors:
            return Judged(rule=f"{only}: no tensor takes part")
        if row.call.level == "aten" and row.above is not None:
            above = self.rows_by_index(row.above)
            if above.pair.left is not None and above.pair.right is not None:
                return Judged(rule=f"{only}: the devices take {above.call.op} apart differently")
        return Judged("warning", only)

    def rows_by_index(self, index: int) -> CallRow:
        return self.rows[index - self.rows[0].index]

    def _inputs(self, call: Call, inputs: list[TensorRow], tolerance: rules.Tolerance) -> None:
        for t in inputs:
            if t.left is None or t.right is None:
                t.judged = Judged("warning", f"only run {0 if t.right is None else 1} has this input")
                continue
            wrong = rules.structure(t.left, t.right, self.mixed)
            if t.distance is not None:
                t.judged = rules.judge_input(t.left, t.distance, tolerance, self._made(call, t.left))
            if wrong is not None and SEVERITY[wrong.verdict] > SEVERITY[t.judged.verdict]:
                t.judged = wrong

    def _made(self, call: Call, entry: TensorEntry) -> rules.Origin:
        """By what was an input made? What autograd saved has lost its maker; other tools know none."""
        if not self.dataflow or call.direction == "bwd" or rules.short_name(call.op).endswith("backward"):
            return "judged"
        if entry.made_by is None or entry.made_by not in self.numbers:
            return "unknown"
        maker = self.of_left.get(entry.made_by)
        while maker is not None and maker.pair.right is None and maker.above is not None:
            maker = self.rows_by_index(maker.above)  # the devices take one function apart differently
        return "judged" if maker is None or maker.pair.right is not None else "alone"

    def _sight(
        self, row: CallRow, inputs: list[TensorRow], tolerance: rules.Tolerance, below: Judged | None
    ) -> Sight:
        left = row.pair.left
        assert left is not None
        known = [(t.left, t.distance) for t in inputs if t.left is not None and t.distance is not None]
        inherited = max((rules.input_error(e, d) for e, d in known), default=0.0)
        if left.direction == "bwd" and left.forward is not None:
            forward = self.of_left.get(left.forward)
            if forward is not None:  # what it saved
                inherited = max(inherited, self.errors.get(forward.index, 0.0))
        return Sight(
            kind=rules.short_name(left.op),
            direction=left.direction,
            tolerance=tolerance,
            inherited=inherited,
            inputs_equal=all(d.identical for _, d in known) and inherited == 0,
            input_norm=max((d.base_norm for e, d in known if rules.floating(e.dtype)), default=0.0),
            largest_input=max((elements(e.shape) for e, _ in known), default=0),
            random=row.index in self.random,
            summaries=not any(t.left is not None and t.left.file is not None for t in row.tensors),
            below=below,
        )

    def _below(self, row: CallRow) -> Judged | None:
        """What the calls inside of an API call say of it; None when they do not say all."""
        inside = self.below.get(row.index, [])
        if row.call.level != "api" or not inside:
            return None
        paired = [c for c in inside if c.pair.left is not None and c.pair.right is not None]
        if any(c.call.level == "api" for c in paired):
            return Judged("pass", "judged by the calls inside of it")
        if len(paired) < len(inside):
            return None
        worst = max(paired, key=lambda c: SEVERITY[c.judged.verdict])
        if worst.judged.verdict == "pass":
            return Judged("pass", "no operator inside of it breaks its bound")
        return Judged(worst.judged.verdict, f"{worst.call.name} inside of it: {worst.judged.rule}")


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
        rows += _process(left, right, len(rows), progress, least_paired)
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
    _Judge(rows, left, right).run()
    return rows


def _tensors(pair: Pair, measured: _Measured) -> Iterator[TensorRow]:
    for role in ("input", "output"):
        sides = [getattr(c, f"{role}s") if c is not None else [] for c in (pair.left, pair.right)]
        for place, a, b in matched_tensors(sides[0], sides[1]):
            distance = measured.between(a, b) if a is not None and b is not None else None
            yield TensorRow(role, place, a, b, distance)
