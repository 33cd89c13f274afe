"""What slows a program down, as sentences with the lines to change: the worst first.

Each rule says something only beyond its threshold, so that a program without the fault is not accused of it.
"""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from macatensor.bottlenecks.lines import NOWHERE, Line
from macatensor.bottlenecks.summary import Launched, Summary
from macatensor.bottlenecks.watching import Call
from macatensor.profiling.activities import Kind
from macatensor.runtime.ffi import size_text

_WAITS = 4.0  # waits of a line in a step; a loss that is logged needs one
_SHORT = 20e-6  # seconds: a launch through Python costs 3 to 10 us
_MANY = 40.0  # short launches in a step
_MANY_OF_OPTIMIZER = 24.0  # launches; of whole lists (foreach) some 12, fused 1
_LOADING = 0.2  # of a step
_BETWEEN = 0.25  # of a step, in one line between operators
_CREATED = (
    20.0  # tensors that lines of the program make in a step; a model makes its results by other operators
)
_CREATING = 0.02  # of a step
_CREATORS = frozenset(
    "arange empty empty_like empty_strided eye full full_like linspace new_empty new_full new_ones new_zeros ones ones_like "
    "rand rand_like randint randint_like randn randn_like scalar_tensor zeros zeros_like".split()
)
_CONVERTING = 0.003  # of a step; readers of the other layout are slower, too
_GROWTH = 16 << 10  # bytes over the measured steps
_IDLE_MEMORY = 16 << 20  # bytes that were reserved beyond the peak in use
_LARGE = 1 << 20  # bytes by which the pool of small blocks does not grow
_IDLE_SHARE = 0.25  # of that peak
_SERIOUS = 0.5  # where a finding sorts whose cost is no share of time


@dataclass(frozen=True)
class Finding:
    """One thing to change. ``share``: of a step's time that it takes, roughly; None where it costs memory instead."""

    kind: str
    title: str
    text: str
    remedy: str
    lines: tuple[Line, ...] = ()
    share: float | None = None

    @property
    def weight(self) -> float:
        """By which findings are sorted."""
        return _SERIOUS if self.share is None else self.share


def find(summary: Summary) -> list[Finding]:
    """Of all rules, what weighs most first."""
    found = [finding for rule in _RULES for finding in rule(summary)]
    return sorted(found, key=lambda f: -f.weight)


def _lines(lines: Iterable[Line]) -> tuple[Line, ...]:
    return tuple(line for line in dict.fromkeys(lines) if line is not NOWHERE)[:3]


def _count(value: float, one: str = "", many: str = "") -> str:
    """``"32"``, or with what is counted ``"32 copies"``; a figure below 1 where it is not in every step."""
    figure = f"{value:,.0f}" if value >= 1 else f"{value:.1g}"
    return " ".join(filter(None, (figure, one if figure == "1" else many)))


def _share_of(summary: Summary, calls: Iterable[Call]) -> float:
    """Of the traced steps' time."""
    wall = sum(s.end - s.start for s in summary.traced)
    return sum(c.end - c.start for c in calls) / max(wall, 1)


def _launching(summary: Summary, lines: set[Line]) -> float:
    """Share of a step that launches of some lines take, at the mean of all."""
    count = summary.per_step(sum(f.call is not None and f.call.line in lines for f in summary.launched))
    return (summary.shares.launch + summary.shares.python) * count / max(summary.launches, 1)


def _names(calls: Iterable[str]) -> str:
    return ", ".join(name for name, _ in Counter(calls).most_common(3))


