"""Finds the operator that makes the first NaN or infinity; counts what float16 nearly loses at both ends."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from macatensor.accuracy.local.local_error import chosen_devices
from macatensor.accuracy.local.origin import Origin, origin, traced
from macatensor.parity.samples import describe
from macatensor.parity.transport import host_copy, tensors
from macatensor.parity.watch import Seen, Watch, is_drawn
from macatensor.runtime.boxed import Value
from op_table import Row

_NEAR = torch.finfo(torch.float16).max / 2  # 32752: one doubling from infinity
_SMALLEST = {torch.float16: 2.0**-14, torch.bfloat16: 2.0**-126}  # normal numbers


class NonFiniteError(ArithmeticError):
    """An operator made a NaN or an infinity; ``event`` is the :class:`NonFinite` with its inputs."""

    def __init__(self, event: NonFinite):
        super().__init__(str(event))
        self.event = event


@dataclass
class NonFinite:
    """A call whose outputs hold NaN or infinity that its inputs did not. ``inputs``: its tensors before the call, on
    the host. ``file``: where they are saved, with ``.json`` beside it."""

    op: str
    nan: int  # elements
    inf: int
    number: int  # of the call, from 0
    origin: Origin
    inputs: list[torch.Tensor]
    arguments: str
    file: Path | None = None

    def __str__(self) -> str:
        held = " and ".join(f"{n} {what}" for n, what in ((self.nan, "NaN"), (self.inf, "Inf")) if n)
        lines = [
            f"{self.op} makes {held} from inputs without: {self.arguments}",
            f"  call {self.number}, {self.origin}",
        ]
        lines += [f"    {frame}" for frame in self.origin.shown]
        if remedy := self._remedy():
            lines.append(f"  {remedy}")
        if self.file is not None:
            lines.append(f"  inputs: {self.file}")
        return "\n".join(lines)

    def _remedy(self) -> str:
        """What a program can do about it, where the operands tell."""
        operator = self.op.partition(".")[0].removesuffix("_")
        if self.inf and any(t.dtype == torch.float16 for t in self.inputs):
            return "float16 ends at 65504: compute this in float32 or bfloat16, or scale what comes in (a loss by less)"
        divisor = self.inputs[1] if len(self.inputs) > 1 else None
        if operator in ("div", "reciprocal") and bool(
            ((self.inputs[0] if divisor is None else divisor) == 0).any()
        ):
            return (
                "a divisor is zero, as in gradients of sqrt and norm at zero: add a small number below them"
            )
        if operator in ("log", "log2", "log10", "log1p", "rsqrt") and self.inputs:
            if bool((self.inputs[0] <= 0).any()):
                return "an operand is zero or negative: clamp it, or use log_softmax and the losses that take logits"
        return ""


@dataclass
class HalfCounts:
    """Elements of one operator's float16 results (bfloat16 too in gradients)."""

    elements: int = 0
    near_overflow: int = 0  # above 32752, finite: forward and backward
    gradients: int = 0  # elements of backward results
    subnormal: int = 0  # of those, below the smallest normal number: digits are lost
    flushed: int = 0  # of those, 0 where no input of the same sizes is 0


@dataclass
class Overflows:
    """What :func:`overflow` saw."""

    events: list[NonFinite] = field(default_factory=list)
    halves: dict[str, HalfCounts] = field(default_factory=dict)  # by operator
    calls: int = 0

    @property
    def first(self) -> NonFinite | None:
        return self.events[0] if self.events else None

    def __str__(self) -> str:
        lines = [str(e) for e in self.events] or [f"{self.calls} calls, no new NaN or infinity"]
        for name, c in self.halves.items():
            if c.near_overflow:
                lines.append(f"{name}: {c.near_overflow} of {c.elements} float16 elements above {_NEAR:g}")
            if c.subnormal or c.flushed:
                lines.append(
                    f"{name}: of {c.gradients} elements of half gradients {c.subnormal} subnormal, {c.flushed} flushed to 0"
                )
        return "\n".join(lines)


def _count(found: Sequence[torch.Tensor | None]) -> tuple[int, int]:
    nan = inf = 0
    for t in found:
        if t is not None and (t.is_floating_point() or t.is_complex()) and t.element_size() > 1:
            nan += int(t.isnan().sum())
            inf += int(t.isinf().sum())
    return nan, inf


def _given(value: Value) -> tuple[bool, bool]:
    """Is a NaN, an infinity among plain numbers? As in ``masked_fill(mask, -inf)``."""
    if isinstance(value, float):
        return math.isnan(value), math.isinf(value)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        found = [_given(v) for v in value]
        return any(f[0] for f in found), any(f[1] for f in found)
    return False, False


def _has_inputs(seen: Seen) -> bool:
    """Are there copies of what it reads? Random operators and those without a row are looked at too."""
    return seen.copies is not None and not is_drawn(seen.row)


