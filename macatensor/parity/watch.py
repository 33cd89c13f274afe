"""Sees every operator of a program as it goes: its operands before the call, its results and written operands after.

Operators on maca are seen in ``MacaTensor.__torch_dispatch__`` itself, those on other devices through a
``TorchDispatchMode``: PyTorch gives a caller's modes to the threads that run its backward pass, but not to threads of
the user's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import ModuleType

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from macatensor.compiling import checked
from macatensor.compiling.checked import Wrong
from macatensor.dispatch import named_kernels
from macatensor.dispatch.request import Attribute
from macatensor.dispatch.signature import find_row
from macatensor.operators.bind import bind
from macatensor.operators.inference import WholeLauncher
from macatensor.parity import random_numbers
from macatensor.parity.canonical import Tensors
from macatensor.parity.formulas import FORMULAS
from macatensor.parity.measure import Distance, bound_text, distance, equal
from macatensor.parity.reference import Expected, expected, judge
from macatensor.parity.transport import host_copy, operand_copy, replace, tensors
from macatensor.parity.wide_calls import Operator
from macatensor.runtime import random, streams
from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.dispatch_keys import lazy_bits
from macatensor.runtime.ffi import native
from macatensor.runtime.launches import implementations, launches
from macatensor.runtime.meta import Meta
from macatensor.runtime.tensor import MacaTensor
from macatensor.runtime.uncompiled import uncompiled
from op_table import Kind, Row
from op_table.row import per_term, ulp

# Kernels that no row names: attention's, whose operator PyTorch never brings here.
# Their terms are estimated by random disturbances: of 196608 elements (T 128, head 64) the worst lay at 9.1.
_ATTENTION = per_term("softmax of a product, times a matrix", f32=16, f64=32, f16=4, bf16=4)
_DROPOUT = ulp("the factor 1 / (1 - p) and the product round once each", f32=2, f64=2)
_no_modes: Callable[[], AbstractContextManager[object]] = _disable_current_modes
_UNINITIALIZED = {"empty_like", "new_empty", "new_empty_strided", "empty", "empty_strided"}


@dataclass(frozen=True)
class KernelSchema:
    """The schema of a kernel that is launched by name: it says nothing of arguments and results."""

    name: str
    arguments: tuple[torch._C.Argument, ...] = ()
    returns: tuple[torch._C.Argument, ...] = ()


class NamedKernel:
    """A kernel that is launched by name, with the shape of an OpOverload."""

    tags: tuple[torch.Tag, ...] = ()

    def __init__(self, name: str):
        self._schema = KernelSchema(name)
        self._body = FORMULAS[name]

    def __str__(self) -> str:
        return str(self._schema.name)

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        return self._body(*args, **kwargs)


def row_of_kernel(name: str) -> Row:
    """A row for a kernel that no row names."""
    return Row(name, Kind.KERNEL, bound=_ATTENTION)


def short_name(func: Operator) -> str:
    """``"add.Tensor"``; ``"relu"`` for ``relu.default``."""
    return str(func).removeprefix("aten.").removesuffix(".default")


def written_by(func: Operator, row: Row | None, args: Arguments, kwargs: Keywords) -> set[int]:
    """Ids of the tensors that a call changes."""
    changed: list[torch.Tensor | None] = []
    for i, a in enumerate(func._schema.arguments):
        writes = a.alias_info is not None and a.alias_info.is_write
        if writes or (row is not None and a.name in row.also_writes):
            changed += tensors(args[i] if i < len(args) else kwargs.get(a.name))
    return {id(t) for t in changed}


@dataclass
class Verdict:
    """How far a call's results lie from the reference. ``text``: ``"pass"``, ``"FAIL: ..."``, ``"n/a: reason"``."""

    text: str
    worst: Distance = field(default_factory=Distance)
    bound: str = ""
    expected: Expected | None = None  # what it was judged by

    @property
    def failed(self) -> bool:
        return self.text.startswith("FAIL")


