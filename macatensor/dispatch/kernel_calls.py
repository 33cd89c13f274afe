"""Calls that a kernel serves: from the arguments to a plan by signature, from the plan to a launch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NoReturn

import torch
from torch._ops import OpOverload

from macatensor.dispatch import expanded_targets, float8_calls, written_lists
from macatensor.dispatch.consultation import consult_cpu, may_ask_cpu, reject
from macatensor.dispatch.errors import check_devices, is_number, scalar_type, two_devices
from macatensor.dispatch.forms import in_form
from macatensor.dispatch.launcher import Run, static_key
from macatensor.dispatch.plan import (
    create,
    flatten,
    infer,
    meta_tensor,
    result_meta,
    substitute,
)
from macatensor.dispatch.promotion import common_dtype
from macatensor.dispatch.request import Declined, Refused, Scalar
from macatensor.dispatch.resize import restride, write_out
from macatensor.dispatch.rowless import without_row
from macatensor.dispatch.signature import Form, Role, Signature, read
from macatensor.dispatch.warning_rules import warned
from macatensor.runtime import counters, plan_caches
from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.callers import warn
from macatensor.runtime.ffi import OVERLAPS_IN_PART, native
from macatensor.runtime.meta import Meta
from macatensor.runtime.plan_caches import PlanCache
from macatensor.runtime.random import drawn_from
from macatensor.runtime.tensor import MacaTensor, Payload, physical
from op_table import Row
from op_table.row import ALL

if TYPE_CHECKING:
    from macatensor.runtime.ffi import Program

_Maca = MacaTensor
# of these CUDA, and kernels of ours, compute what the CPU does not
_BEYOND_CPU = {torch.complex32, torch.uint16, torch.uint32, torch.uint64}


_OVERLAPS_ITSELF = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. Please "
    "clone() the tensor before performing the operation."
)


class KernelLauncher(native.KernelCall):
    """Calls of one overload that a kernel serves.

    Called with (args, kwargs). The base class, written in C, looks the signature up and launches: the metas of the
    operands, the arguments that are part of the plan, and the kinds of scalars. What it does not know comes here.
    ``by_name``: the arguments that it takes by their names; None: all of them. ``only``: those of which it takes this value
    alone, and leaves it out. Calls with others come to :meth:`general`.
    """

    by_name: frozenset[str] | None = None

    def __init__(
        self, func: OpOverload, row: Row, form: Form, twin: OpOverload, only: dict[str, Value] | None = None
    ):
        self.func = func
        self.row = row
        self.form = form
        self.twin = twin
        self.signature: Signature = read(func, row.launch_scalars)
        arguments = self.signature.arguments
        self.cache: PlanCache[Run] = PlanCache(row.kernel_name, row.keeps_code)
        self.weighed: PlanCache[bool] = (
            PlanCache()
        )  # scalars that PyTorch takes though the result has no room for them
        super().__init__(
            self.signature.letters,
            self.cache,
            self.signature.tensors_end,
            # creation functions: the result's size may follow from the scalars (arange)
            not any(a.role in (Role.TENSOR, Role.TENSORS) for a in arguments),
            tuple([n if self.by_name is None or n in self.by_name else None for n in self.signature.names]),
            self.signature.defaults,
            only or {},
        )
        first = arguments[0] if arguments else None
        self.writes_list = first is not None and first.written and first.role is Role.TENSORS
        # fused optimizers and loss scaling write lists, too, but PyTorch does not count or cast what they write
        self.foreach_in_place = self.writes_list and func.__name__.startswith("_foreach_")
        self.inplace = (
            first is not None
            and first.written
            and first.role is Role.TENSOR
            and not first.is_out
            and 0 in self.signature.returned_arguments
        )

    def general(self, args: Arguments, kwargs: Keywords | None) -> Value:
        """Calls that bring arguments by other names than ``by_name``."""
        return super().__call__(tuple(self.signature.fill(args, kwargs)))

    def odd_operand(self, value: object, args: Arguments) -> tuple[Hashable, Value]:
        """The key and the value of a tensor on the host that is a number; PyTorch's error for what is no operand."""
        if isinstance(value, MacaTensor):
            raise TypeError(f"{self.signature.name}: subclasses of MacaTensor are not supported")
        if isinstance(value, torch.Tensor):
            if self.row.elementwise and is_number(value, self.row.one_element_is_number):
                return ("host", value.dtype), value.item()
            check_devices(self.signature.name, args)
        raise TypeError(f"{self.signature.name} got {type(value).__name__} where it takes a tensor")

    def miss(self, key: Hashable, args: Arguments) -> Run:
        """What runs calls of a signature that is met for the first time."""
        generation = plan_caches.generation
        run = self.build(args, len(args))
        if self.writes_list:
            run = written_lists.one_after_another(
                self, written_lists.counted(run) if self.foreach_in_place else run
            )
        self.cache.remember(key, run, generation)
        return run

    def weigh(self, program: Program, args: Arguments, scalars: list[Scalar]) -> None:
        """Raises where PyTorch refuses a scalar that the result's dtype may have no room for: 1e6 in float16.

        Some operators refuse it, others wrap it or make it infinite: its CPU kernel is consulted once for each.
        """
        key = (program, *map(static_key, scalars))
        if key in self.weighed:
            return
        generation = plan_caches.generation
        full = self.signature.fill(args, None)
        for i, argument in enumerate(self.signature.arguments):
            if argument.role is Role.SCALAR and isinstance(full[i], torch.Tensor):
                full[i] = full[i].item()
        self.ask_host(full, heard=True)
        if (
            not self.row.exact_numbers
        ):  # of those it warns each time, through the call of PyTorch that we are in
            self.weighed.remember(key, True, generation)

    # -- the first call of a signature ------------------------------------------------------------------------
    def build(self, args: Arguments, given: int) -> Run:
        full = self.signature.fill(args, None)
        check_devices(self.signature.name, full, numbers=True, one_element=self.row.one_element_is_number)
        # a number of the host's may only be read: refused before PyTorch's CPU kernel is consulted, which would write it
        if self.inplace and not isinstance(full[0], MacaTensor):
            raise two_devices(self.signature.name, full[0])
        if any(isinstance(t, _Maca) and (t._payload[2].conj or t._payload[2].neg) for t in flatten(full)):
            return self.resolved
        if self.reads_number(full):
            return self.by_number
        if self.row.mask and full[self.signature.positions[self.row.mask]].dtype is torch.uint8:
            return self.masked_by_bytes
        strided = [
            i
            for i, a in enumerate(self.signature.arguments)
            if a.name in self.row.contiguous and isinstance(full[i], _Maca) and not full[i].is_contiguous()
        ]
        if strided:
            return self.copied(strided)
        try:
            self.check_dtype(full)
            of_float8 = float8_calls.run_of(self, full)
            if of_float8 is not None:
                return of_float8
            if self.form is Form.OUT:
                return self.build_out(full, given)
            inferred = self.infer(self.signature, full)
            self.check_kinds(full, inferred)
            if self.writes_list:
                if (
                    any(t._payload[2].overlaps_itself() for t in full[0])
                    and self.row.operator != "_foreach_zero"
                ):
                    raise RuntimeError(_OVERLAPS_ITSELF)
                returned = [i for i in self.signature.returned_arguments if i is not None]
                return create(
                    self.signature, self.row, full, given, None, inplace_list=True, returned=returned
                )
            if self.inplace:
                return self.build_inplace(full, given)
            run = self.make(full, given, inferred)
            run = warned(self.signature, self.row.warns, full, run)
        except Refused as refused:
            self.refuse(full, str(refused))
        except Declined as declined:
            return self.declined(full, str(declined))
        if self.row.copies and _changes_layout(full[0]._payload[2], result_meta(inferred)):

            def run_counted(args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]) -> Value:
                counters.count("layout_conversions")
                return run(args, payloads, scalars)

            return run_counted
        return run

    def make(self, full: list[Value], given: int, inferred: Value) -> Run:
        """What runs a call whose results are new tensors."""
        run: Run = create(self.signature, self.row, full, given, inferred)
        return run

    def resolved(self, args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]) -> Value:
        """Operators that PyTorch lets see lazy conjugate and negative bits: kernels do not know them."""
        written: list[tuple[MacaTensor, MacaTensor]] = []

        def stand_in(t: MacaTensor) -> MacaTensor:
            made = physical(t)
            if made is not t:
                written.append((t, made))
            return made

        given = [
            substitute(a, stand_in if argument.written else physical)
            for argument, a in zip(self.signature.arguments, args)
        ]
        result = self(tuple(given))
        for t, made in written:
            if t.shape != made.shape:  # an out= tensor that was made fit
                restride(t, tuple(made.shape), made.stride())
            t.copy_(made)
        held = {id(made): t for t, made in written}
        if isinstance(result, (list, tuple)):
            return type(result)([held.get(id(r), r) for r in result])
        return held.get(id(result), result)

    def reads_number(self, full: list[Value]) -> bool:
        """Is there a 0-dim value whose dtype has numbers that do not fit, or that the kernel does not convert?"""
        value = full[self.signature.positions[self.row.number]] if self.row.number else None
        if not isinstance(value, _Maca) or not isinstance(full[0], _Maca) or value.dtype == full[0].dtype:
            return False
        if value.dim():  # which PyTorch refuses
            return False
        if (
            self.row.operator != "masked_fill" or full[0].dtype in float8_calls.FLOAT8
        ):  # which promotes to nothing
            return True
        return torch.promote_types(value.dtype, full[0].dtype) != full[0].dtype

    def by_number(self, args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]) -> Value:
        """The value is read, as PyTorch does on every device."""
        overload = getattr(self.func.overloadpacket, self.func._overloadname.replace("Tensor", "Scalar"))
        full = self.signature.fill(args, None)
        at = self.signature.positions[self.row.number]
        return self.signature.call(overload, [v.item() if i == at else v for i, v in enumerate(full)])

    def masked_by_bytes(
        self, args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]
    ) -> Value:
        """A mask of bytes becomes one of bool."""
        warn(
            f"{self.row.operator} received a uint8 {self.row.mask} tensor. This behavior is deprecated and will be "
            "removed in a future version of PyTorch. Use a boolean condition instead."
        )
        at = self.signature.positions[self.row.mask]
        return self(tuple([a.bool() if i == at else a for i, a in enumerate(args)]))

    def copied(self, strided: list[int]) -> Run:
        """Arguments that the row wants row-major are copied, and counted."""

        def run(args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]) -> Value:
            counters.count("strided_copies", len(strided))
            dense = [a.contiguous() if i in strided else a for i, a in enumerate(args)]
            return self(tuple(dense))

        return run

    def build_inplace(self, full: list[Value], given: int) -> Run:
        target: Meta = full[0]._payload[2]
        if target.overlaps_itself() and not self.row.idempotent:
            if self.row.expanded:
                return expanded_targets.writing(self.signature, self.row.operator)
            raise RuntimeError(_OVERLAPS_ITSELF)
        direct = self.row.elementwise or self.row.random or self.form is Form.DIRECT
        if direct:
            return create(
                self.signature,
                self.row,
                full,
                given,
                meta_tensor(target),
                result_memory=[target],
                returned=[0],
                repeats_first=True,
            )
        twin = self.twin

        def run_through_temporary(
            args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]
        ) -> Value:
            result = self.signature.call(twin, self.signature.fill(args, None))
            args[0].copy_(result)
            return args[0]

        return run_through_temporary

    def ask_host(self, full: list[Value], heard: bool = False) -> None:
        """Raises what PyTorch's CPU kernel says of operands like these. Creation functions are not asked: their result
        may be as large as a scalar says."""
        memories = [id(t._payload[0]) for t in flatten(full) if isinstance(t, MacaTensor)]
        if memories:
            # operands that overlap are refused before their dtypes are: they keep their places
            apart = len(set(memories)) == len(memories)
            narrowed = apart and (self.row.elementwise or self.row.exact_numbers)
            consult_cpu(self.signature, full, narrowed=narrowed, heard=heard)

    def check_dtype(self, full: list[Value]) -> None:
        """Raises where the row does not state the dtype of the first operand and PyTorch does not take it either: its
        meta kernels do not look at dtypes, and the library's kernels may compute what nobody has asked of them."""
        first = next((t for t in flatten(full[:1]) if isinstance(t, MacaTensor)), None)
        if first is None or self.row.states(first.dtype) or first.dtype in _BEYOND_CPU:
            return
        self.ask_host(full)
        if (
            self.computed_dtype(full) is None
            and not may_ask_cpu(self.func)
            and str(first.dtype).removeprefix("torch.") in ALL
        ):
            name = self.row.operator
            raise NotImplementedError(f"\"{name}\" not implemented for '{scalar_type(first.dtype)}'")

    def computed_dtype(self, full: list[Value]) -> torch.dtype | None:
        """The dtype that the call asks for, or to which its operands promote, where the row states it."""
        asked = self.signature.positions.get("dtype")
        of_call = (
            full[asked] if asked is not None else None,
            common_dtype(self.signature, self.row, full) if self.row.elementwise else None,
        )
        return next((d for d in of_call if d is not None and self.row.states(d)), None)

    def check_kinds(self, full: list[Value], results: Value) -> None:
        """Raises where PyTorch refuses a scalar's kind, as a fraction of integers, or does not cast what comes out to
        the dtype of what it is written to. Its meta kernels, many of them Python, do not look at that."""
        dtypes = [t.dtype for t in flatten([results, full]) if isinstance(t, torch.Tensor)]
        rank = max(map(_rank, dtypes), default=0)
        for argument, value in zip(self.signature.arguments, full):
            given = (
                [value] if argument.role is Role.SCALAR else value if argument.role is Role.SCALARS else []
            )
            for number in given:
                if isinstance(number, (bool, int, float, complex)):
                    kind = _KINDS.index(type(number)) if type(number) in _KINDS else 0
                    if kind > rank or (kind == 0 and rank > 0):
                        return self.ask_host(full)
        if (self.inplace and self.form is Form.INPLACE) or self.foreach_in_place:
            wanted = flatten(self.infer(read(self.twin, self.row.launch_scalars), full))
            if not all(torch.can_cast(w.dtype, t.dtype) for w, t in zip(wanted, flatten(full[:1]))):
                self.ask_host(full)

    def infer(self, signature: Signature, full: list[Value]) -> Value:
        """The meta kernel's results; what it refuses is worded by PyTorch's CPU kernel, or known from its results."""
        try:
            return infer(signature, full, self.row)
        except Exception as error:
            return reject(signature, full, error)

    def build_out(self, full: list[Value], given: int) -> Run:
        outs = self.signature.outs
        twin_signature = read(self.twin, self.row.launch_scalars)
        if any(isinstance(full[i], (list, tuple)) for i in outs):
            return self.build_out_lists(full, twin_signature)
        metas = [full[i]._payload[2] for i in outs]
        inputs = [v for i, v in enumerate(full) if i not in outs]
        wanted = flatten(self.infer(twin_signature, inputs))
        choice = twin_signature.positions.get("dtype")
        self.check_kinds(full, wanted)
        if choice is not None and inputs[choice] is None and wanted[0].dtype != metas[0].dtype:
            inputs[choice] = metas[0].dtype  # sums and scans compute in the dtype of what they are written to
            wanted = flatten(self.infer(twin_signature, inputs))
        casts = False
        if any(w is not None and w.dtype != m.dtype for w, m in zip(wanted, metas)):
            # which casts it allows, its CPU kernel knows
            casts = consult_cpu(self.signature, full, with_values=True) is not None
        same = self.row.elementwise and all(
            w is not None and (tuple(w.shape), w.dtype, False, False) == (m.size, m.dtype, m.conj, m.neg)
            for w, m in zip(wanted, metas)
        )
        if same:
            results = tuple(meta_tensor(m) for m in metas)
            return create(
                self.signature,
                self.row,
                full,
                given,
                results if len(results) > 1 else results[0],
                result_memory=metas,
                returned=outs,
            )
        twin = self.twin

        def run_through_temporary(
            args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]
        ) -> Value:
            values = self.signature.fill(args, None)
            operands = [v for i, v in enumerate(values) if i not in outs]
            if choice is not None:
                operands[choice] = inputs[choice]
            results = twin_signature.call(twin, operands)
            return write_out([values[i] for i in outs], results, casts)

        return run_through_temporary

    def build_out_lists(self, full: list[Value], twin_signature: Signature) -> Run:
        """Lists of ``out=`` tensors, which PyTorch writes one by one."""
        self.infer(twin_signature, [v for i, v in enumerate(full) if i not in self.signature.outs])
        write = in_form(self.func, Form.OUT, self.twin, self.twin)

        def run(args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]) -> Value:
            return write(args, None)

        return run

    def refuse(self, full: list[Value], reason: str) -> NoReturn:
        """The operands contradict each other: PyTorch's own error, or ours."""
        consult_cpu(self.signature, full)
        raise RuntimeError(f"{self.signature.name}: {reason}")

    def declined(self, full: list[Value], reason: str) -> Run:
        """The library has no kernel for this signature: PyTorch's own error, or the next way."""
        consult_cpu(self.signature, full, with_values=True)  # many a factorization trusts its pivots

        def run(args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]) -> Value:
            # keyword-only arguments came here by position
            split = self.signature.positional
            return without_row(self.func, args[:split], self.signature.named(args), reason)

        return run


