"""Every operator of a program against float64: its own error, the error that its inputs brought, and the gain.

Local: the device's result against the operator in float64 on *the same inputs*. Inherited: that against the operator
in float64 on inputs that were never rounded, the shadows of :mod:`macatensor.accuracy.local.shadow`. All are relative to the
norm of a whole tensor: ``norm(a - b) / norm(b)``.
"""

from __future__ import annotations

import contextlib
import difflib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from html import escape
from typing import NamedTuple, overload

import torch

from macatensor.accuracy.local.origin import origin
from macatensor.accuracy.local.program import run_under
from macatensor.accuracy.local.shadow import Shadows
from macatensor.compiling.checked import Wrong
from macatensor.parity.samples import describe
from macatensor.parity.watch import Seen, Watch
from macatensor.runtime.boxed import Arguments, Keywords
from op_table import TABLE, Row

DEVICES = ("maca", "cuda", "cpu")


@dataclass
class OpError:
    """One call of an operator. Errors are None where there is no reference, as for random numbers.

    ``share``: of what the row's bound allows, at the worst element; above 1 fails. ``amplification``: inherited error
    over the largest error of an input.
    """

    number: int
    op: str
    direction: str  # "fwd" or "bwd"
    node: str
    line: str  # "train.py:12 step"
    inputs: list[str]
    verdict: str
    bound: str
    local: float | None = None
    ulp: float | None = None
    share: float | None = None
    input_error: float | None = None
    inherited: float | None = None
    total: float | None = None
    amplification: float | None = None
    seconds: float = 0.0
    frames: tuple[str, ...] = ()
    implementation: str = ""  # the algorithm that the device library chose

    @property
    def failed(self) -> bool:
        return self.verdict.startswith("FAIL")


_COLUMNS = (
    "number",
    "op",
    "direction",
    "local",
    "share",
    "inherited",
    "total",
    "amplification",
    "verdict",
    "line",
    "implementation",
)


@dataclass
class LocalErrors:
    """What :func:`.parity` found, call by call. ``programs``: fused programs of compiled graphs that are wrong."""

    calls: list[OpError] = field(default_factory=list)
    programs: list[Wrong] = field(default_factory=list)

    @property
    def failures(self) -> list[OpError]:
        """Calls whose local error breaks the bound of their row."""
        return [c for c in self.calls if c.failed]

    @property
    def first(self) -> OpError | None:
        """The first failure."""
        return next((c for c in self.calls if c.failed), None)

    @property
    def unjudged(self) -> dict[str, str]:
        """Operators without a verdict, and why."""
        return {c.op: c.verdict.removeprefix("n/a: ") for c in self.calls if c.verdict.startswith("n/a")}

    def worst(self, by: str = "local", count: int = 10) -> list[OpError]:
        """The calls with the largest ``local``, ``share``, ``inherited``, ``total`` or ``amplification``."""
        known = [c for c in self.calls if getattr(c, by) is not None]
        return sorted(known, key=lambda c: -_order(getattr(c, by)))[:count]

    def as_dicts(self) -> list[dict[str, object]]:
        """One dictionary a call, for JSON or a data frame."""
        return [asdict(c) for c in self.calls]

    def _shown(self) -> list[OpError]:
        shown = {c.number for c in self.worst("share", 20) + self.failures[:20]}
        return [c for c in self.calls if c.number in shown]

    def __str__(self) -> str:
        judged = [c for c in self.calls if not c.verdict.startswith("n/a")]
        lines = [
            f"{len(self.calls)} calls, {len(judged)} judged, {len(self.failures)} outside of their bounds"
        ]
        for c in self._shown():
            mark = "FAIL" if c.failed else "    "
            lines.append(
                f"{mark} {c.number:6d} {c.op:36} {c.direction} local {_number(c.local)} ({_number(c.share)} of its bound)  "
                f"inherited {_number(c.inherited)}  gain {_number(c.amplification)}  {c.line}"
                + (f"  by {c.implementation}" if c.failed and c.implementation else "")
            )
        lines += [f"FAIL {program}" for program in self.programs]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        rows = []
        for c in self._shown():
            cells = "".join(
                f"<td>{_number(v) if isinstance(v, float) or v is None else escape(str(v))}</td>"
                for v in (getattr(c, name) for name in _COLUMNS)
            )
            rows.append(f"<tr{' style=color:#b00' if c.failed else ''}>{cells}</tr>")
        return f"<p>{escape(str(self).splitlines()[0])}</p><table><tr>{head}</tr>{''.join(rows)}</table>"


