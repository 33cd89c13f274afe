"""One call of an operator by itself: its arguments on the host, from which it can be run again on any device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import torch

from macatensor.accuracy.local.circumstances import Circumstance, brought_about, memory_used_before
from macatensor.accuracy.local.fences import Fenced
from macatensor.dispatch import named_kernels
from macatensor.dispatch.host_fallback import fallback
from macatensor.dispatch.placed_results import place_results
from macatensor.parity import random_numbers, transport
from macatensor.parity.reference import Aim, aims, expected
from macatensor.parity.transport import host_copy, place, tensors
from macatensor.parity.watch import NamedKernel, Seen, Verdict, short_name, verdict_of, written_by
from macatensor.parity.wide_calls import Operator
from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.meta import contiguous_meta
from macatensor.runtime.random import drawn_at
from macatensor.runtime.tensor import MacaTensor
from op_table import Row

Tensors = list[torch.Tensor | None]


def resolved(t: torch.Tensor) -> torch.Tensor:
    """Without lazy conjugation and negation."""
    return t.resolve_conj().resolve_neg()


@dataclass(frozen=True)
class OpCall:
    """A call. ``at_host``: which of its tensors (by position among :func:`tensors` of the arguments) stay on the host
    whatever the device, as 0-dim numbers may. ``made``: dtypes of the results of a kernel that no operator names.
    ``state``: of the device's generator, for a call that draws. ``circumstance``: in which it runs on maca."""

    func: Operator
    row: Row
    args: Arguments
    kwargs: Keywords = field(default_factory=dict)
    at_host: frozenset[int] = frozenset()
    made: tuple[torch.dtype | None, ...] = ()
    state: random_numbers.State | None = None
    circumstance: Circumstance = Circumstance.ALONE

    @classmethod
    def of(cls, seen: Seen) -> OpCall:
        """The call that a watch saw, from the operands it had before."""
        assert seen.copies is not None and seen.row is not None
        args, kwargs = transport.replace(seen.copies, resolved)
        on_maca = any(isinstance(t, MacaTensor) for t in seen.operands)
        stay = {
            i
            for i, t in enumerate(seen.operands)
            if t is not None and on_maca and not isinstance(t, MacaTensor)
        }
        made = tuple(None if t is None else t.dtype for t in seen.host)
        return cls(seen.func, seen.row, tuple(args), dict(kwargs), frozenset(stay), made, seen.state)

    @property
    def name(self) -> str:
        return short_name(self.func)

    @property
    def operands(self) -> Tensors:
        return tensors((self.args, self.kwargs))

    def with_operands(self, operands: Tensors) -> OpCall:
        """The same call of other tensors, one for each of :attr:`operands`."""
        left = iter(operands)

        def visit(value: Value) -> Value:
            if value is None or isinstance(value, torch.Tensor):
                return next(left)
            if isinstance(value, (list, tuple)):
                return type(value)(visit(v) for v in value)
            if isinstance(value, dict):
                return {k: visit(v) for k, v in value.items()}
            return value

        args, kwargs = visit(self.args), visit(self.kwargs)
        return replace(self, args=args, kwargs=kwargs)

    def on(self, device: str) -> tuple[Arguments, Keywords]:
        """Arguments on a device, with their strides."""
        operands = self.operands
        moved: dict[int, torch.Tensor] = {}
        for i, t in enumerate(operands):
            if t is None:
                continue
            if device == "maca" and i not in self.at_host:
                moved[i] = place(t)
            else:
                moved[i] = transport.twin(t)
                if device not in ("maca", "cpu") and i not in self.at_host:
                    moved[i] = moved[i].to(device)
        call = self.with_operands([moved.get(i) for i in range(len(operands))])

        def aimed(value: Value) -> Value:
            if isinstance(value, torch.device):
                return torch.device(device)
            if isinstance(value, (list, tuple)):
                return type(value)(aimed(v) for v in value)
            if isinstance(value, dict):
                return {k: aimed(v) for k, v in value.items()}
            return value

        return aimed(call.args), aimed(call.kwargs)

    def run(self, device: str, on_host: str = "silent") -> tuple[Tensors, Tensors]:
        """Results, and operands after the call (None: not written), as copies on the host. ``on_host``: what happens
        to an operator without a kernel, as for :func:`macatensor.fallback`."""
        return next(self.runs(device, 1, on_host))

    def runs(self, device: str, times: int, on_host: str = "silent") -> Iterator[tuple[Tensors, Tensors]]:
        """:meth:`run` several times: operands that are only read are placed once."""
        placed: tuple[Arguments, Keywords] | None = None
        written: set[int] = set()
        rewritten = device == "maca" and self.circumstance is Circumstance.REWRITTEN
        used = memory_used_before(self.operands) if rewritten else []
        try:
            for _ in range(times):
                if placed is None or written:
                    placed = self.on(device)
                    written = written_by(self.func, self.row, *placed)
                yield self._run(device, *placed, written, on_host)
        finally:
            placed = None  # its memory goes first: the next one to ask for as much gets it last
            used.clear()

    def _run(
        self, device: str, args: Arguments, kwargs: Keywords, written: set[int], on_host: str
    ) -> tuple[Tensors, Tensors]:
        def call() -> Value:
            if isinstance(self.func, NamedKernel) and device == "maca":
                return self._launch(args, kwargs)
            return self.func(*args, **kwargs)

        ours = device == "maca"
        seeded = self._seeded() if ours else contextlib.nullcontext()
        circumstance = self.circumstance if ours else Circumstance.ALONE
        with torch.no_grad(), fallback(on_host), brought_about(circumstance, args, kwargs, call), seeded:
            outcome = call()
        results = [None if t is None else resolved(host_copy(t)) for t in tensors(outcome)]
        changed = [
            host_copy(t) if t is not None and id(t) in written else None for t in tensors((args, kwargs))
        ]
        return results, changed

    def _seeded(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if self.state is None else drawn_at(self.state)

    def _launch(self, args: Arguments, kwargs: Keywords) -> Value:
        like = tensors(self.func(*self.args, **self.kwargs))
        metas = [
            None if t is None or dtype is None else contiguous_meta(t.shape, dtype)
            for t, dtype in zip(like, self.made)
        ]
        return named_kernels.launch(self.func._schema.name, list(args), metas, kwargs)

    def judge(self, device: str) -> Verdict:
        """Runs it on a device and judges it by the row's bound against float64."""
        results, changed = self.run(device)
        with torch.no_grad():
            return verdict_of(
                self.func, self.row, (self.args, self.kwargs), results, changed, device != "maca", self.state
            )

    def trespasses(self, results: Tensors | None = None) -> list[str]:
        """What the call writes on maca that it must not: operands that it only reads, memory around any of its tensors.

        ``results``: of the call, where they are known. Raises what the call raises; nothing is said of a call that the host computes or that PyTorch has under no name.
        """
        if isinstance(self.func, NamedKernel):
            return []
        operands = self.operands
        fenced = [
            None if t is None or i in self.at_host else Fenced.of(resolved(t)) for i, t in enumerate(operands)
        ]
        moved = self.with_operands([t if f is None else f.view for t, f in zip(operands, fenced)])
        args, kwargs = moved.args, moved.kwargs
        written = written_by(self.func, self.row, args, kwargs)
        results = self.run("maca")[0] if results is None else results
        around = [Fenced.of(t) for t in results if t is not None]
        with torch.no_grad(), fallback("error"), self._seeded():
            if not place_results(self.func, args, kwargs, [f.view for f in around]):
                around = []
                self.func(*args, **kwargs)
        found = [
            f.spilled(f"operand {i}", id(f.view) in written) for i, f in enumerate(fenced) if f is not None
        ]
        found += [f.spilled(f"result {i}", True) for i, f in enumerate(around)]
        return [text for text in found if text]

    def aims(self, results: Tensors, changed: Tensors, device: str) -> list[Aim | None]:
        """What each result, and each operand after the call, is measured by on a device."""
        if self.state is not None:
            return self._aims_of_numbers(self.state, results, changed)
        with torch.no_grad():
            want = expected(self.func, self.row, self.args, self.kwargs, device != "maca")
            return aims(self.row, want, results + changed, self.args)

    def _aims_of_numbers(
        self, state: random_numbers.State, results: Tensors, changed: Tensors
    ) -> list[Aim | None]:
        first = results[0]
        assert first is not None
        nothing: list[Aim | None] = [None] * len(changed)
        if self.row.operator == "native_dropout":
            x, p, train = self.args
            mask = random_numbers.kept_by_dropout(state, first.shape, p if train or train is None else 0.0)
            return [None, Aim(mask), *nothing]
        return [
            random_numbers.aim(
                self.row.numbers, state, first, random_numbers.by_name(self.func, self.args, self.kwargs)
            ),
            *nothing,
        ]

    @property
    def elements(self) -> int:
        return sum(t.numel() for t in self.operands if t is not None)


def same_bits(a: Tensors, b: Tensors) -> bool:
    """Are all tensors the same, NaN for NaN?"""
    for x, y in zip(a, b):
        if (x is None) != (y is None):
            return False
        if x is None or y is None:
            continue
        if x.shape != y.shape or x.dtype != y.dtype:
            return False
        if x.element_size() == 1:
            x, y = x.view(torch.uint8), y.view(torch.uint8)
        if x.dtype is torch.complex32:  # PyTorch compares none of them
            x, y = torch.view_as_real(x), torch.view_as_real(y)
        if torch.equal(x, y):
            continue
        if not (x.is_floating_point() or x.is_complex()):
            return False
        if not bool(((x == y) | (x.isnan() & y.isnan())).all()):
            return False
    return True
