"""Checks every operator of one training step against a float64 reference from the operator's own inputs.

The check sits in ``MacaTensor.__torch_dispatch__`` itself: a ``TorchDispatchMode`` is a thread's own, and backward
runs on a thread of autograd's.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from macatensor import internal, layout
from macatensor.parity.formulas import FORMULAS
from macatensor.parity.measure import Distance, bound_text, distance
from macatensor.parity.reference import Expected, bound_of, expected, judge
from macatensor.parity.transport import fetch, replace, tensors
from macatensor.signature import find_row
from macatensor.tensor import MacaTensor
from op_table import Kind, Row
from op_table.row import per_term, ulp

# Kernels that no row names: attention's, whose operator PyTorch never brings here.
_ATTENTION = per_term("softmax of a product, times a matrix", f32=8, f64=16, f16=4, bf16=4)
_DROPOUT = ulp("the factor 1 / (1 - p) and the product round once each", f32=2, f64=2)
_UNINITIALIZED = {"empty_like", "new_empty", "new_empty_strided", "empty", "empty_strided"}


@dataclass
class OpRecord:
    """What became of one operator's calls in a step, by layout.

    ``seconds`` is the device's time for all calls, reference not included. ``max_ulp`` and ``max_rel`` are None where
    nothing was compared; ``verdict`` is ``"pass"``, ``"FAIL: ..."`` or ``"n/a: reason"``.
    """

    op: str
    kernel: str
    row_kind: str
    calls: int
    layout_in: str
    layout_out: str
    seconds: float
    max_ulp: float | None
    max_rel: float | None
    bound: str
    verdict: str


def layout_text(t: torch.Tensor | None) -> str:
    """``"NHWC"`` or ``"NCHW"`` of a 4-D tensor, else rank and whether it is row-major."""
    if t is None:
        return ""
    if t.dim() in (4, 5) and min(t.shape) > 0:
        if layout.is_channels_last(t):
            return "NHWC" if t.dim() == 4 else "NDHWC"
        if t.is_contiguous():
            return "NCHW" if t.dim() == 4 else "NCDHW"
    if any(n > 1 and s == 0 for n, s in zip(t.shape, t.stride())):
        return f"{t.dim()}-D expanded"
    return f"{t.dim()}-D" if t.is_contiguous() else f"{t.dim()}-D strided"


class _Kernel:
    """A kernel that is launched by name, with the shape of an OpOverload."""

    def __init__(self, name: str):
        self._schema = SimpleNamespace(name=name, arguments=(), returns=())
        self._body = FORMULAS[name]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._body(*args, **kwargs)


class _Watch:
    """Collects the records of a step."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str, str], OpRecord] = {}
        self.inside = threading.local()
        self.lock = threading.Lock()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Operators that an operator is made of are not judged again."""
        self.inside.yes = True
        try:
            yield
        finally:
            self.inside.yes = False

    def operator(self, func: Any, args: Any, kwargs: Any, call: Callable[[], Any]) -> Any:
        found = find_row(func)
        if getattr(self.inside, "yes", False) or found is None or found[0].kind is Kind.COMPOSITE:
            return call()  # its parts come here
        row = found[0]
        name = str(func).removeprefix("aten.").removesuffix(".default")
        return self.judged(func, row, name, args, kwargs, call, self.written(func, row, args, kwargs))

    def launched(
        self, call: Callable[..., Any], name: str, inputs: Any, results: Any, attributes: Any
    ) -> Any:
        if getattr(self.inside, "yes", False) or name not in FORMULAS:
            return call(name, inputs, results, attributes)
        row = Row(name, Kind.KERNEL, bound=_ATTENTION)
        run = lambda: call(name, inputs, results, attributes)  # noqa: E731
        return self.judged(_Kernel(name), row, name, tuple(inputs), attributes, run, set())

    def written(self, func: Any, row: Row, args: Any, kwargs: Any) -> set[int]:
        """Ids of tensors that the call changes."""
        changed: list[Any] = []
        for i, a in enumerate(func._schema.arguments):
            writes = a.alias_info is not None and a.alias_info.is_write
            if writes or (row.operator == "native_batch_norm" and a.name.startswith("running")):
                changed += tensors(args[i] if i < len(args) else kwargs.get(a.name))
        return {id(t) for t in changed}

    def judged(
        self,
        func: Any,
        row: Row,
        name: str,
        args: Any,
        kwargs: Any,
        call: Callable[[], Any],
        written: set[int],
    ) -> Any:
        operands = tensors((args, kwargs))
        first = next((t for t in operands if isinstance(t, torch.Tensor)), None)
        before = layout_text(first)
        unknown = self.unjudged(row, operands)
        copies = None
        if not unknown:
            copies = replace((args, kwargs), lambda t: fetch(t) if isinstance(t, MacaTensor) else t)
        synchronize = torch.get_device_module("maca").synchronize
        synchronize()
        start = time.perf_counter()
        with self.closed():
            outcome = call()
        synchronize()
        seconds = time.perf_counter() - start
        results = tensors(outcome)
        after = layout_text(next((t for t in results if isinstance(t, torch.Tensor)), None))
        worst, verdict, bound = Distance(), unknown, ""
        if copies is not None:
            changed = [fetch(t) if isinstance(t, MacaTensor) and id(t) in written else None for t in operands]
            host = [fetch(t) if isinstance(t, MacaTensor) else t for t in results]
            with self.closed():
                worst, verdict, bound = self.verdict(func, row, copies, host, changed)
        with self.lock:
            self.note(name, row, before, after, seconds, worst, verdict, bound)
        return outcome

    def unjudged(self, row: Row, operands: list[Any]) -> str:
        if row.operator in _UNINITIALIZED:
            return "n/a: uninitialized memory"
        if row.random and row.operator != "native_dropout":
            return "n/a: random"
        if any(isinstance(t, torch.Tensor) and not isinstance(t, MacaTensor) and t.dim() for t in operands):
            return "n/a: transfer"
        return ""

    def verdict(
        self, func: Any, row: Row, copies: Any, host: list[Any], changed: list[Any]
    ) -> tuple[Distance, str, str]:
        args, kwargs = copies
        dtype = next(
            (t.dtype for t in host + changed if t is not None and t.is_floating_point()), torch.int64
        )
        if row.operator == "native_dropout":
            keep = 1 - (args[1] if args[2] or args[2] is None else 0.0)
            worst = distance(host[0], args[0].double() * host[1] / keep, _DROPOUT)
            return worst, "pass" if worst.share <= 1 else f"FAIL: {worst.at}", bound_text(_DROPOUT, dtype)
        want: Expected = expected(func, row, args, kwargs)
        if want.error is not None and not want.exact:
            return Distance(), f"n/a: {str(want.error).splitlines()[0][:60]}", ""
        if len(host) != want.results:
            return Distance(), f"FAIL: {len(host)} results, PyTorch gives {want.results}", ""
        worst, wrong = judge(row, want, host + changed, args)
        return worst, f"FAIL: {wrong[0]}" if wrong else "pass", bound_text(bound_of(row), dtype)

    def note(
        self,
        name: str,
        row: Row,
        before: str,
        after: str,
        seconds: float,
        worst: Distance,
        verdict: str,
        bound: str,
    ) -> None:
        key = (name, before, after)
        record = self.records.get(key)
        if record is None:
            kernel = row.kernel_name if row.kind is Kind.KERNEL else ""
            record = OpRecord(name, kernel, row.kind.value, 0, before, after, 0.0, None, None, bound, verdict)
            self.records[key] = record
        record.calls += 1
        record.seconds += seconds
        if not verdict.startswith("n/a"):
            record.max_ulp = max(record.max_ulp or 0.0, worst.ulp)
            record.max_rel = max(record.max_rel or 0.0, worst.relative)
        if not record.verdict.startswith("FAIL"):
            record.verdict = verdict if verdict.startswith("FAIL") else record.verdict


def _launch_names() -> list[Any]:
    """Modules of ours that hold ``internal.launch`` by name."""
    ours = [m for name, m in list(sys.modules.items()) if name.startswith("macatensor") and m is not None]
    return [m for m in ours if getattr(m, "launch", None) is internal.launch]


def check_step(step: Callable[[], object]) -> list[OpRecord]:
    """Runs ``step()``; every operator of it that reaches maca is also computed on the host in float64.

    Forward, backward and optimizer, in-place, foreach and fused operators included. Returns one record for each
    operator and layout, in order of appearance; a wrong result is in the verdict, it does not raise.
    """
    watch = _Watch()
    plain = MacaTensor.__dict__["__torch_dispatch__"]
    real = internal.launch

    def observed(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return watch.operator(
            func, args, kwargs or {}, lambda: plain.__func__(cls, func, types, args, kwargs)
        )

    def observed_launch(kernel: str, inputs: Any, results: Any, attributes: Any) -> Any:
        return watch.launched(real, kernel, inputs, results, attributes)

    holders = _launch_names()
    type.__setattr__(MacaTensor, "__torch_dispatch__", classmethod(observed))
    for module in holders:
        module.launch = observed_launch
    try:
        step()
        torch.get_device_module("maca").synchronize()
    finally:
        type.__setattr__(MacaTensor, "__torch_dispatch__", plain)
        for module in holders:
            module.launch = real
    return list(watch.records.values())