def _hidden_waits(summary: Summary) -> Iterator[Finding]:
    by_line: Counter[Line] = Counter(w.line for s in summary.traced for w in s.waits)
    many = [(line, summary.per_step(n)) for line, n in by_line.most_common() if summary.per_step(n) >= _WAITS]
    if not many:
        return
    lines = {line for line, _ in many}
    calls = [c for c in summary.calls if c.line in lines]
    whats = {w.what for s in summary.traced for w in s.waits if w.line in lines}
    reads = "a copy to the host" in whats
    line, count = many[0]
    yield Finding(
        "waits",
        f"The host waits for the device {_count(sum(n for _, n in many))} times in a step",
        f"{line} waits {_count(count)} times in each step: {' and '.join(sorted(whats))}. Meanwhile nothing new is given "
        "to the device.",
        "Keep numbers on the device in the loop (add tensors up, torch.where instead of `if`) and read one result after it"
        if reads
        else "Copy once what the loop needs, before it: one tensor instead of many numbers",
        _lines(line for line, _ in many),
        max(_share_of(summary, calls), _launching(summary, lines)),
    )


def _is_short(found: Launched) -> bool:
    return found.activity.kind is Kind.LAUNCH and found.seconds < _SHORT


def _in_optimizer(summary: Summary) -> dict[int, list[tuple[int, int]]]:
    return {s.number: s.optimizer for s in summary.traced}


def _unfused_optimizer(summary: Summary) -> Iterator[Finding]:
    optimizer = summary.session.clock.optimizer
    spans = _in_optimizer(summary)
    inside = [
        found
        for found in summary.launched
        if any(start <= found.activity.given <= end for start, end in spans[found.step])
    ]
    count = summary.per_step(len(inside))
    if optimizer is None or count < _MANY_OF_OPTIMIZER:
        return
    tensors = sum(len(group["params"]) for group in optimizer.param_groups)
    if count < 2 * tensors:
        return
    wall = sum(s.end - s.start for s in summary.timed or summary.traced)
    share = sum(end - start for s in summary.timed or summary.traced for start, end in s.optimizer) / wall
    kind = type(optimizer)
    takes = inspect.signature(kind.__init__).parameters
    name = kind.__name__
    how = "fused=True" if "fused" in takes else "foreach=True" if "foreach" in takes else None
    yield Finding(
        "unfused optimizer",
        f"The optimizer launches {_count(count)} kernels in a step for {tensors} parameters",
        f"{name}.step() updates parameter by parameter: {count / max(tensors, 1):.0f} launches for each, where one launch "
        "can do them all.",
        f"Make it {name}(..., {how})"
        if how
        else "Use torch._foreach_ functions in it, or one of torch.optim's optimizers with fused=True",
        _lines(
            [
                summary.session.clock.made_at.get(id(optimizer), NOWHERE),
                summary.session.clock.stepped_at or NOWHERE,
            ]
        ),
        share,
    )


def _tiny_kernels(summary: Summary) -> Iterator[Finding]:
    spans = _in_optimizer(summary)
    waiting = Counter(w.line for s in summary.traced for w in s.waits)
    excused = {line for line, n in waiting.items() if summary.per_step(n) >= _WAITS}  # said already
    by_line: defaultdict[Line, list[Launched]] = defaultdict(list)
    for found in summary.launched:
        outside = not any(start <= found.activity.given <= end for start, end in spans[found.step])
        if _is_short(found) and outside and found.call is not None and found.call.line not in excused:
            by_line[found.call.line].append(found)
    lines = sorted(by_line, key=lambda line: -len(by_line[line]))
    short = [found for line in lines for found in by_line[line]]
    count = summary.per_step(len(short))
    shares = summary.shares
    if count < _MANY or shares.launch + shares.python < shares.kernel:
        return
    share = (shares.launch + shares.python) * count / max(summary.launches, 1)
    mean = sum(f.seconds for f in short) / len(short)
    first = by_line[lines[0]]
    operators = _names(f.call.name for f in first if f.call is not None)
    yield Finding(
        "tiny kernels",
        f"{_count(count)} kernels in a step are shorter than their launch",
        f"They take {1e6 * mean:.0f} us each, and Python with the launch takes as long or longer. {lines[0]} makes "
        f"{_count(summary.per_step(len(first)))} of them in each step: {operators}.",
        "Do the loop's work in one operator on a larger tensor, or let torch.compile or a MacaGraph launch the step",
        _lines(lines),
        share,
    )


