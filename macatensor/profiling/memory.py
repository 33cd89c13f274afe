"""Memory over time, by what it is for: the device's part of ``export_memory_timeline`` and ``_memory_profile``.

PyTorch finds out what memory is for from operands whose addresses C++ noted, which the device's tensors do not have.
Here it follows from who holds a block when the profile ends, and else from where it was made and how long it lived.
"""

from __future__ import annotations

import bisect
import functools
import gc
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch.profiler._memory_profiler import Action, Category, TensorKey, _Storage

from macatensor.device import memory as of_device
from macatensor.device.memory_history import memory_snapshot
from macatensor.profiling.activities import Activity, Kind
from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import MacaTensor

_BACKWARD = "autograd::engine::evaluate_function"
_ACCUMULATION = "torch::autograd::AccumulateGrad"
_OPTIMIZER = "Optimizer.step#"
_UPLOADS = frozenset({"aten::to", "aten::_to_copy", "aten::copy_"})

Held = dict[int, Category]  # by address of a block


class Live(NamedTuple):
    """A block that was in use when the profile began."""

    address: int
    bytes: int


class Results(Protocol):
    """What is asked of :class:`macatensor.profiling.results.Results`."""

    before: Sequence[Live]
    held: Held

    @property
    def operators(self) -> list[Value]: ...

    @property
    def activities(self) -> Sequence[Activity]: ...


def live_blocks() -> list[Live]:
    """Blocks in use now."""
    return [
        Live(block["address"], block["size"])
        for segment in memory_snapshot(include_traces=False)
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]


def held() -> Held:
    """What living parameters, their gradients and optimizers hold on the device."""
    found: Held = {}

    def note(tensors: Iterable[Value], category: Category) -> None:
        for t in tensors:
            if isinstance(t, MacaTensor):
                found[int(t._payload[0].address)] = category

    objects = gc.get_objects()
    # isinstance() would ask lazy modules for their class, which import and warn
    for optimizer in (o for o in objects if issubclass(type(o), torch.optim.Optimizer)):
        note((t for s in optimizer.state.values() for t in s.values()), Category.OPTIMIZER_STATE)
    for module in objects:
        if issubclass(type(module), torch.nn.Module):
            parameters = [p for p in module._parameters.values() if p is not None]
            note((p.grad for p in parameters), Category.GRADIENT)
            note(parameters, Category.PARAMETER)
    return found


class Categories:
    """Of the device's blocks, and PyTorch's of the host's tensors."""

    def __init__(self, of_host: Value):
        self._of_host = of_host
        self.of_device: dict[int, Category | None] = {}  # by id of a TensorKey

    def get(self, key: TensorKey, version: int) -> Category | None:
        if key.device.type == "maca":
            return self.of_device.get(key.id)
        return self._of_host.get(key, version)  # type: ignore[no-any-return]


class MemoryProfile:
    """A ``torch.profiler._memory_profiler.MemoryProfile`` with the device's blocks among its timeline."""

    def __init__(self, of_host: Value, results: Results):
        self._of_host = of_host
        self._categories = Categories(of_host._categories)
        self._entries = list(self._device(results))

    def __getattr__(self, name: str) -> Value:
        return getattr(self._of_host, name)

    @property
    def timeline(self) -> tuple[tuple[int, Action, tuple[TensorKey, int], int], ...]:
        """(ns or -1, action, (key, version), bytes), in order."""
        merged = [*self._of_host.timeline, *self._entries]
        return tuple(sorted(merged, key=lambda entry: (entry[0], entry[1].value)))

    def _device(self, results: Results) -> Iterator[tuple[int, Action, tuple[TensorKey, int], int]]:
        device = torch.device("maca", 0)
        held = dict(results.held)
        places = _Places(results)
        living: dict[int, tuple[TensorKey, int, int | None]] = {}
        for number, block in enumerate(results.before):
            key = TensorKey(device, number, _Storage(block.address, number))
            living[block.address] = key, block.bytes, None
            yield -1, Action.PREEXISTING, (key, 0), block.bytes
        number = len(results.before)
        for change in results.activities:
            if change.kind is not Kind.MEMORY:
                continue
            if change.bytes > 0:
                key = TensorKey(device, number, _Storage(change.address, number))
                number += 1
                living[change.address] = key, change.bytes, change.given
                self._categories.of_device[key.id] = places.category(change.thread, change.given)
                yield change.given, Action.CREATE, (key, 0), change.bytes
            elif change.address in living:
                key, size, made = living.pop(change.address)
                if made is not None:
                    category = places.category_of_freed(change.thread, made, change.given)
                    self._categories.of_device[key.id] = category
                yield change.given, Action.DESTROY, (key, 0), size
        for address, (key, _, made) in living.items():  # who holds it knows what it is
            known = held.get(address)
            if known is not None or made is None:
                self._categories.of_device[key.id] = known


