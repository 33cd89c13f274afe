"""Measures the ways of one call: right ones by the row's bound, then times, interleaved.

Operands are random numbers in memory of their own, with the call's sizes and strides; a weight that stays is packed, as
in inference. The library's own choice stays unless the middle half of another way's times lies below its own.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import _disable_current_modes

from macatensor.choices.bank import Measured
from macatensor.choices.deciding import OWN, Asked, settings
from macatensor.dispatch.plan import ABSENT, flatten
from macatensor.dispatch.request import Declined
from macatensor.dispatch.signature import Role, read
from macatensor.parity.reference import Expected, expected, judge
from macatensor.parity.transport import fetch, place
from macatensor.runtime.boxed import Value
from macatensor.runtime.ffi import is_host_library, lib, native, set_task_queue
from macatensor.runtime.meta import Meta
from macatensor.runtime.tensor import MacaTensor, Payload, payload
from macatensor.tuning.calls import described

if TYPE_CHECKING:
    from macatensor.runtime.ffi import Program

_LOG = logging.getLogger(__name__)
_ROUNDS = 25  # at most; a pause of the machine is shorter than half of them
_LEAST_ROUNDS = 7  # of long calls: a quarter of them may be disturbed at either end
_MORE_ROUNDS = 3  # times as many, and as long, while a better way's times still meet those of the own choice
_WORTH = 1.03  # a gain that is worth them
_BLOCK = 0.0005  # seconds of calls in a row, at least, so that the clock and a wait do not count
_LONG = 0.005  # seconds of a call that is timed once a round; shorter and undecided ones twice: the better time counts
_SPINNING = 0.02  # seconds that PyTorch's threads, which computed what is right, wait for more on processors that they keep
# times the quickest after one call or round, and after two: not measured further
_SURELY, _HOPELESS = 1.6, 1.3


@dataclass
class _Contender:
    way: str
    program: Program
    calls: int = 1
    times: list[float] | None = None

    def all_times(self) -> list[float]:
        return sorted(self.times or [])

    @property
    def median(self) -> float:
        ordered = self.all_times()
        return ordered[len(ordered) // 2]

    @property
    def middle(self) -> tuple[float, float]:
        """Between which the middle half of the times lies."""
        ordered = self.all_times()
        skipped = len(ordered) // 4
        return ordered[skipped], ordered[-1 - skipped]


def _random(meta: Meta, generator: torch.Generator) -> torch.Tensor:
    """A host tensor of such sizes and strides."""
    memory = (
        torch.rand(max(meta.extent, 1), generator=generator, dtype=torch.float32, device="cpu")
        .mul_(2)
        .sub_(1)
    )
    if not (meta.dtype.is_floating_point or meta.dtype.is_complex):
        memory = memory.mul_(8).round_()
    return torch.as_strided(memory.to(meta.dtype), meta.size, meta.stride)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Modes of the program, its autograd, its autocast and whoever watches launches see nothing of what is computed here."""
    watcher = native.observe(None)
    try:
        with _disable_current_modes(), torch.no_grad(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        native.observe(watcher)  # type: ignore[arg-type]


@dataclass
class Trial:
    """The ways of one call that are right, ready to be timed."""

    asked: Asked
    payloads: list[Payload]
    contenders: list[_Contender]  # the library's own choice first
    wrong: list[str]  # ways whose results are outside of the row's bound
    judging: float  # seconds that took

    def time(self) -> dict[str, float]:
        """Seconds of a call by each way, medians; the quickest can be asked for then."""
        with _undisturbed(), _clock():
            _time(self.contenders, self.payloads, self.asked.scalars)
        return {c.way: c.median for c in self.contenders}

    def chosen(self) -> str:
        """The way to go, after :meth:`time`."""
        return _chosen(self.contenders)


def trial(asked: Asked) -> Trial | None:
    """Judges the ways of a call; None where the library has one."""
    with _undisturbed():
        names = asked.ways()
        if not names or any(
            isinstance(v, torch.Tensor) and not isinstance(v, MacaTensor) for v in asked.full
        ):
            return None
        programs = _programs(asked, names)
        if len(programs) < 2:
            return None
        start = time.perf_counter()
        host = _host_operands(asked)
        payloads = [ABSENT if t is None else payload(place(t)) for t in _in_order(asked, host)]
        contenders = _contenders(programs, payloads, asked.scalars)
        if len(contenders) < 2:
            return None
        contenders, wrong = _right(asked, host, payloads, contenders)
        return Trial(asked, payloads, contenders, wrong, time.perf_counter() - start)


def measure(asked: Asked, signature: str) -> Measured | None:
    """Measures the ways of a call; None where the library has one."""
    ready = trial(asked)
    if ready is None:
        return None
    if OWN in ready.wrong or not ready.contenders:
        # nothing to hold the others against: whoever looks at rows learns of it (macatensor parity)
        _LOG.warning("%s: the library's own choice is outside of its bound; it stays", asked.func)
        return Measured(signature, OWN, {}, tuple(ready.wrong), described(asked))
    start = time.perf_counter()
    seconds = ready.time()
    _LOG.debug(
        "%s: %d ways, judged in %.3f s, timed in %.3f s",
        asked.func, len(seconds), ready.judging, time.perf_counter() - start,
    )  # fmt: skip
    return Measured(signature, ready.chosen(), seconds, tuple(ready.wrong), described(asked))


def _chosen(contenders: Sequence[_Contender]) -> str:
    own, *others = contenders
    best = min(others, key=lambda c: c.median, default=own)
    return best.way if best.middle[1] < own.middle[0] else own.way


def _undecided(contenders: Sequence[_Contender]) -> bool:
    """Whether a way seems better than the library's own choice, and the middle halves of their times still meet."""
    own, *others = contenders
    if not own.times or not others:
        return False
    best = min(others, key=lambda c: c.median)
    return own.median > _WORTH * best.median and best.middle[1] >= own.middle[0]


def _programs(asked: Asked, names: Sequence[str]) -> dict[str, Program]:
    """A program by the library's own choice, and by each way that it does not decline, as many as are measured and one
    more: the library's own choice is among them, under its name."""
    made = {OWN: asked.make(OWN)}
    limit = settings().most_ways
    for name in names:
        with contextlib.suppress(Declined):
            made[name] = asked.make(name)
        if limit and len(made) > limit + 1:
            break
    return made


def _contenders(
    programs: Mapping[str, Program], payloads: Sequence[Payload], scalars: Sequence[complex]
) -> list[_Contender]:
    """The first of each algorithm: that of the library's own choice has a name as well."""
    found: dict[str, _Contender] = {}
    for way, program in programs.items():
        found.setdefault(_algorithm(program, payloads, scalars) or way, _Contender(way, program))
    limit = settings().most_ways
    return list(found.values())[: 1 + limit if limit else None]


def _algorithm(program: Program, payloads: Sequence[Payload], scalars: Sequence[complex]) -> str:
    """What the library says that it runs; "" where it says nothing, or the launch fails."""
    said: list[str] = []
    native.observe(lambda operator, kernel, implementation: said.append(implementation))
    try:
        program.launch(payloads, scalars)
    except Exception:  # met again, and told, where results are judged
        return ""
    finally:
        native.observe(None)
    return said[0] if said else ""


def _host_operands(asked: Asked) -> list[Value]:
    """The call's arguments, with random numbers on the host in place of its tensors."""
    generator = torch.Generator().manual_seed(1)
    return [_random(v._payload[2], generator) if isinstance(v, MacaTensor) else v for v in asked.full]


def _in_order(asked: Asked, host: Sequence[Value]) -> list[torch.Tensor | None]:
    """Operands as a launch takes them: tensors, and None for those that were left out."""
    arguments = read(asked.func, asked.row.launch_scalars).arguments
    return [v for a, v in zip(arguments, host) if a.role is Role.TENSOR]


def _right(
    asked: Asked, host: list[Value], payloads: Sequence[Payload], contenders: Sequence[_Contender]
) -> tuple[list[_Contender], list[str]]:
    """Those whose results are within the row's bound of float64, and the names of the others."""
    signature = read(asked.func, asked.row.launch_scalars)
    args, kwargs = tuple(host[: signature.positional]), signature.named(host)
    reference: dict[bool, Expected] = {}

    def is_right(got: list[torch.Tensor | None]) -> bool:
        for quick in (True, False):  # by terms that cost less first; a chain's own law knows better
            if quick not in reference:
                reference[quick] = expected(asked.func, asked.row, args, kwargs, quick=quick)
            wanted = reference[quick]
            operands = [t for t in flatten(list(args)) if isinstance(t, torch.Tensor)]
            _, wrong = judge(asked.row, wanted, [*got, *operands], args, quick)
            if not wrong:
                return True
        return False

    good: list[_Contender] = []
    wrong_ways: list[str] = []
    for contender in contenders:
        try:
            made = contender.program.launch(payloads, asked.scalars)
            got: list[torch.Tensor | None] = [None if t is None else fetch(t) for t in made]
        except Exception as error:  # its failure must not become the program's
            _LOG.warning("%s by %r failed while it was measured: %s", asked.func, contender.way, error)
            wrong_ways.append(contender.way)
            continue
        if is_right(got):
            good.append(contender)
        else:
            wrong_ways.append(contender.way)
    return good, wrong_ways


@contextlib.contextmanager
def _clock() -> Iterator[None]:
    """What seconds are in the block: of the wall; of the processor where the host library computes on this thread alone,
    so that a busy machine disturbs less. The default stream's queue would be another thread."""
    global _now
    if not (is_host_library() and torch.get_num_threads() == 1):
        yield
        return
    before, _now = set_task_queue("0"), time.thread_time
    try:
        yield
    finally:
        _now = time.perf_counter
        set_task_queue(before)


_now = time.perf_counter


def _block(
    contender: _Contender, payloads: Sequence[Payload], scalars: Sequence[complex], calls: int
) -> float:
    launch = contender.program.launch
    wait, stream = lib.maca_streams_synchronize, lib.maca_streams_current()
    start = _now()
    for _ in range(calls):
        launch(payloads, scalars)
    wait(stream)
    return (_now() - start) / calls


def _time(contenders: Sequence[_Contender], payloads: Sequence[Payload], scalars: Sequence[complex]) -> None:
    """Fills in the times of each. Rounds turn round; ways that are hopeless drop out, the library's own choice never.

    Each has run twice before, when its algorithm was asked for and its results judged: the weight is packed.
    """
    lib.maca_streams_synchronize(lib.maca_streams_current())
    chosen = settings()
    time.sleep(_SPINNING)
    once = {c.way: _block(c, payloads, scalars, 1) for c in contenders}
    quickest = min(once.values())
    running = []
    for c in contenders:
        c.calls = max(1, min(chosen.iterations, round(_BLOCK / max(once[c.way], 1e-7))))
        c.times = [once[c.way]]
        if c.way == OWN or once[c.way] < max(_SURELY * quickest, _BLOCK):
            c.times = []
            running.append(c)
    start = time.perf_counter()
    for i in range(_ROUNDS * _MORE_ROUNDS):
        more = _MORE_ROUNDS if _undecided(running) else 1
        late = i >= _LEAST_ROUNDS and time.perf_counter() > start + chosen.duration * more
        if late or i >= _ROUNDS * more:
            break
        for c in running if i % 2 == 0 else reversed(running):
            assert c.times is not None
            blocks = 2 if once[c.way] < _LONG or more > 1 else 1
            c.times.append(min(_block(c, payloads, scalars, c.calls) for _ in range(blocks)))
        least = {c.way: min(c.times or [1.0]) for c in running}
        limit = (_SURELY if i == 0 else _HOPELESS) * min(least.values())
        running = [c for c in running if c.way == OWN or least[c.way] < limit]


def summary(found: Mapping[str, Measured] | Sequence[Measured]) -> tuple[float, float]:
    """Seconds of one call of each signature: by the library's own choice, and by the chosen ways."""
    entries = list(found.values()) if isinstance(found, Mapping) else list(found)
    known = [e for e in entries if e.seconds.get(OWN) and e.seconds.get(e.way)]
    return sum(e.seconds[OWN] for e in known), sum(e.seconds[e.way] for e in known)
