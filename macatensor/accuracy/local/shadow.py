"""A float64 shadow of memory: what live tensors would hold if every operator so far had computed in float64.

A shadow belongs to memory, not to a tensor, so that views and writes through them are followed.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from macatensor.parity.formulas import FORMULAS
from macatensor.parity.transport import fetch, tensors, twin, wide
from macatensor.parity.watch import Seen, is_drawn
from macatensor.parity.wide_calls import FLOAT32, as_computed, float64, on_host
from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.meta import meta_of, meta_of_tensor, set_lazy_bits
from macatensor.runtime.tensor import MacaTensor, wrap
from op_table import Kind

_SHADOWED = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128}


@dataclass
class _Memory:
    """``values[i]`` is what element ``i`` of ``dtype`` from the start of the memory should be."""

    dtype: torch.dtype
    values: torch.Tensor
    storage: StorageWeakRef | None = None


def _key(t: torch.Tensor) -> int:
    return id(t._payload[0]) if isinstance(t, MacaTensor) else t.untyped_storage()._cdata


def _elements(t: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """What the memory under ``t`` holds now from one element to another, in float64."""
    if isinstance(t, MacaTensor):
        held = fetch(wrap(t._payload[0], start, meta_of((end - start,), (1,), t.dtype)))
    else:
        held = torch.as_strided(t.detach(), (end - start,), (1,), start).to("cpu", copy=True)
    return held.to(wide(t.dtype))


class Shadows:
    """Shadows of the memory of live tensors."""

    def __init__(self) -> None:
        self.memory: dict[int, _Memory] = {}
        self._since_purge = 0

    def of(self, t: torch.Tensor) -> torch.Tensor:
        """The shadow of a tensor as a view of the memory's; memory that is met first is shadowed as it is."""
        meta = meta_of_tensor(t)
        start = int(t.storage_offset())
        end = start + meta.extent
        key = _key(t)
        memory = self.memory.get(key)
        if memory is None or memory.dtype != t.dtype:
            memory = self.memory[key] = self._new(t, _elements(t, 0, end))
        elif memory.values.numel() < end:
            memory.values = torch.cat([memory.values, _elements(t, memory.values.numel(), end)])
        return set_lazy_bits(torch.as_strided(memory.values, meta.size, meta.stride, start), meta)

    def _new(self, t: torch.Tensor, values: torch.Tensor) -> _Memory:
        key = _key(t)
        if isinstance(t, MacaTensor):
            weakref.finalize(t._payload[0], self.memory.pop, key, None).atexit = False
            return _Memory(t.dtype, values)
        self._since_purge += 1
        if self._since_purge > 1000:
            self._since_purge = 0
            for gone in [k for k, m in self.memory.items() if m.storage is not None and m.storage.expired()]:
                del self.memory[gone]
        return _Memory(t.dtype, values, StorageWeakRef(t.untyped_storage()))

    def forget(self, t: torch.Tensor) -> None:
        """The device's own values count from now on."""
        self.memory.pop(_key(t), None)

    def put(self, t: torch.Tensor, values: torch.Tensor) -> None:
        """Says what a result in memory of its own should be."""
        start = int(t.storage_offset())
        end = start + meta_of_tensor(t).extent
        memory = self._new(t, torch.zeros(end, dtype=wide(t.dtype), device="cpu"))
        self.memory[_key(t)] = memory
        torch.as_strided(memory.values, t.shape, t.stride(), start).copy_(values)

    def arguments(self, seen: Seen) -> tuple[Arguments, Keywords]:
        """The arguments of a call as shadows; integers, and what is no strided number, as the host has it."""
        assert seen.copies is not None

        def visit(value: Value, copy: Value) -> Value:
            if isinstance(value, torch.Tensor):
                return self.of(value) if value.dtype in _SHADOWED else twin(copy)  # in-place operators
            if isinstance(value, torch.dtype):
                return wide(value)
            if isinstance(value, (list, tuple)):
                return type(value)(visit(v, c) for v, c in zip(value, copy))
            if isinstance(value, dict):
                return {k: copy[k] if k in FLOAT32 else visit(v, copy[k]) for k, v in value.items()}
            return on_host(copy)

        assert seen.row is not None
        args, kwargs = as_computed(seen.func, seen.row, *seen.copies)
        return visit(tuple(seen.args), args), visit(seen.kwargs, kwargs)

    def follow(
        self, seen: Seen, arguments: tuple[Arguments, Keywords] | None
    ) -> list[torch.Tensor | None] | None:
        """Runs a call on the shadows of its arguments after the device ran it; written memory and results get theirs.

        Returns the shadows of the results and then of the operands, or None where there is no such thing (random
        numbers, an operator of one dtype): then the device's values count.
        """
        held = {_key(t) for t in seen.operands if t is not None}
        # a sparse one has no memory of its own
        fresh = [
            t for t in seen.results if t is not None and t.layout is torch.strided and _key(t) not in held
        ]
        row = seen.row
        if arguments is None or row is None or row.form or is_drawn(row):
            self._reset(seen, fresh)
            return None
        try:
            results = self._run(seen, *arguments)
        except Exception:  # an operator of one dtype only, as loss scaling is
            self._reset(seen, fresh)
            return None
        if len(results) != len(seen.results):
            self._reset(seen, fresh)
            return None
        own = {id(t) for t in fresh}
        found: list[torch.Tensor | None] = []
        for ours, shadow in zip(seen.results, results):
            has_memory = ours is not None and ours.layout is torch.strided and ours.dtype in _SHADOWED
            if ours is None or not has_memory or shadow is None or shadow.shape != ours.shape:
                found.append(None)
                continue
            if id(ours) in own:
                self.put(ours, shadow)
            found.append(self.of(ours))
        found += [None if t is None or t.dtype not in _SHADOWED else self.of(t) for t in seen.operands]
        return found

    def _reset(self, seen: Seen, fresh: list[torch.Tensor]) -> None:
        """Where float64 says nothing the device's values count."""
        for t in fresh + [t for t in seen.operands if t is not None and id(t) in seen.written]:
            self.forget(t)

    @staticmethod
    def _run(seen: Seen, args: Arguments, kwargs: Keywords) -> list[torch.Tensor | None]:
        row = seen.row
        assert row is not None
        if row.operator == "native_dropout":  # the mask is the device's
            keep = 1 - (args[1] if args[2] or args[2] is None else 0.0)
            return [args[0] * seen.host[1] / keep, seen.host[1]]
        if row.kind is Kind.VIEW and all(t is None or t.dtype in _SHADOWED for t in seen.results):
            held = {_key(t) for t in seen.operands if t is not None}
            if all(t is None or _key(t) in held for t in seen.results):
                return [None] * len(seen.results)  # a view of shadowed memory is shadowed
        formula = FORMULAS.get(seen.func._schema.name.partition("::")[2] or seen.func._schema.name)
        with torch.no_grad(), float64():
            return tensors((formula or seen.func)(*args, **kwargs))