class _Places:
    """Where in the program a time of a thread lies."""

    def __init__(self, results: Results):
        self._spans: dict[str, dict[int, list[tuple[int, int]]]] = {}
        for event in results.operators:
            name = event.name()
            kinds = [
                kind
                for kind, starts in (
                    ("backward", _BACKWARD),
                    ("accumulation", _ACCUMULATION),
                    ("optimizer", _OPTIMIZER),
                )
                if name.startswith(starts)
            ]
            if name in _UPLOADS:
                kinds.append("upload")
            if name.startswith("aten::"):
                kinds.append("operator")
            for kind in kinds:
                of_thread = self._spans.setdefault(kind, {}).setdefault(event.device_resource_id(), [])
                of_thread.append((event.start_ns(), event.end_ns()))
        for of_kind in self._spans.values():
            for spans in of_kind.values():
                spans.sort()
                outer: list[tuple[int, int]] = []  # inner ones lie within
                for span in spans:
                    if not outer or span[0] >= outer[-1][1]:
                        outer.append(span)
                spans[:] = outer

    def _around(self, kind: str, thread: int, time: int) -> tuple[int, int] | None:
        spans = self._spans.get(kind, {}).get(thread, [])
        at = bisect.bisect_right(spans, (time, 1 << 63)) - 1
        return spans[at] if at >= 0 and spans[at][0] <= time <= spans[at][1] else None

    def category(self, thread: int, time: int) -> Category:
        """Of a block that was made then."""
        if self._around("optimizer", thread, time):
            return Category.OPTIMIZER_STATE
        if self._around("accumulation", thread, time):
            return Category.GRADIENT
        if self._around("backward", thread, time):
            return Category.AUTOGRAD_DETAIL
        return Category.INPUT if self._around("upload", thread, time) else Category.ACTIVATION

    def category_of_freed(self, thread: int, made: int, freed: int) -> Category:
        """Of a block that was made and freed then: temporary inside of one outermost operator or optimizer's step, a
        gradient where it came from a backward pass and outlived an optimizer's step."""
        around = self._around("optimizer", thread, made) or self._around("operator", thread, made)
        if around is not None and freed <= around[1]:
            return Category.TEMPORARY
        category = self.category(thread, made)
        steps = itertools.chain.from_iterable(self._spans.get("optimizer", {}).values())
        if category is Category.AUTOGRAD_DETAIL and any(made < start and end < freed for start, end in steps):
            return Category.GRADIENT
        return category


def with_device(profile: Callable[..., object]) -> Callable[..., object]:
    """Wraps ``_KinetoProfile._memory_profile``."""

    @functools.wraps(profile)
    def wrapped(self: Any) -> Any:
        of_host = profile(self)
        results = self.profiler.kineto_results
        return MemoryProfile(of_host, results) if hasattr(results, "before") else of_host

    return wrapped


def page_of_device(export: Callable[..., object]) -> Callable[..., None]:
    """Wraps ``MemoryProfileTimeline.export_memory_timeline_html``, which asks torch.cuda for the peaks."""

    @functools.wraps(export)
    def wrapped(self: Any, path: str, device_str: str, *args: Any, **given: Any) -> None:
        with _peaks_of_device() if torch.device(device_str).type == "maca" else nullcontext():
            export(self, path, device_str, *args, **given)

    return wrapped


@contextmanager
def _peaks_of_device() -> Iterator[None]:
    cuda: Any = torch.cuda
    kept = cuda.max_memory_allocated, cuda.max_memory_reserved
    cuda.max_memory_allocated = of_device.max_memory_allocated
    cuda.max_memory_reserved = of_device.max_memory_reserved
    try:
        yield
    finally:
        cuda.max_memory_allocated, cuda.max_memory_reserved = kept
