"""One call of an operator by itself: its arguments on the host, from which it can be run again on any device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from macatensor.dispatch import named_kernels
from macatensor.dispatch.host_fallback import fallback
from macatensor.parity import transport
from macatensor.parity.reference import Aim, Operator, aims, expected
from macatensor.parity.transport import host_copy, place, tensors
from macatensor.parity.watch import NamedKernel, Seen, Verdict, short_name, verdict_of, written_by
from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.meta import contiguous_strides, meta_of
from macatensor.runtime.tensor import MacaTensor
from op_table import Row

Tensors = list[torch.Tensor | None]


def _resolved(t: torch.Tensor) -> torch.Tensor:
    return t.resolve_conj().resolve_neg()


@dataclass(frozen=True)
class OpCall:
    """A call. ``at_host``: which of its tensors (by position among :func:`tensors` of the arguments) stay on the host
    whatever the device, as 0-dim numbers may. ``made``: dtypes of the results of a kernel that no operator names."""

    func: Operator
    row: Row
    args: Arguments
    kwargs: Keywords = field(default_factory=dict)
    at_host: frozenset[int] = frozenset()
    made: tuple[torch.dtype | None, ...] = ()

    @classmethod
    def of(cls, seen: Seen) -> OpCall:
        """The call that a watch saw, from the operands it had before."""
        assert seen.copies is not None and seen.row is not None
        args, kwargs = transport.replace(seen.copies, _resolved)
        on_maca = any(isinstance(t, MacaTensor) for t in seen.operands)
        stay = {
            i
            for i, t in enumerate(seen.operands)
            if t is not None and on_maca and not isinstance(t, MacaTensor)
        }
        made = tuple(None if t is None else t.dtype for t in seen.host)
        return cls(seen.func, seen.row, tuple(args), dict(kwargs), frozenset(stay), made)

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
        args, kwargs = self.on(device)
        written = written_by(self.func, self.row, args, kwargs)
        with torch.no_grad(), fallback(on_host):
            if isinstance(self.func, NamedKernel) and device == "maca":
                outcome = self._launch(args, kwargs)
            else:
                outcome = self.func(*args, **kwargs)
        results = [None if t is None else _resolved(host_copy(t)) for t in tensors(outcome)]
        changed = [
            host_copy(t) if t is not None and id(t) in written else None for t in tensors((args, kwargs))
        ]
        return results, changed

    def _launch(self, args: Arguments, kwargs: Keywords) -> Value:
        like = tensors(self.func(*self.args, **self.kwargs))
        metas = [
            None
            if t is None or dtype is None
            else meta_of(tuple(t.shape), contiguous_strides(tuple(t.shape)), dtype)
            for t, dtype in zip(like, self.made)
        ]
        return named_kernels.launch(self.func._schema.name, list(args), metas, kwargs)

    def judge(self, device: str) -> Verdict:
        """Runs it on a device and judges it by the row's bound against float64."""
        results, changed = self.run(device)
        with torch.no_grad():
            return verdict_of(
                self.func, self.row, (self.args, self.kwargs), results, changed, device != "maca"
            )

    def aims(self, results: Tensors, changed: Tensors, device: str) -> list[Aim | None]:
        """What each result, and each operand after the call, is measured by on a device."""
        with torch.no_grad():
            want = expected(self.func, self.row, self.args, self.kwargs, device != "maca")
            return aims(self.row, want, results + changed, self.args)

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
        same = x == y
        if x.is_floating_point() or x.is_complex():
            same = same | (x.isnan() & y.isnan())
        if not bool(same.all()):
            return False
    return True