def _order(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def distance(got: torch.Tensor | None, want: torch.Tensor | None) -> float | None:
    """``norm(got - want) / norm(want)``, of the difference itself where ``want`` is zero; infinite where one has a
    NaN or infinity and the other has not. None for what is no floating-point tensor."""
    if got is None or want is None or got.shape != want.shape:
        return None
    if not (got.is_floating_point() or got.is_complex()) or not got.numel():
        return None
    wide = torch.complex128 if got.is_complex() else torch.float64
    got, want = got.to(wide), want.to(wide)
    strange = ~(got.isfinite() & want.isfinite())
    if bool((strange & ~((got == want) | (got.isnan() & want.isnan()))).any()):
        return math.inf
    kept = ~strange
    norm = float(torch.linalg.vector_norm(want[kept]))
    gap = float(torch.linalg.vector_norm((got - want)[kept]))
    return gap / norm if norm else gap


def _largest(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return max(known) if known else None


def known_operators(names: Sequence[str]) -> frozenset[str]:
    """Checks names of operators (``"sum"``, ``"add.Tensor"``).

    Raises:
        ValueError: the op table has none of the name; the nearest ones are in the text.
    """
    known = {row.name for row in TABLE.values()} | {row.operator for row in TABLE.values()}
    chosen = {n.removeprefix("aten.").removesuffix(".default") for n in names}
    for name in sorted(chosen - known):
        near = difflib.get_close_matches(name, known, 3)
        raise ValueError(
            f"accuracy: the op table has no operator {name!r}"
            + (f"; near it: {', '.join(near)}" if near else "; `macatensor ops` lists them")
        )
    return frozenset(chosen)


def chosen_devices(device: str | None) -> tuple[str, ...]:
    """Types of devices to watch; all for None. Raises ValueError for another name."""
    if device is None:
        return DEVICES
    kind = str(device).partition(":")[0]
    if kind not in DEVICES:
        raise ValueError(
            f"accuracy: device got {device!r}; accepted: {', '.join(DEVICES)}, None for all of them"
        )
    return (kind,)


class _Before(NamedTuple):
    """What is kept of a call from before it: its arguments as shadows, and how far these are from the device's."""

    arguments: tuple[Arguments, Keywords] | None
    input_error: float | None


class _Parity(Watch):
    def __init__(self, devices: tuple[str, ...], op_list: frozenset[str], shadowed: bool):
        super().__init__(devices, with_programs=not op_list)
        self.report = LocalErrors()
        self.op_list = op_list
        self.shadows = Shadows() if shadowed else None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        with super().watching():
            self.report.programs = self.programs
            yield

    def judged(self, row: Row | None, name: str) -> bool:
        return not self.op_list or name in self.op_list or (row is not None and row.operator in self.op_list)

    def wants(self, row: Row | None, name: str) -> bool:
        return self.shadows is not None or self.judged(row, name)

    def before(self, seen: Seen) -> None:
        if self.shadows is None or seen.copies is None:
            return
        with self.lock:
            arguments = self.shadows.arguments(seen)
            seen.held = _Before(
                arguments,
                _largest([distance(t, s) for t, s in zip(_tensors(seen.copies), _tensors(arguments))]),
            )

    def after(self, seen: Seen) -> None:
        with self.lock:
            held = seen.held if isinstance(seen.held, _Before) else _Before(None, None)
            shadows = None if self.shadows is None else self.shadows.follow(seen, held.arguments)
            if self.judged(seen.row, seen.name):
                self.note(seen, shadows, held.input_error)

    def note(self, seen: Seen, shadows: list[torch.Tensor | None] | None, input_error: float | None) -> None:
        verdict = self.verdict(seen)
        came = origin()
        error = OpError(
            len(self.report.calls), seen.name, came.direction, came.node, came.line,
            [describe(t) if t is not None else "None" for t in _tensors(seen.copies)] if seen.copies else [],
            verdict.text, verdict.bound, seconds=seen.seconds, frames=came.frames,
            implementation=seen.implementation,
        )  # fmt: skip
        self.report.calls.append(error)
        if verdict.expected is None:
            return
        error.ulp, error.share = verdict.worst.ulp, verdict.worst.share
        got, exact = seen.host + seen.changed, verdict.expected.exact
        error.local = _largest([distance(g, e) for g, e in zip(got, exact)])
        if shadows is None:
            return
        kept = [s if g is not None else None for g, s in zip(got, shadows)]
        error.input_error = input_error
        error.total = _largest([distance(g, s) for g, s in zip(got, kept)])
        error.inherited = _largest([distance(e, s) for e, s in zip(exact, kept)])
        if error.inherited is not None and input_error:
            error.amplification = error.inherited / input_error


def _tensors(value: object) -> list[torch.Tensor | None]:
    from macatensor.parity.transport import tensors

    return tensors(value)


@overload
def parity(
    function: None = None,
    *,
    device: str | None = ...,
    op_list: Sequence[str] = ...,
    shadows: bool = ...,
) -> AbstractContextManager[LocalErrors]: ...


@overload
def parity(
    function: Callable[[], object],
    *,
    device: str | None = ...,
    op_list: Sequence[str] = ...,
    shadows: bool = ...,
) -> LocalErrors: ...


def parity(
    function: Callable[[], object] | None = None,
    *,
    device: str | None = None,
    op_list: Sequence[str] = (),
    shadows: bool = True,
) -> LocalErrors | AbstractContextManager[LocalErrors]:
    """Computes every operator of a program again in float64 on the host, from the same inputs, as the program goes.

    ``with accuracy.parity() as errors: step()`` or ``errors = accuracy.parity(step)``; the result is a
    :class:`.LocalErrors`. Forward, backward and optimizer are seen, on every thread.

    Args:
        device: ``"maca"``, ``"cuda"`` or ``"cpu"``: only operators on it are seen; None: on all.
        op_list: names as in ``"sum"`` or ``"add.Tensor"``: only these are judged.
        shadows: follow a float64 shadow of all memory, for inherited errors; it takes as much time again.

    Raises:
        ValueError: an unknown device, or a name that the op table does not have.
    """
    watch = _Parity(chosen_devices(device), known_operators(op_list), shadows)
    return run_under(watch, function)
