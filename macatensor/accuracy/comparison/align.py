"""Which call of one run is which of another: by module path, API name, dataflow and order.

API calls come first. Backward calls follow their forward calls; all others are aligned as sequences, in the manner of
patience diff (Bram Cohen): what is unique on both sides anchors the rest. Names are compared strictly first, with the
shapes of results and the operators that made the inputs, then ever more loosely between what is aligned already. Calls
that fit but stand elsewhere are paired as *moved*. The aten calls below a pair of API calls are aligned among
themselves, since devices take an API call apart differently.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from macatensor.accuracy.records import Call, tensors_of

# Myers' greedy search costs the square of the number of differences: 0.1 s for 300
_MYERS_DIFFERENCES = 300
# what wrappers put in front of a module's path: DistributedDataParallel, torch.compile, FSDP, checkpointing
_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


@dataclass(frozen=True)
class Pair:
    """A call of the first run and its counterpart; one of them is None where there is none."""

    left: Call | None
    right: Call | None
    moved: bool = False  # paired across others: the runs call them in another order

    @property
    def call(self) -> Call:
        """The call, of the first run where it has one."""
        found = self.left or self.right
        assert found is not None
        return found


def increasing(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest subsequence, of pairs in order of their first number, whose second numbers increase as well."""
    tails: list[int] = []
    at: list[int] = []
    back: list[int] = []
    for i, (_, b) in enumerate(pairs):
        k = bisect_left(tails, b)
        back.append(at[k - 1] if k else -1)
        if k == len(tails):
            tails.append(b)
            at.append(i)
        else:
            tails[k] = b
            at[k] = i
    out = []
    i = at[-1] if at else -1
    while i >= 0:
        out.append(pairs[i])
        i = back[i]
    return out[::-1]


def _positions(items: Sequence[Hashable], lo: int, hi: int) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for i in range(lo, hi):
        found[items[i]].append(i)
    return found


def _anchors(a: dict[Hashable, list[int]], b: dict[Hashable, list[int]], kind: str) -> list[tuple[int, int]]:
    """Pairs to hold on to: of tokens that are unique, that are as many on both sides, or any, each k-th with k-th."""
    pairs: list[tuple[int, int]] = []
    for token, mine in a.items():
        others = b.get(token)
        if others is None:
            continue
        if kind == "unique" and not len(mine) == len(others) == 1:
            continue
        if kind == "as many" and len(mine) != len(others):
            continue
        pairs += zip(mine, others)
    return increasing(sorted(pairs))


def _myers(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]] | None:
    """A longest common subsequence (E. Myers 1986, "An O(ND) difference algorithm"); None beyond the limit."""
    n, m = len(a), len(b)
    furthest = {1: 0}
    trace = []
    for d in range(min(n + m, _MYERS_DIFFERENCES) + 1):
        trace.append(dict(furthest))
        for k in range(-d, d + 1, 2):
            down = k == -d or (k != d and furthest.get(k - 1, -1) < furthest.get(k + 1, -1))
            x = furthest[k + 1] if down else furthest[k - 1] + 1
            y = x - k
            while x < n and y < m and a[x] == b[y]:
                x, y = x + 1, y + 1
            furthest[k] = x
            if x >= n and y >= m:
                return _walked_back(trace, n, m)
    return None