@dataclass
class Seen:
    """One call of an operator. Lists of tensors: results, or operands in the order of the arguments."""

    func: Operator
    row: Row | None
    name: str
    args: Arguments
    kwargs: Keywords
    operands: Tensors
    written: set[int]  # ids of operands that the call changes
    copies: tuple[Arguments, Keywords] | None = (
        None  # the arguments before the call, on the host; None: not judged
    )
    why_not: str = ""  # "n/a: reason" when it is not judged
    outcome: Value = None
    results: Tensors = field(default_factory=list)
    host: Tensors = field(default_factory=list)  # the results, on the host
    changed: Tensors = field(default_factory=list)  # written operands after the call, None for the others
    seconds: float = 0.0
    implementation: str = ""  # the algorithm that the library chose
    state: random_numbers.State | None = None  # of the device's generator before the call, if that draws
    held: object = None  # what :meth:`Watch.before` wants to find again in :meth:`Watch.after`


def is_drawn(row: Row | None) -> bool:
    """Are an operator's results random numbers alone? Dropout computes with what it draws."""
    return row is not None and row.random and row.operator != "native_dropout"


def why_not_judged(row: Row | None, operands: Tensors, drawn: bool = False) -> str:
    """Why a call has no reference, or ``""``. ``drawn``: is the state known that its numbers come from?"""
    if row is None:
        return "n/a: the op table has no row for it"
    if row.operator in _UNINITIALIZED:
        return "n/a: uninitialized memory"
    if is_drawn(row) and not (drawn and row.numbers):
        return "n/a: random"
    here = [t for t in operands if isinstance(t, torch.Tensor)]
    if any(t.layout is not torch.strided or t.is_nested for t in here):
        return "n/a: not a strided tensor"
    ours = [t for t in here if isinstance(t, MacaTensor)]
    if ours and any(not isinstance(t, MacaTensor) and t.dim() for t in here):
        return "n/a: transfer"
    if any(t.is_meta or type(t).__name__ == "FakeTensor" for t in here):
        return "n/a: no elements"
    return ""


# Rows state what maca's kernels keep. PyTorch's own multiply by a reciprocal where we divide: 2.8 times our bound.
ELSEWHERE = 4.0


def verdict_of(
    func: Operator,
    row: Row,
    copies: tuple[Arguments, Keywords],
    host: Tensors,
    changed: Tensors,
    elsewhere: bool = False,
    state: random_numbers.State | None = None,
    quick: bool = False,
) -> Verdict:
    """Judges a call by its row's bound: ``copies`` are its arguments on the host, ``host`` its results there,
    ``changed`` its operands after the call, None for those that it does not write. ``elsewhere``: it ran on another
    device than maca, whose bounds are :data:`ELSEWHERE` times as wide. ``state``: of the generator before the call.
    ``quick``: passes only what passes without it as well, for less."""
    verdict = _verdict_of(func, row, copies, host, changed, elsewhere, state, quick)
    return leniently(verdict) if elsewhere else verdict


def _verdict_of(
    func: Operator,
    row: Row,
    copies: tuple[Arguments, Keywords],
    host: Tensors,
    changed: Tensors,
    elsewhere: bool,
    state: random_numbers.State | None,
    quick: bool,
) -> Verdict:
    args, kwargs = copies
    if is_drawn(row):
        return _verdict_of_numbers(func, row, copies, host, state)
    dtype = next((t.dtype for t in host + changed if t is not None and t.is_floating_point()), torch.int64)
    if row.operator == "native_dropout":
        keep = 1 - (args[1] if args[2] or args[2] is None else 0.0)
        have, mask = host
        assert have is not None
        assert mask is not None
        worst = distance(have, args[0].double() * mask / keep, _DROPOUT)
        if state is not None and keep < 1:
            worst.join(equal(mask, random_numbers.kept_by_dropout(state, mask.shape, 1 - keep)))
        text = "pass" if worst.share <= 1 else f"FAIL: {worst.at}"
        return Verdict(text, worst, bound_text(_DROPOUT, dtype))
    want_all: Expected = expected(func, row, args, kwargs, elsewhere, quick)
    if want_all.error is not None and not want_all.exact:
        return Verdict(f"n/a: {str(want_all.error).splitlines()[0][:60]}")
    if len(host) != want_all.results:
        return Verdict(
            f"FAIL: {len(host)} results, PyTorch gives {want_all.results}", Distance(share=torch.inf)
        )
    worst, wrong = judge(row, want_all, host + changed, args, quick)
    return Verdict(f"FAIL: {wrong[0]}" if wrong else "pass", worst, bound_text(row.bound, dtype), want_all)