def _creations(summary: Summary) -> Iterator[Finding]:
    made = [c for c in summary.calls if c.name in _CREATORS and c.line is not NOWHERE]
    count, share = summary.per_step(len(made)), _share_of(summary, made)
    if count < _CREATED or share < _CREATING:
        return
    by_line = Counter(c.line for c in made)
    line, most = by_line.most_common(1)[0]
    yield Finding(
        "new tensors",
        f"{_count(count)} tensors are made in a step by {_names(c.name for c in made)}()",
        f"{line} makes {_count(summary.per_step(most))} of them in each step. Each costs a call through PyTorch, whatever its "
        "size.",
        "Make them once before the loop and write into them (out=, copy_(), fill_()), or one larger tensor whose parts are "
        "views",
        _lines(line for line, _ in by_line.most_common()),
        share,
    )


def _conversions(summary: Summary) -> Iterator[Finding]:
    converting = [c for c in summary.calls if c.conversions or c.strided]
    seconds = summary.per_step(
        sum(
            f.seconds
            for f in summary.launched
            if f.call is not None and (f.call.conversions or f.call.strided)
        )
    )
    share = seconds / summary.seconds
    count = summary.per_step(sum(c.conversions + c.strided for c in converting))
    if share < _CONVERTING or count < 1:
        return
    by_line: Counter[Line] = Counter()
    for c in converting:
        by_line[c.line] += c.conversions + c.strided
    size = summary.per_step(sum(c.nbytes for c in converting))
    line = by_line.most_common(1)[0][0]
    yield Finding(
        "layout",
        f"{_count(count, 'copy', 'copies')} in a step only {'changes' if _count(count) == '1' else 'change'} the layout",
        f"{line} lays {size_text(int(size))} in another order in each step ({_names(c.name for c in converting)}): "
        "4-D tensors are channels_last on the device, and this line wants them otherwise, or a view of them copies.",
        "Leave out .contiguous() and memory_format=, reduce height and width before flatten(), or hold the tensor in the "
        "layout that its reader wants",
        _lines(line for line, _ in by_line.most_common()),
        share,
    )


def _fallbacks(summary: Summary) -> Iterator[Finding]:
    calls = [c for c in summary.calls if c.fallbacks]
    if not calls:
        return
    names = _names(c.name for c in calls)
    yield Finding(
        "host fallback",
        f"{names} runs on the host",
        f"The device has no kernel for it: {_count(summary.per_step(sum(c.fallbacks for c in calls)), 'call', 'calls')} in each step "
        f"with operands copied to the host and results back, at {calls[0].line}.",
        "Write it with operators that the device has (`macatensor ops`), or register a kernel for it; "
        "MACA_FALLBACK=error finds all such lines",
        _lines(c.line for c in calls),
        _share_of(summary, calls),
    )


def _starving(summary: Summary) -> Iterator[Finding]:
    loads = [load for s in summary.timed or summary.traced for load in s.loads]
    if not loads or summary.loading < _LOADING:
        return
    workers = loads[0].workers
    yield Finding(
        "data loader",
        f"The device waits for data: {summary.loading:.0%} of a step",
        f"The loop at {loads[0].line} waits {summary.loading * summary.seconds * 1e3:.1f} ms in each step for its "
        f"DataLoader with {workers or 'no'} worker{'s' if workers > 1 else ''}.",
        "Give the DataLoader more workers (num_workers=, persistent_workers=True), or make a sample cheaper: decode and "
        "augment once, ahead of the training",
        _lines(load.line for load in loads),
        summary.loading,
    )


def _host_code(summary: Summary) -> Iterator[Finding]:
    launching = {c.line for c in summary.calls}
    for line, share in summary.host_lines[:3]:
        if share < _BETWEEN or line in launching or line is NOWHERE:
            continue
        yield Finding(
            "host code",
            f"{line} keeps the device waiting: {share:.0%} of a step",
            f"The program is {share * summary.seconds * 1e3:.1f} ms of each step in this line, and the device has nothing "
            "to do meanwhile.",
            "Do it in a worker (DataLoader with num_workers=), less often, or on the device",
            (line,),
            share,
        )