def _walked_back(trace: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    out = []
    for d in range(len(trace) - 1, -1, -1):
        furthest, k = trace[d], x - y
        down = k == -d or (k != d and furthest.get(k - 1, -1) < furthest.get(k + 1, -1))
        before = k + 1 if down else k - 1
        px = furthest[before] if d else 0
        py = px - before if d else 0
        while x > px and y > py and (x > px + (not down) or d == 0) and (y > py + down or d == 0):
            x, y = x - 1, y - 1
            out.append((x, y))
        x, y = px, py
    return out[::-1]


def matched(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Positions of equal tokens of two sequences, increasing on both sides. Near-linear for sequences that are alike."""
    out: list[tuple[int, int]] = []
    work = [(0, len(a), 0, len(b))]
    while work:
        i, end_a, j, end_b = work.pop()
        while i < end_a and j < end_b and a[i] == b[j]:
            out.append((i, j))
            i, j = i + 1, j + 1
        while i < end_a and j < end_b and a[end_a - 1] == b[end_b - 1]:
            end_a, end_b = end_a - 1, end_b - 1
            out.append((end_a, end_b))
        if i == end_a or j == end_b:
            continue
        mine, others = _positions(a, i, end_a), _positions(b, j, end_b)
        anchors = _anchors(mine, others, "unique")
        if not anchors:
            common = _myers(a[i:end_a], b[j:end_b])
            if common is not None:
                out += [(i + p, j + q) for p, q in common]
                continue
            anchors = _anchors(mine, others, "as many") or _anchors(mine, others, "any")
        if not anchors:
            continue
        out += anchors
        for p, q in [*anchors, (end_a, end_b)]:
            if p > i and q > j:
                work.append((i, p, j, q))
            i, j = p + 1, q + 1
    return sorted(out)


def laddered(a: list[list[Hashable]], b: list[list[Hashable]]) -> list[tuple[int, int]]:
    """As :func:`matched` for tokens of several strictnesses: the looser ones between what the stricter ones paired."""
    pairs: list[tuple[int, int]] = []
    n, m = len(a[0]), len(b[0])
    for mine, others in zip(a, b):
        new = []
        i = j = 0
        for p, q in [*pairs, (n, m)]:
            if p > i and q > j:
                new += [(i + x, j + y) for x, y in matched(mine[i:p], others[j:q])]
            i, j = p + 1, q + 1
        pairs = sorted(pairs + new)
    return pairs


def bare_path(module: str | None) -> str | None:
    """A module path without the parts that wrappers add."""
    if module is None or not any(part in _WRAPPERS for part in module.split(".")):
        return module
    return ".".join(part for part in module.split(".") if part not in _WRAPPERS)


def kind_of(op: str) -> str:
    """``aten.add`` of ``aten.add_.Tensor``: the operator without overload and in-place mark."""
    op = op.removeprefix("torch.ops.")
    name = ".".join(op.split(".")[:2]) if op.startswith("aten.") else op
    return name.removesuffix("_") if not name.endswith("__") else name


class Side:
    """One process's calls with what alignment asks of them."""

    def __init__(self, calls: list[Call]):
        self.calls = calls
        self.by_number = {call.number: call for call in calls}

    def api_of(self, number: int | None) -> Call | None:
        """The API call that a call is or belongs to; the call itself where nothing is above it."""
        call = self.by_number.get(number) if number is not None else None
        while call is not None and call.level != "api" and call.parent is not None:
            above = self.by_number.get(call.parent)
            if above is None:
                break
            call = above
        return call

    def forward_of(self, call: Call) -> Call | None:
        return self.by_number.get(call.forward) if call.forward is not None else None

    def path(self, call: Call) -> str | None:
        """The module path; a backward call has its forward call's."""
        if call.module is None and call.direction == "bwd":
            forward = self.forward_of(call)
            return bare_path(forward.module) if forward is not None else None
        return bare_path(call.module)

    def producers(self, call: Call) -> list[Call | None]:
        """The API calls that made a call's tensor inputs."""
        return [self.api_of(entry.made_by) for _, entry in tensors_of(call.inputs)]

    def tokens(self, calls: list[Call]) -> list[list[Hashable]]:
        """What is compared of each API call, strictest first."""
        out: list[list[Hashable]] = [[], [], [], []]
        for call in calls:
            path = self.path(call)
            shapes = tuple(tuple(entry.shape) for _, entry in tensors_of(call.outputs))
            made = tuple(p.op if p is not None else None for p in self.producers(call))
            out[0].append((call.direction, call.op, path, shapes, made))
            out[1].append((call.direction, call.op, path))
            out[2].append((call.direction, call.op, path.rpartition(".")[2] if path else None, shapes))
            out[3].append((call.direction, call.op, shapes))
        return out


def _aten_tokens(calls: list[Call]) -> list[list[Hashable]]:
    """What is compared of each call below an API call. Devices take that apart differently, and so apply an operator to other
    shapes and numbers: those are other calls."""
    out: list[list[Hashable]] = [[], [], []]
    for call in calls:
        made, given = (
            tuple(tuple(entry.shape) for _, entry in tensors_of(places))
            for places in (call.outputs, call.inputs)
        )
        numbers = tuple((a.place, a.value) for a in call.inputs if isinstance(a.value, (bool, int, float)))
        out[0].append((call.direction, call.op, made, numbers))
        out[1].append((call.direction, call.op, given, numbers))
        out[2].append((call.direction, kind_of(call.op), made, numbers))
    return out


class _Aligner:
    def __init__(self, left: list[Call], right: list[Call]):
        self.left, self.right = Side(left), Side(right)
        self.partner: dict[int, Call] = {}  # by the left call's number
        self.taken: dict[int, Call] = {}  # the left call by the right call's number

    def pair(self, left: Call, right: Call) -> None:
        self.partner[left.number] = right
        self.taken[right.number] = left

    def sequences(self, left: list[Call], right: list[Call]) -> None:
        for i, j in laddered(self.left.tokens(left), self.right.tokens(right)):
            self.pair(left[i], right[j])

    def follow_forward(self, left: list[Call], right: list[Call], aten: bool = False) -> None:
        """Backward calls whose forward calls are a pair."""
        behind: dict[int, list[Call]] = defaultdict(list)
        for call in right:
            if call.forward is not None and call.number not in self.taken:
                behind[call.forward].append(call)
        mine: dict[int, list[Call]] = defaultdict(list)
        for call in left:
            if call.forward is not None and call.number not in self.partner:
                mine[call.forward].append(call)
        for forward, calls in mine.items():
            partner = self.partner.get(forward)
            others = behind.get(partner.number, []) if partner is not None else []
            if not others:
                continue
            if aten:
                tokens = _aten_tokens(calls), _aten_tokens(others)
            else:
                tokens = _nodes(calls), _nodes(others)
            for i, j in laddered(*tokens):
                self.pair(calls[i], others[j])

    def agree(self, left: Call, right: Call) -> int:
        """How many of two calls' inputs were made by paired calls; -1 if some by calls paired otherwise."""
        score = 0
        for mine, other in zip(self.left.producers(left), self.right.producers(right)):
            if mine is None or other is None:
                continue
            partner = self.partner.get(mine.number)
            if partner is None:
                continue
            if partner.number != other.number:
                return -1
            score += 1
        return score

    def moved(self, left: list[Call], right: list[Call]) -> None:
        """What is left over on both sides and fits: the same path, inputs made by paired calls, or the only one left."""
        rest = [c for c in left if c.number not in self.partner]
        spare: dict[Hashable, list[Call]] = defaultdict(list)
        for call in right:
            if call.number not in self.taken:
                spare[call.direction, call.op].append(call)
        alike = Counter(_shaped(c) for c in rest)
        there = Counter(_shaped(c) for calls in spare.values() for c in calls)
        for call in rest:
            candidates = spare.get((call.direction, call.op), [])[:64]  # more than that is no reordering
            best, chosen = 0, None
            for other in candidates:
                same = self.left.path(call) is not None and self.left.path(call) == self.right.path(other)
                agreed = self.agree(call, other)
                token = _shaped(call)
                only = token == _shaped(other) and alike[token] == there[token] == 1
                score = 0 if agreed < 0 else agreed + 2 * same + only
                if score > best:
                    best, chosen = score, other
            if chosen is not None:
                self.pair(call, chosen)
                spare[call.direction, call.op].remove(chosen)

    def above(self, side: Side, call: Call, paired: dict[int, Call]) -> Hashable:
        """Under what an aten call is aligned: its nearest paired API call, else its module and forward call."""
        at: Call | None = call
        while at is not None and at.parent is not None:
            at = side.by_number.get(at.parent)
            if at is not None and at.level == "api" and at.number in paired:
                return at.number
        return None

    def aten(self) -> None:
        left = [c for c in self.left.calls if c.level == "aten"]
        right = [c for c in self.right.calls if c.level == "aten"]
        mine: dict[Hashable, list[Call]] = defaultdict(list)
        others: dict[Hashable, list[Call]] = defaultdict(list)
        api = dict(self.partner), dict(self.taken)
        for call in left:
            mine[self.above(self.left, call, api[0])].append(call)
        for call in right:
            above = self.above(self.right, call, api[1])
            others[api[1][above].number if isinstance(above, int) else None].append(call)
        for above, calls in mine.items():
            found = others.get(above, [])
            if above is None:
                self.follow_forward(calls, found, aten=True)
                calls = [c for c in calls if c.number not in self.partner]
                found = [c for c in found if c.number not in self.taken]
            if calls and found:
                tokens = (
                    (_aten_tokens(calls), _aten_tokens(found))
                    if above is not None
                    # nothing says where they belong but the shapes
                    else tuple(
                        [side.tokens(c)[k] for k in (0, 3)]
                        for side, c in ((self.left, calls), (self.right, found))
                    )
                )
                for i, j in laddered(*tokens):
                    self.pair(calls[i], found[j])


def _shaped(call: Call) -> Hashable:
    return call.direction, call.op, tuple(tuple(entry.shape) for _, entry in tensors_of(call.outputs))


def _nodes(calls: list[Call]) -> list[list[Hashable]]:
    return [[(c.op, c.node) for c in calls], [c.op for c in calls]]


def align(left: list[Call], right: list[Call]) -> list[Pair]:
    """Pairs of calls and the calls without a counterpart, in the order of the first run.

    Calls of the second run that have none stand behind the counterpart of the call before them.
    """
    work = _Aligner(left, right)
    api = [c for c in left if c.level == "api"], [c for c in right if c.level == "api"]
    plain = [c for c in api[0] if c.forward is None], [c for c in api[1] if c.forward is None]
    work.sequences(*plain)
    work.moved(*plain)
    work.follow_forward(*api)
    rest = (
        [c for c in api[0] if c.forward is not None and c.number not in work.partner],
        [c for c in api[1] if c.forward is not None and c.number not in work.taken],
    )
    work.sequences(*rest)
    work.moved(*rest)
    work.aten()
    return list(_in_order(work))


def _in_order(work: _Aligner) -> Iterator[Pair]:
    places = {call.number: i for i, call in enumerate(work.right.calls)}
    pairs = [
        (i, places[work.partner[c.number].number])
        for i, c in enumerate(work.left.calls)
        if c.number in work.partner
    ]
    in_order = {i for i, _ in increasing(pairs)}
    alone = [j for j, call in enumerate(work.right.calls) if call.number not in work.taken]
    j = 0
    for i, call in enumerate(work.left.calls):
        right = work.partner.get(call.number)
        if i in in_order and right is not None:
            while j < len(alone) and alone[j] < places[right.number]:
                yield Pair(None, work.right.calls[alone[j]])
                j += 1
        yield Pair(call, right, moved=right is not None and i not in in_order)
    for k in alone[j:]:
        yield Pair(None, work.right.calls[k])


def share_paired(pairs: list[Pair]) -> tuple[int, int, int]:
    """API calls (aten calls where none is recorded) that have a counterpart, and how many each run has."""
    counts: Counter[tuple[str, str]] = Counter()
    for pair in pairs:
        level = pair.call.level
        counts[level, "left"] += pair.left is not None
        counts[level, "right"] += pair.right is not None
        counts[level, "both"] += pair.left is not None and pair.right is not None
    level = "api" if counts["api", "left"] and counts["api", "right"] else "aten"
    return counts[level, "both"], counts[level, "left"], counts[level, "right"]