_KINDS = (bool, int, float, complex)


def _rank(dtype: torch.dtype) -> int:
    """The kind of Python's numbers that a dtype holds."""
    return 0 if dtype is torch.bool else 3 if dtype.is_complex else 2 if dtype.is_floating_point else 1


def _changes_layout(source: Meta, result: Meta | None) -> bool:
    """Does a copy of a 4-D or 5-D tensor reorder its dimensions in memory?"""
    if result is None or len(source.size) not in (4, 5) or source.size != result.size:
        return False
    if not (source.dense and result.dense):
        return False
    return any(a != b for n, a, b in zip(source.size, source.stride, result.stride) if n > 1)


class RandomLauncher(KernelLauncher):
    """A kernel that draws random numbers: from the device's generator, or seeded by a host generator."""

    def __call__(self, args: Arguments, kwargs: Keywords | None = None) -> Value:
        position = self.signature.positions.get("generator", len(args))
        generator = args[position] if position < len(args) else (kwargs or {}).get("generator")
        if generator is None:
            return super().__call__(args, kwargs)
        # without it the plan is the same as for the device's own generator
        args = tuple([None if i == position else a for i, a in enumerate(args)])
        options = {k: v for k, v in (kwargs or {}).items() if k != "generator"}
        with drawn_from(generator):
            return super().__call__(args, options)


class ApartLauncher(KernelLauncher):
    """A kernel that writes its first operand, in whose memory no other operand may lie."""

    def __call__(self, args: Arguments, kwargs: Keywords | None = None) -> Value:
        if isinstance(args[0], _Maca):
            buffer, offset, meta = args[0]._payload
            for t in flatten([*args[1:], *(kwargs or {}).values()]):
                if not isinstance(t, _Maca) or t._payload[0] is not buffer:
                    continue
                if meta.meets(offset, t._payload[2], t._payload[1]):
                    raise RuntimeError(OVERLAPS_IN_PART)
        return super().__call__(args, kwargs)


def kernel_launcher(func: Value, row: Row, form: Form, twin: Value) -> KernelLauncher:
    """The launcher of an overload that a kernel serves."""
    kind = RandomLauncher if row.random else ApartLauncher if row.apart else KernelLauncher
    return kind(func, row, form, twin)