class _Overflow(Watch):
    def __init__(self, devices: tuple[str, ...], stop: bool, folder: Path | None, most: int):
        super().__init__(devices)
        self.report = Overflows()
        self.stop = stop
        self.folder = folder
        self.most = most

    def after(self, seen: Seen) -> None:
        if seen.why_not.endswith(("memory", "elements", "strided tensor")):
            return
        with self.lock:
            number = self.report.calls
            self.report.calls += 1
            if not _has_inputs(seen):
                inputs: list[torch.Tensor] = []
                results = [None if t is None else host_copy(t) for t in seen.results]
            else:
                inputs = [t for t in tensors(seen.copies) if t is not None]
                # a written operand that is the result counts once
                own = [h for h, t in zip(seen.host, seen.results) if id(t) not in seen.written]
                results = own + seen.changed
            self.count_halves(seen, inputs, results)
            event = self.judge(seen, number, inputs, results)
            if event is None or len(self.report.events) >= self.most:
                return
            self.report.events.append(event)
            if self.folder is not None:
                event.file = _save(self.folder, event)
        if self.stop:
            raise NonFiniteError(event)

    def judge(
        self,
        seen: Seen,
        number: int,
        inputs: list[torch.Tensor],
        results: Sequence[torch.Tensor | None],
    ) -> NonFinite | None:
        nan, inf = _count(results)
        if not nan and not inf:
            return None
        had_nan, had_inf = _count(
            inputs if _has_inputs(seen) else [t for t in seen.operands if t is not None]
        )
        plain_nan, plain_inf = _given((seen.args, seen.kwargs))
        if had_nan or plain_nan or ((had_inf or plain_inf) and not nan):
            return None
        if (had_inf or plain_inf) and nan and _expects_infinity(seen.row):
            return None
        shown = ", ".join(describe(t) for t in inputs) or "no tensors"
        return NonFinite(seen.name, nan, 0 if had_inf else inf, number, origin(), inputs, shown)

    def count_halves(
        self, seen: Seen, inputs: list[torch.Tensor], results: Sequence[torch.Tensor | None]
    ) -> None:
        for t in results:
            if t is None or t.dtype not in _SMALLEST:
                continue
            c = self.report.halves.setdefault(seen.name, HalfCounts())
            size = t.abs()
            c.elements += t.numel()
            if t.dtype is torch.float16:
                c.near_overflow += int(((size > _NEAR) & size.isfinite()).sum())
            if torch._C._current_graph_task_id() == -1:
                continue
            c.gradients += t.numel()
            c.subnormal += int(((size > 0) & (size < _SMALLEST[t.dtype])).sum())
            same = [x for x in inputs if x.shape == t.shape and x.is_floating_point()]
            if same:
                nonzero = torch.stack([x != 0 for x in same]).all(0)
                c.flushed += (
                    int((nonzero & (t == 0)).sum()) if seen.row is not None and seen.row.underflows else 0
                )


def _expects_infinity(row: Row | None) -> bool:
    """Softmaxes of rows that are masked whole are NaN by definition."""
    return row is not None and row.operator in ("_softmax", "_log_softmax")


def _save(folder: Path, event: NonFinite) -> Path:
    from macatensor.accuracy.elements import save, writable

    folder.mkdir(parents=True, exist_ok=True)
    stem = f"nonfinite_{event.number:06d}_{event.op.replace('.', '_')}"
    number = 1
    while (file := folder / f"{stem}{'' if number == 1 else f'_{number}'}.safetensors").exists():
        number += 1
    save(file, {str(i): writable(t).clone() for i, t in enumerate(event.inputs)})
    facts = {
        "op": event.op, "nan": event.nan, "inf": event.inf, "call": event.number, "direction": event.origin.direction,
        "node": event.origin.node, "stack": list(event.origin.frames), "inputs": [describe(t) for t in event.inputs],
    }  # fmt: skip
    file.with_suffix(".json").write_text(json.dumps(facts, indent=2) + "\n")
    return file


@contextlib.contextmanager
def overflow(
    stop: bool = True, *, device: str | None = None, output_dir: str | Path | None = None, most: int = 100
) -> Iterator[Overflows]:
    """Watches a program for the first operator whose outputs hold NaN or infinity that its inputs did not.

    ``with accuracy.overflow() as seen: step()``; forward and backward. A number given as ``-inf``, as to
    ``masked_fill``, counts as an input. Float16 results near overflow and half gradients that lose digits are counted
    in ``seen.halves`` without an error.

    Args:
        stop: raise at the first such operator; False lists them, ``most`` at most.
        device: ``"maca"``, ``"cuda"`` or ``"cpu"``: only operators on it; None: all.
        output_dir: save the operator's inputs there as safetensors, its stack as JSON.

    Raises:
        NonFiniteError: with ``stop``, an operator made one.
        ValueError: an unknown device.
    """
    watch = _Overflow(chosen_devices(device), stop, None if output_dir is None else Path(output_dir), most)
    with traced(), watch.watching():
        yield watch.report
