"""How far each operator's output moves when its inputs move by one unit in the last place: no reference is needed.

An operator that multiplies such a step by a large factor makes any two devices differ: the model is unstable there. A
device whose result is farther from another's than steps of the inputs explain has a wrong kernel.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import overload

import torch

from macatensor.accuracy.local.local_error import chosen_devices, distance, known_operators
from macatensor.accuracy.local.op_call import OpCall
from macatensor.accuracy.local.origin import Origin, origin
from macatensor.accuracy.local.program import run_under
from macatensor.parity.measure import ulp_at
from macatensor.parity.transport import twin
from macatensor.parity.watch import Seen, Watch, is_on_maca
from op_table import Kind, Row

UNSTABLE = 1000.0  # gain: of float32's 7 digits 4 are left
_EXPLAINED = 8.0  # times the movement: the errors inside of an operator are a few steps
_ULPS = 4.0  # of the result, that any two right kernels may differ by


@dataclass
class Movement:
    """One call. ``step``: how far its inputs were moved, ``moved``: how far its outputs then moved, ``difference``:
    between the device's outputs and PyTorch's CPU kernel's; all ``norm(a - b) / norm(b)``. ``gain``: moved / step."""

    number: int
    op: str
    origin: Origin
    step: float
    moved: float
    gain: float
    difference: float | None
    verdict: str  # "steady", "unstable", "wrong kernel"


@dataclass
class Movements:
    """What :func:`.perturbation` found, call by call."""

    calls: list[Movement] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)  # operators without inputs that can move

    @property
    def unstable(self) -> list[Movement]:
        return [c for c in self.calls if c.verdict == "unstable"]

    @property
    def wrong(self) -> list[Movement]:
        return [c for c in self.calls if c.verdict == "wrong kernel"]

    @property
    def verdict(self) -> str:
        """``"wrong kernel"``, ``"unstable model"`` or ``"steady"``."""
        return "wrong kernel" if self.wrong else "unstable model" if self.unstable else "steady"

    def __str__(self) -> str:
        lines = [
            f"{self.verdict}: {len(self.calls)} calls, {len(self.unstable)} unstable, {len(self.wrong)} wrong"
        ]
        shown = {c.number for c in sorted(self.calls, key=lambda c: -c.gain)[:10] + self.wrong[:10]}
        for c in self.calls:
            if c.number in shown:
                other = "-" if c.difference is None else f"{c.difference:.2g}"
                lines.append(
                    f"  {c.verdict:12} {c.number:6d} {c.op:36} gain {c.gain:.3g}, from PyTorch's CPU kernel {other}, {c.origin}"
                )
        return "\n".join(lines)


def moved_by_one(t: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Every nonzero finite element moved one unit in the last place up or down; other dtypes as they are."""
    moved = twin(t)
    if t.is_complex():
        parts = torch.view_as_real(moved.resolve_conj())
        parts.copy_(moved_by_one(parts.clone(), generator))
        return moved
    if not t.is_floating_point() or t.element_size() == 1 or not t.numel():
        return moved
    # every element of memory once: an expanded operand stays one
    memory = torch.as_strided(moved, (moved.untyped_storage().nbytes() // moved.element_size(),), (1,), 0)
    wide = memory.double()
    signs = torch.randint(0, 2, wide.shape, generator=generator, device="cpu") * 2 - 1
    step = ulp_at(wide.abs().nan_to_num(nan=0.0, posinf=0.0), t.dtype)
    memory.copy_(torch.where((wide != 0) & wide.isfinite(), wide + signs * step, wide))
    return moved


def _largest(pairs: Sequence[tuple[torch.Tensor | None, torch.Tensor | None]]) -> float | None:
    known = [d for d in (distance(a, b) for a, b in pairs) if d is not None]
    return max(known) if known else None


class _Perturb(Watch):
    def __init__(self, devices: tuple[str, ...], op_list: frozenset[str], trials: int, seed: int):
        super().__init__(devices)
        self.report = Movements()
        self.op_list = op_list
        self.trials = trials
        self.generator = torch.Generator().manual_seed(seed)

    def wants(self, row: Row | None, name: str) -> bool:
        return not self.op_list or name in self.op_list or (row is not None and row.operator in self.op_list)

    def after(self, seen: Seen) -> None:
        with self.lock:
            row = seen.row
            if seen.copies is None or row is None or row.random or row.kind is Kind.VIEW:
                self.report.skipped[seen.name] += 1
                return
            call = OpCall.of(seen)
            device = "maca" if is_on_maca(seen.operands) else "cpu"
            got = seen.host + seen.changed
            step = moved = 0.0
            for _ in range(self.trials):
                other = call.with_operands(
                    [None if t is None else moved_by_one(t, self.generator) for t in call.operands]
                )
                step = max(step, _largest(list(zip(other.operands, call.operands))) or 0.0)
                try:
                    results, changed = other.run(device)
                except Exception:  # operands that have to agree with each other
                    break
                moved = max(moved, _largest(list(zip(results + changed, got))) or 0.0)
            if not step:
                self.report.skipped[seen.name] += 1
                return
            self.note(seen, call, step, moved, device)

    def note(self, seen: Seen, call: OpCall, step: float, moved: float, device: str) -> None:
        gain = moved / step
        difference = None
        if device != "cpu":
            with contextlib.suppress(Exception):  # kernels that PyTorch's CPU does not have
                results, changed = call.run("cpu")
                difference = _largest(list(zip(seen.host + seen.changed, results + changed)))
        halves = [t.dtype for t in seen.host if t is not None and t.is_floating_point()]
        digit = max((torch.finfo(d).eps for d in halves), default=0.0)
        verdict = "unstable" if gain > UNSTABLE else "steady"
        if difference is not None and not difference <= _EXPLAINED * moved + _ULPS * digit:
            verdict = "wrong kernel"
        self.report.calls.append(
            Movement(len(self.report.calls), seen.name, origin(), step, moved, gain, difference, verdict)
        )


@overload
def perturbation(
    function: None = None,
    *,
    device: str | None = ...,
    op_list: Sequence[str] = ...,
    trials: int = ...,
    seed: int = ...,
) -> AbstractContextManager[Movements]: ...


@overload
def perturbation(
    function: Callable[[], object],
    *,
    device: str | None = ...,
    op_list: Sequence[str] = ...,
    trials: int = ...,
    seed: int = ...,
) -> Movements: ...


def perturbation(
    function: Callable[[], object] | None = None,
    *,
    device: str | None = "maca",
    op_list: Sequence[str] = (),
    trials: int = 3,
    seed: int = 0,
) -> Movements | AbstractContextManager[Movements]:
    """Launches every operator of a program again from inputs moved by one unit in the last place, up or down.

    ``with accuracy.perturbation() as moved: step()`` or ``moved = accuracy.perturbation(step)``; the result is a
    :class:`.Movements`. An operator is "unstable" where its output moves over 1000 times as far as its inputs; on
    another device than the CPU "wrong kernel" where it lies farther from PyTorch's CPU kernel than 8 times what such
    steps explain.

    Args:
        device: ``"maca"``, ``"cuda"``, ``"cpu"``, or None for all.
        op_list: names as in ``"sum"`` or ``"add.Tensor"``: only these.
        trials: random choices of up and down, made from ``seed``.

    Raises:
        ValueError: an unknown device, or a name that the op table does not have.
    """
    watch = _Perturb(chosen_devices(device), known_operators(op_list), trials, seed)
    return run_under(watch, function)
