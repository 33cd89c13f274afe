"""Verdicts of two processes' calls, by the rules of :mod:`macatensor.accuracy.comparison.verdict`."""

from __future__ import annotations

import reprlib
from collections import defaultdict
from collections.abc import Iterator

from macatensor.accuracy.comparison import verdict as rules
from macatensor.accuracy.comparison.distance import elements
from macatensor.accuracy.comparison.mistakes import judge_accumulated
from macatensor.accuracy.comparison.rows import CallRow, TensorRow
from macatensor.accuracy.comparison.verdict import SEVERITY, Judged, Sight
from macatensor.accuracy.elements import TensorEntry
from macatensor.accuracy.records import Call, Process, tensors_of


def arguments_differ(left: Call, right: Call) -> Iterator[str]:
    """Numbers and texts among the arguments that are not the same; the names of devices may differ."""
    mine, others = ({a.place: a.value for a in call.inputs if a.tensor is None} for call in (left, right))
    for place in {**mine, **others}:
        one, two = mine.get(place), others.get(place)
        if one == two or not all(v is None or isinstance(v, (bool, int, float, str)) for v in (one, two)):
            continue
        if rules.names_device(one, two):
            continue
        if isinstance(one, float) and isinstance(two, float) and not _apart(one, two):
            continue
        yield f"argument {place}: {reprlib.repr(one)} against {reprlib.repr(two)}"


def _apart(one: float, two: float) -> bool:
    """More than rounding: a number may come out of the computation itself."""
    return one == one and two == two and abs(one - two) > 1e-3 * max(abs(one), abs(two))


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


class Judge:
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
        self.unpaired: dict[int, bool] = {}  # has a call one inside of it that only one run has?
        for row in rows:
            if row.above is not None:
                self.below[row.above].append(row)
        self.dtypes: dict[int, set[str]] = {}
        self.errors: dict[int, float] = {}  # the largest error among a call's tensors
        self.others_differ = False  # most of what calls made that one run has not
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
        self.others_differ = self._do_others_differ()
        for row in reversed(self.rows):
            self.row(row)
        judge_accumulated(self.rows)

    def _do_others_differ(self) -> bool:
        """Do most tensors differ that were made by calls without a counterpart? A wrong step of an optimizer spoils them
        all; a bias in front of a norm, whose gradient is rounding, moves by itself."""
        found: dict[object, float] = {}
        for row in self.rows:
            call = row.pair.left
            if call is None or row.pair.right is None:
                continue
            for t in row.tensors:
                entry = t.left
                if t.role == "output" or entry is None or t.distance is None or elements(entry.shape) == 1:
                    continue
                if rules.floating(entry.dtype) and self._made(call, entry) == "alone":
                    limit = rules.LOCAL_ERROR * rules.TOLERANCES[entry.dtype].local
                    found[entry.file, entry.key, entry.made_by] = t.distance.error / limit
        return bool(found) and sorted(found.values())[len(found) // 2] > 1

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
                t.judged = Judged(rule=rules.KEPT)
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
        wrong_numbers = [
            t
            for t in row.tensors
            if t.judged.verdict == "error" and not (t.distance is not None and t.distance.nonfinite)
        ]
        if left.direction == "bwd" and wrong_numbers and self._is_taken_apart(row):
            for t in wrong_numbers:
                t.judged.verdict = "warning"
                t.judged.rule += "; the devices take it apart differently, gradients come in other pieces"
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

    def _is_taken_apart(self, row: CallRow) -> bool:
        """Does the outermost function that a call runs in consist of other operators on the two devices?"""
        top = row
        while top.above is not None:
            top = self.rows_by_index(top.above)
        left = top.pair.left
        forward = None if left is None or left.forward is None else self.of_left.get(left.forward)
        return self._has_unpaired(top) or (forward is not None and self._has_unpaired(forward))

    def _has_unpaired(self, row: CallRow) -> bool:
        known = self.unpaired.get(row.index)
        if known is None:
            inside = self.below.get(row.index, [])
            known = self.unpaired[row.index] = any(
                c.pair.left is None or c.pair.right is None or self._has_unpaired(c) for c in inside
            )
        return known

    def rows_by_index(self, index: int) -> CallRow:
        return self.rows[index - self.rows[0].index]

    def _inputs(self, call: Call, inputs: list[TensorRow], tolerance: rules.Tolerance) -> None:
        for t in inputs:
            if t.left is None or t.right is None:
                t.judged = Judged("warning", f"only run {0 if t.right is None else 1} has this input")
                continue
            kind = rules.short_name(call.op)
            if t.left.shape != t.right.shape and rules.is_kept(kind.removesuffix("_backward"), t.place):
                t.judged = Judged(rule=rules.KEPT)
                continue
            wrong = rules.structure(t.left, t.right, self.mixed)
            if t.distance is not None:
                made = self._made(call, t.left)
                t.judged = rules.judge_input(t.left, t.distance, tolerance, made, self.others_differ)
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