def _fragmentation(summary: Summary) -> Iterator[Finding]:
    reserved, used = summary.session.peak_reserved, summary.session.peak_allocated
    beyond = reserved - used
    if beyond < _IDLE_MEMORY or beyond < _IDLE_SHARE * used:
        return
    grew: Counter[Line] = Counter()
    sizes: defaultdict[Line, set[int]] = defaultdict(set)
    for c in summary.session.all_calls():
        sizes[c.line].add(c.nbytes)
        if c.reserved >= _LARGE and c.idle >= max(c.reserved, c.nbytes):
            grew[c.line] += c.reserved
    lines = [line for line, _ in grew.most_common()] or sorted(sizes, key=lambda at: -len(sizes[at]))[:1]
    many = len(sizes[lines[0]]) if lines else 0
    where = f" {lines[0]} asks for {many} different sizes." if many > 1 else ""
    yield Finding(
        "fragmentation",
        f"{size_text(beyond)} of the device's memory lie idle in pieces",
        f"{size_text(reserved)} are reserved where at most {size_text(used)} were in use at once: free pieces were too small "
        f"for what was asked next.{where}",
        "Give tensors few different sizes (pad to some lengths), make what lives long before what lives short, the largest "
        "first, or call torch.maca.empty_cache() where sizes change",
        _lines(lines),
    )


def _growth(summary: Summary) -> Iterator[Finding]:
    steps = [s for s in summary.session.steps if s.number >= summary.session.warm_up]
    if len(steps) < 4:
        return
    changes = [after.allocated - before.allocated for before, after in pairwise(steps)]
    grown = steps[-1].allocated - steps[0].allocated
    if grown < _GROWTH or sum(change > 0 for change in changes) < 0.75 * len(changes):
        return
    kept: Counter[Line] = Counter()
    if len(summary.traced) >= 2:
        first, last = summary.traced[0].live, summary.traced[-1].live
        for site, (_, size) in last.items():
            more = size - first.get(site, (0, 0))[1]
            if more > 0 and (line := summary.session.watching.line(site)) is not NOWHERE:
                kept[line] += more
    lines = _lines(line for line, _ in kept.most_common())
    graphs = summary.session.graphs_kept
    if graphs < len(steps):  # those of the last step live as a rule
        graphs = 0
    made = f" What stays was made at {lines[0]}." if lines else ""
    yield Finding(
        "memory grows",
        f"Memory grows by {size_text(grown // len(changes))} in each step",
        f"Tensors of earlier steps are still held.{made}"
        + (
            f" {graphs} of the tensors that live carry a graph, which holds all that made them."
            if graphs
            else ""
        ),
        "Keep numbers or detached tensors (loss.item() once a step, loss.detach()) instead of results with their graph; "
        "evaluate under torch.no_grad()"
        if graphs
        else "Look for the list, dict or attribute that keeps them",
        lines,
    )


def _unused_graphs(summary: Summary) -> Iterator[Finding]:
    last = summary.traced[-1].number
    unused = summary.session.graphs.unused(before=last)
    measured = {s.number for s in summary.traced[:-1]}
    unused = [f for f in unused if f.step in measured]
    if not unused:
        return
    lines = Counter(f.line for f in unused)
    modules = _names(f.module for f in unused)
    training = " in training mode" if all(f.training for f in unused) else " in evaluation mode"
    calls = [c for c in summary.calls if c.line in lines]
    yield Finding(
        "forgotten no_grad",
        f"{modules} records a graph that no backward() uses",
        f"{lines.most_common(1)[0][0]} calls it{training}, and every operator keeps its operands for a gradient that nobody "
        "asks for.",
        "Put it under `with torch.no_grad():` (or torch.inference_mode())",
        _lines(line for line, _ in lines.most_common()),
        max(_share_of(summary, calls), 0.3),
    )


_RULES: tuple[Callable[[Summary], Iterator[Finding]], ...] = (
    _hidden_waits,
    _unfused_optimizer,
    _tiny_kernels,
    _creations,
    _conversions,
    _fallbacks,
    _starving,
    _host_code,
    _fragmentation,
    _growth,
    _unused_graphs,
)
