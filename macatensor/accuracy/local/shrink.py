"""Makes a failing call small: fewer elements, plain strides, simple values, while it still fails (delta debugging).

Candidates are run on the device first: its kernels check what they are given, PyTorch's internal ones do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch._ops import OpOverload

from macatensor.accuracy.local.op_call import OpCall
from macatensor.dispatch.consultation import may_ask_cpu
from macatensor.parity.formulas import FORMULAS
from macatensor.parity.transport import tensors
from macatensor.parity.watch import NamedKernel
from macatensor.runtime.boxed import Value

Fails = Callable[[OpCall], bool]


def _with_derived(call: OpCall) -> OpCall:
    """The call with the operands that follow from others made anew: what runs attention's backward pass by itself runs
    the forward pass before, so that an output and a logsumexp of other sizes or values would be no fault."""
    if not isinstance(call.func, NamedKernel) or call.name != "sdpa_backward":
        return call
    grad, *of_forward, output, logsumexp = call.args
    wide = [t.double() if t is not None and t.is_floating_point() else t for t in of_forward]
    made = FORMULAS["sdpa_forward"](*wide, **call.kwargs)
    derived = [
        torch.empty_like(given).copy_(t) if given.shape == t.shape else t.to(given.dtype)
        for given, t in zip((output, logsumexp), made)
    ]
    return replace(call, args=(grad, *of_forward, *derived))


class _Shrinker:
    def __init__(self, call: OpCall, fails: Fails, seconds: float, tries: int):
        self.call = call
        self.fails = fails
        self.end = time.monotonic() + seconds
        self.tries = tries

    @property
    def over(self) -> bool:
        return self.tries <= 0 or time.monotonic() > self.end

    def attempt(self, candidate: OpCall) -> bool:
        """Takes the candidate if it still fails."""
        if self.over:
            return False
        self.tries -= 1
        try:
            candidate = _with_derived(candidate)
            still = self.fails(candidate)
        except Exception:  # operands that contradict each other
            return False
        if still:
            self.call = candidate
        return still

    # -- fewer elements
    def extents(self) -> list[int]:
        found = {n for t in self.call.operands if t is not None for n in t.shape if n > 1}
        return sorted(found, reverse=True)

    def places(self, extent: int) -> list[tuple[int, int]]:
        """(operand, dimension) of every dimension of an extent."""
        return [
            (i, d)
            for i, t in enumerate(self.call.operands)
            if t is not None
            for d, n in enumerate(t.shape)
            if n == extent
        ]

    def cut(self, places: list[tuple[int, int]], kept: list[slice], extent: int) -> OpCall:
        """The call with some of each place's slices; lists of sizes among the arguments follow."""
        operands = list(self.call.operands)
        length = sum(k.stop - k.start for k in kept)
        for i, d in places:
            t = operands[i]
            assert t is not None
            parts = [t.narrow(d, k.start, k.stop - k.start) for k in kept]
            operands[i] = parts[0].clone() if len(parts) == 1 else torch.cat(parts, d)
        call = self.call.with_operands(operands)

        def sized(value: Value) -> Value:
            if isinstance(value, list) and all(type(v) is int for v in value) and extent in value:
                return [length if v == extent else v for v in value]
            return value

        sizes = {"size", "input_size", "output_size", "sizes", "self_sizes", "input_sizes"}
        arguments = call.func._schema.arguments
        args = tuple(
            sized(v) if i < len(arguments) and arguments[i].name in sizes else v
            for i, v in enumerate(call.args)
        )
        return replace(
            call, args=args, kwargs={k: sized(v) if k in sizes else v for k, v in call.kwargs.items()}
        )

    def ways(self, extent: int) -> Iterator[list[tuple[int, int]]]:
        """Dimensions that may be one and the same: all of an extent, those of each operand, each."""
        places = self.places(extent)
        yield places
        func = self.call.func
        if not isinstance(func, OpOverload) or not may_ask_cpu(func):
            return
        by_dimension = {d for _, d in places}
        for d in sorted(by_dimension):
            yield [p for p in places if p[1] == d]
        for i in sorted({i for i, _ in places}):
            yield [p for p in places if p[0] == i]
        for p in places:
            yield [p]

    def shrink_extent(self, extent: int) -> bool:
        for places in self.ways(extent):
            if not places:
                continue
            pieces = 2
            while pieces <= extent:
                step = -(-extent // pieces)
                spans = [slice(s, min(s + step, extent)) for s in range(0, extent, step)]
                for span in spans:  # one piece alone
                    if span.stop - span.start < extent and self.attempt(self.cut(places, [span], extent)):
                        return True
                if pieces > 2:
                    for i in range(len(spans)):  # all but one
                        rest = spans[:i] + spans[i + 1 :]
                        if self.attempt(self.cut(places, rest, extent)):
                            return True
                if pieces >= extent or self.over or pieces >= 16:
                    break
                pieces = min(pieces * 2, extent)
        return False

    def shrink_sizes(self) -> None:
        moved = True
        while moved and not self.over:
            moved = any(self.shrink_extent(n) for n in self.extents())

    # -- plain strides
    def straighten(self) -> None:
        for i, t in enumerate(self.call.operands):
            if t is not None and not t.is_contiguous():
                self.attempt(self.exchanged(i, t.clone(memory_format=torch.contiguous_format)))

    def exchanged(self, i: int, t: torch.Tensor | None) -> OpCall:
        operands = list(self.call.operands)
        operands[i] = t
        return self.call.with_operands(operands)

    # -- simple values
    def drop_optional(self) -> None:
        for i, argument in enumerate(self.call.func._schema.arguments):
            held = self.call.args[i] if i < len(self.call.args) else self.call.kwargs.get(argument.name)
            if str(argument.type) != "Optional[Tensor]" or not isinstance(held, torch.Tensor):
                continue
            if i < len(self.call.args):
                args = tuple(None if j == i else a for j, a in enumerate(self.call.args))
                self.attempt(replace(self.call, args=args))
            else:
                self.attempt(replace(self.call, kwargs={**self.call.kwargs, argument.name: None}))

    def simplify(self, i: int) -> None:
        """Operand ``i``: all 0, all 1, whole numbers; else as many zeros, and then ones, as can be."""
        t = self.call.operands[i]
        if t is None or not t.numel() or t.dtype is torch.bool:
            return
        if not (t.is_floating_point() or t.is_complex()):
            self.attempt(self.exchanged(i, torch.zeros_like(t)))
            return
        if not bool((t != 0).any()) or self.attempt(self.exchanged(i, torch.zeros_like(t))):
            return
        if self.attempt(self.exchanged(i, torch.ones_like(t))):
            return
        if not t.is_complex():
            for digits in (0, 1, 2):
                rounded = (t.double() * 10**digits).round().div(10**digits).to(t.dtype)
                if self.attempt(self.exchanged(i, rounded)):
                    break
        self.fill(i, 0.0)

    def fill(self, i: int, value: float) -> None:
        """As many elements of operand ``i`` as can be become ``value``."""
        t = self.call.operands[i]
        assert t is not None
        if any(n > 1 and s == 0 for n, s in zip(t.shape, t.stride())):
            return
        chunk = t.numel()
        while chunk >= 1 and not self.over:
            for start in range(0, t.numel(), chunk):
                now = self.call.operands[i]
                assert now is not None
                tried = now.clone()
                row_major = now.reshape(-1).clone()
                row_major[start : start + chunk] = value
                tried.copy_(row_major.reshape(tried.shape))
                if not torch.equal(tried, now):
                    self.attempt(self.exchanged(i, tried))
            chunk //= 2
            if t.numel() > 256 and chunk < t.numel() // 64:
                break

    def run(self) -> OpCall:
        self.shrink_sizes()
        self.straighten()
        self.drop_optional()
        for i in range(len(self.call.operands)):
            self.simplify(i)
        self.shrink_sizes()
        return self.call


def shrink(call: OpCall, fails: Fails, seconds: float = 20.0, tries: int = 2000) -> OpCall:
    """The smallest call found for which ``fails`` is true; it is true of ``call``.

    ``fails`` may raise: a call whose operands contradict each other is none. ``seconds`` and ``tries`` bound the work.
    """
    with torch.no_grad():
        return _Shrinker(call, fails, seconds, tries).run()


def sizes_of(call: OpCall) -> list[list[int]]:
    """Sizes of a call's tensors."""
    return [list(t.shape) for t in tensors((call.args, call.kwargs)) if t is not None]