def _verdict_of_numbers(
    func: Operator,
    row: Row,
    copies: tuple[Arguments, Keywords],
    host: Tensors,
    state: random_numbers.State | None,
) -> Verdict:
    if state is None or host[0] is None or not row.numbers:
        return Verdict("n/a: random")
    named = random_numbers.by_name(func, *copies)
    worst, bound = random_numbers.judge(row.numbers, state, host[0], named)
    text = "pass" if worst.share <= 1 else f"FAIL: number {worst.at}, from seed {state[0]}, offset {state[1]}"
    return Verdict(text, worst, bound)


def is_on_maca(found: Tensors) -> bool:
    """Is any of the tensors on maca?"""
    return any(isinstance(t, MacaTensor) for t in found)


def leniently(verdict: Verdict) -> Verdict:
    """The verdict on another device's kernel."""
    if verdict.failed and 1 < verdict.worst.share <= ELSEWHERE:
        return dataclasses.replace(verdict, text="pass")
    return verdict


def synchronize() -> None:
    """Waits for maca."""
    torch.get_device_module("maca").synchronize()


@contextlib.contextmanager
def _unobserved() -> Iterator[None]:
    """The sanitizer does not take our own waits for the program's."""
    watching = streams.observe(None)
    try:
        yield
    finally:
        streams.observe(watching)


