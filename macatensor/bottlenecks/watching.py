"""What each outermost operator of a step did, and which line of the program called it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry

from macatensor.bottlenecks.lines import NOWHERE, Line, here, users_line
from macatensor.dispatch import sites
from macatensor.runtime import counters, sync_debug
from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.ffi import ffi, lib
from macatensor.runtime.tensor import MacaTensor

_COPIES = frozenset({"clone", "_to_copy", "contiguous", "copy_"})
_MOST = 400_000  # calls that are kept


class Call(NamedTuple):
    """One outermost operator; times in ns of the real-time clock."""

    operator: str  # "aten.add.Tensor"
    line: Line
    thread: int  # the operating system's number
    start: int
    end: int
    flops: int  # of products, convolutions and attention by PyTorch's formulas; else an element of the result each
    conversions: int  # copies of 4-D tensors between channels_last and contiguous
    strided: int  # copies that the runtime made because a kernel wants dense operands
    fallbacks: int  # calls computed on the host
    nbytes: int  # of its results that are new
    reserved: int  # by which the device's reserved memory grew
    idle: int  # bytes that were reserved and free before it grew

    @property
    def name(self) -> str:
        """``"add"``: without namespace and overload."""
        return self.operator.removeprefix("aten.").removeprefix("aten::").partition(".")[0]


class Wait(NamedTuple):
    """The host waited for the device, or copied from or to it."""

    what: str
    line: Line
    at: int


class _Open(NamedTuple):
    operator: OpOverload | None
    args: Arguments
    kwargs: Keywords
    start: int
    conversions: int
    strided: int
    fallbacks: int


class Watching:
    """Notes calls and waits while :meth:`running`."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.waits: list[Wait] = []
        self._open = threading.local()
        self._lines: dict[int, Line] = {}
        self._statistics = ffi.new("maca_memory_statistics*")
        self._reserved = 0
        self._free = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """While the block runs, at some 20 us an operator."""
        sites.watch(self)
        sites.record("profile", True)
        sync_debug.listener = self.waited
        self._look_at_memory()
        try:
            yield
        finally:
            sync_debug.listener = None
            sites.record("profile", False)
            sites.watch(None)

    def line(self, site: int) -> Line:
        """Of a site's number; :data:`NOWHERE` for 0."""
        found = self._lines.get(site)
        if found is None:
            held = sites.site(site)
            found = self._lines[site] = users_line(held.frames) if held else NOWHERE
        return found

    def waited(self, what: str) -> None:
        if len(self.waits) < _MOST:
            self.waits.append(Wait(what, here(), time.time_ns()))

    def opens(self, operator: str) -> None:
        self._begin(None, (), {})

    def before(self, operator: OpOverload, args: Arguments, kwargs: Keywords | None) -> set[int]:
        self._begin(operator, args, kwargs or {})
        return set()

    def _begin(self, operator: OpOverload | None, args: Arguments, kwargs: Keywords) -> None:
        fallbacks = sum(counters.fallbacks.values())
        self._look_at_memory()  # what was freed since the last call
        self._open.call = _Open(
            operator, args, kwargs, time.time_ns(), counters.counted("layout_conversions"),
            counters.counted("strided_copies"), fallbacks,
        )  # fmt: skip

    def after(self, operator: str, result: Value, held: set[int]) -> None:
        end = time.time_ns()
        began: _Open | None = getattr(self._open, "call", None)
        self._open.call = None
        if began is None or len(self.calls) >= _MOST:
            return
        conversions = counters.counted("layout_conversions") - began.conversions
        if not conversions and _converts(began, result):
            conversions = 1
        reserved, free = self._reserved, self._free
        self._look_at_memory()
        grown = max(0, self._reserved - reserved)
        self.calls.append(
            Call(
                operator,
                self.line(int(lib.maca_memory_get_site())),
                threading.get_native_id(),
                began.start,
                end,
                _flops(began, result),
                conversions,
                counters.counted("strided_copies") - began.strided,
                sum(counters.fallbacks.values()) - began.fallbacks,
                sum(t.nbytes for t in _tensors(result)),
                grown,
                free if grown else 0,
            )
        )

    def _look_at_memory(self) -> None:
        lib.maca_memory_get_statistics(self._statistics)
        self._reserved = int(self._statistics.reserved_bytes[0].current)
        self._free = self._reserved - int(self._statistics.allocated_bytes[0].current)


def _tensors(result: Value) -> Iterator[MacaTensor]:
    if isinstance(result, MacaTensor):
        yield result
    elif isinstance(result, (list, tuple)):
        for part in result:
            yield from _tensors(part)


def _converts(began: _Open, result: Value) -> bool:
    """Is it a copy that lays 4-D elements in another order?"""
    if began.operator is None or began.operator._opname not in _COPIES or not began.args:
        return False
    source = began.args[-1 if began.operator._opname == "copy_" and len(began.args) == 2 else 0]
    if not (isinstance(source, MacaTensor) and isinstance(result, MacaTensor)) or source.dim() != 4:
        return False
    before, after = _order(source), _order(result)
    return result.shape == source.shape and "" != before != after != ""


def _order(t: torch.Tensor) -> str:
    """ "" where both orders are the same one."""
    row_major, channels_last = t.is_contiguous(), t.is_contiguous(memory_format=torch.channels_last)
    return "" if row_major == channels_last else "contiguous" if row_major else "channels_last"


def _flops(began: _Open, result: Value) -> int:
    formula = flop_registry.get(began.operator.overloadpacket) if began.operator is not None else None
    if formula is not None:
        try:
            return int(formula(*began.args, **began.kwargs, out_val=result))
        except Exception:  # a formula for other arguments than these says nothing of this call
            return 0
    return sum(t.numel() for t in _tensors(result))