class Watch:
    """Sees the operators of a program. Subclasses say what is done with them in :meth:`before` and :meth:`after`.

    ``devices``: types of the devices whose operators are seen; ``with_programs``: are the fused programs of compiled graphs
    judged, too, which run operator by operator here?
    """

    def __init__(self, devices: tuple[str, ...] = ("maca",), with_programs: bool = False) -> None:
        self.devices = devices
        self.with_programs = with_programs and "maca" in devices
        self.programs: list[Wrong] = []  # that are wrong
        self.has_seen = False  # any operator
        self.inside = threading.local()
        self.lock = threading.RLock()

    # -- what subclasses do
    def wants(self, row: Row | None, name: str) -> bool:
        """Is this operator looked at?"""
        return True

    def before(self, seen: Seen) -> None:
        """The call is about to run; its arguments are copied."""

    def after(self, seen: Seen) -> None:
        """The call has run."""

    # -- how operators are seen
    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Operators that run inside are not seen."""
        outer = getattr(self.inside, "yes", False)
        self.inside.yes = True
        try:
            yield
        finally:
            self.inside.yes = outer

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Nothing that runs inside is the program's."""
        with self.closed(), _no_modes(), _unobserved(), lazy_bits():
            yield

    def operator(
        self,
        func: OpOverload,
        args: Arguments,
        kwargs: Keywords,
        call: Callable[[], Value],
        ours: bool = True,
    ) -> Value:
        if getattr(self.inside, "yes", False):
            return call()
        found = find_row(func)
        row = found[0] if found else None
        if ours and row is None and isinstance(native.launcher_of(func) or bind(func), WholeLauncher):
            # under inference_mode one launch, which has no row to judge it by
            parts = func.decompose(*args, **kwargs)
            return call() if parts is NotImplemented else parts
        if ours and (row is None or row.kind is Kind.COMPOSITE):
            return call()  # its parts come here
        name = short_name(func)
        operands = tensors((args, kwargs))
        if row is None and not operands:  # as the profiler's
            return call()
        if any(t is not None and t.layout is not torch.strided for t in operands):
            return call()  # launches on the tensors that it is made of, which come here
        if not self.wants(row, name):
            return call()
        return self.seen(func, row, name, args, kwargs, call, written_by(func, row, args, kwargs))

    def launched(
        self,
        call: Callable[..., Value],
        name: str,
        inputs: Sequence[torch.Tensor | None],
        results: list[Meta | None],
        attributes: Mapping[str, Attribute | None],
        written: Sequence[int],
    ) -> Value:
        run: Callable[[], Value] = lambda: call(name, inputs, results, attributes, written)  # noqa: E731
        if getattr(self.inside, "yes", False) or name not in FORMULAS:
            return run()
        row = row_of_kernel(name)
        if not self.wants(row, name):
            return run()
        ids = {id(inputs[i]) for i in written}
        return self.seen(NamedKernel(name), row, name, tuple(inputs), dict(attributes), run, ids)

    def seen(
        self,
        func: Operator,
        row: Row | None,
        name: str,
        args: Arguments,
        kwargs: Keywords,
        call: Callable[[], Value],
        written: set[int],
    ) -> Value:
        self.has_seen = True
        operands = tensors((args, kwargs))
        call_seen = Seen(func, row, name, args, kwargs, operands, written)
        drawn = row is not None and row.random and is_on_maca(operands)
        if drawn and not any(isinstance(v, torch.Generator) for v in (*args, *kwargs.values())):
            call_seen.state = random.state()
        call_seen.why_not = why_not_judged(row, operands, call_seen.state is not None)
        with self.unseen():
            if not call_seen.why_not:
                call_seen.copies = replace((args, kwargs), operand_copy)
            self.before(call_seen)
            synchronize()
        start = time.perf_counter()
        with self.closed(), launches() as made:
            call_seen.outcome = call()
        call_seen.implementation = implementations(made)
        with self.unseen():
            synchronize()
            call_seen.seconds = time.perf_counter() - start
            call_seen.results = tensors(call_seen.outcome)
            if call_seen.copies is not None:
                call_seen.changed = [
                    host_copy(t) if t is not None and id(t) in written else None for t in operands
                ]
                call_seen.host = [None if t is None else host_copy(t) for t in call_seen.results]
            self.after(call_seen)
        return call_seen.outcome

    def soon(self, seen: Seen) -> Verdict:
        """:meth:`verdict`, for less where that passes; how far the call is from its bound is another number."""
        found = self.verdict(seen, quick=True)
        return self.verdict(seen) if found.failed else found

    def verdict(self, seen: Seen, quick: bool = False) -> Verdict:
        """Judges a call by its row's bound, which is four times as wide on other devices than maca."""
        if seen.copies is None or seen.row is None:
            return Verdict(seen.why_not)
        elsewhere = not is_on_maca(seen.results + seen.operands)
        try:
            return verdict_of(
                seen.func, seen.row, seen.copies, seen.host, seen.changed, elsewhere, seen.state, quick
            )
        except Exception as error:  # it would be raised in the user's program, which did nothing wrong
            return Verdict(f"n/a: its reference failed with {type(error).__name__}: {error}"[:200])

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Operators that run inside are seen, those of autograd's threads included."""
        plain = MacaTensor.__dict__["__torch_dispatch__"]
        real = named_kernels.launch

        @uncompiled
        def observed(
            func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
        ) -> Value:
            return self.operator(func, args, kwargs or {}, lambda: plain(func, types, args, kwargs))

        def observed_launch(
            kernel: str,
            inputs: Sequence[torch.Tensor | None],
            results: list[Meta | None],
            attributes: Mapping[str, Attribute | None],
            written: Sequence[int] = (),
        ) -> Value:
            return self.launched(real, kernel, inputs, results, attributes, written)

        holders = _launch_names()
        elsewhere = set(self.devices) - {"maca"}
        mode = _Elsewhere(self) if elsewhere else contextlib.nullcontext()
        if "maca" in self.devices:
            type.__setattr__(MacaTensor, "__torch_dispatch__", staticmethod(observed))
            for module in holders:
                vars(module)["launch"] = observed_launch
        judging = (
            checked.judging(self.unseen) if self.with_programs else contextlib.nullcontext(self.programs)
        )
        try:
            with mode, judging as self.programs:
                yield
            synchronize()
        finally:
            if "maca" in self.devices:
                type.__setattr__(MacaTensor, "__torch_dispatch__", plain)
                for module in holders:
                    vars(module)["launch"] = real


@uncompiled
class _Elsewhere(TorchDispatchMode):
    """Operators on devices other than maca."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else PyTorch wraps the method below in one that costs 60 us a call

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # else compiled functions run as they are written, and no program is judged

    def __init__(self, watch: Watch):
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch = watch

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> Value:
        kwargs = kwargs or {}
        operands = [t for t in tensors((args, kwargs)) if t is not None]
        call: Callable[[], Value] = lambda: func(*args, **kwargs)  # noqa: E731
        kinds = {t.device.type for t in operands}
        if not kinds or kwargs.get("device") is not None:
            kinds.add(torch.device(kwargs.get("device") or "cpu").type)
        if not kinds <= set(self.watch.devices) - {"maca"}:
            return call()
        if find_row(func) is None:  # under inference_mode operators come whole
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        return self.watch.operator(func, args, kwargs, call, ours=False)


def _launch_names() -> list[ModuleType]:
    """Modules of ours that hold ``internal.launch`` by name."""
    ours = [m for name, m in list(sys.modules.items()) if name.startswith("macatensor") and m is not None]
    return [m for m in ours if getattr(m, "launch", None) is named_kernels.launch]
