"""Calls that a kernel serves: from the arguments to a plan by signature, from the plan to a launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from macatensor import counting, flags, host_fallback, tensor
from macatensor.errors import check_devices, reject
from macatensor.ffi import ffi, launch_error, lib
from macatensor.launcher import Launcher, remember, static_key
from macatensor.meta import Meta, meta_of
from macatensor.plan import (
    ABSENT,
    Plan,
    create,
    flatten,
    infer,
    is_number,
    meta_tensor,
    substitute,
)
from macatensor.random import drawn_from
from macatensor.request import Declined, Refused
from macatensor.resize import write_out
from macatensor.rowless import without_row
from macatensor.signature import Form, Role, Signature, read
from macatensor.tensor import MacaTensor, physical
from op_table import Row

_gc = ffi.gc
_release = lib.maca_buffer_release
_launch_1 = lib.maca_launch_1
_launch_2 = lib.maca_launch_2
_launch_1_real = lib.maca_launch_1_real
_launch_1_integer = lib.maca_launch_1_integer
_Maca = MacaTensor


class KernelLauncher:
    """Calls of one overload that a kernel serves."""

    def __init__(self, func: Any, row: Row, form: Form, twin: Any):
        self.func = func
        self.row = row
        self.form = form
        self.twin = twin
        self.signature: Signature = read(func, row.launch_scalars)
        self.roles = [a.role for a in self.signature.arguments]
        # creation functions: the result's size may follow from the numbers (arange)
        self.sized_by_numbers = not any(r in (Role.TENSOR, Role.TENSORS) for r in self.roles)
        self.is_tensor = [
            a.role in (Role.TENSOR, Role.TENSORS) and not a.is_out for a in self.signature.arguments
        ]
        self.tensors_end = max((i + 1 for i, t in enumerate(self.is_tensor) if t), default=0)
        self.cache: dict[Any, Any] = {}
        self.fast: dict[Any, tuple[Any, ...]] = {}  # program, then the result's size, stride, dtype, Meta
        flags.caches += [self.cache, self.fast]
        flags.caches_of.setdefault(row.kernel_name, []).append(self.cache)
        first = self.signature.arguments[0] if self.signature.arguments else None
        self.writes_list = first is not None and first.written and first.role is Role.TENSORS
        self.inplace = (
            first is not None
            and first.written
            and first.role is Role.TENSOR
            and not first.is_out
            and 0 in self.signature.returned_arguments
        )
        # the commonest calls: one or two tensors, one new result
        plain = form is Form.DIRECT and not any(a.written for a in self.signature.arguments)
        self.is_plain = plain and self.signature.returns == (False,)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        return self.general(args, kwargs)

    def quick(self) -> Launcher:
        """The launcher for the table. The commonest calls, one or two tensors or a tensor and a number to one new
        tensor, are looked up and wrapped in one function: every attribute and call less is 30 to 60 ns of 5 us."""
        general = self.general
        if not self.is_plain:
            return general
        find = self.fast.get
        failure = self.failure
        make, device, strided = torch.Tensor._make_wrapper_subclass, tensor.DEVICE, torch.strided
        gc, release, launch_1, launch_2 = _gc, _release, _launch_1, _launch_2
        launch_1_real, launch_1_integer = _launch_1_real, _launch_1_integer

        def call(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
            if kwargs:
                return general(args, kwargs)
            count = len(args)
            if count == 2:
                a, b = args
                if type(a) is not _Maca:
                    return general(args, None)
                buffer, offset, meta = a._payload
                kind = type(b)
                if kind is _Maca:
                    other, other_offset, other_meta = b._payload
                    found = find((meta, other_meta))
                    if found is None:
                        return general(args, None)
                    made = launch_2(found[0], buffer, offset, other, other_offset)
                else:
                    found = find((meta, kind))
                    if found is None:
                        return general(args, None)
                    made = (launch_1_real if kind is float else launch_1_integer)(found[0], buffer, offset, b)
            elif count == 1:
                a = args[0]
                if type(a) is not _Maca:
                    return general(args, None)
                buffer, offset, meta = a._payload
                found = find(meta)
                if found is None:
                    return general(args, None)
                made = launch_1(found[0], buffer, offset)
            else:
                return general(args, None)
            if not made:
                raise failure()
            _, size, stride, dtype, meta = found
            result = make(_Maca, size, stride, 0, None, dtype, strided, device)
            result._payload = (gc(made, release), 0, meta)
            return result

        return call

    def failure(self) -> Exception:
        return launch_error(lib.maca_runtime_status(), self.signature.name)

    def general(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        given = len(args)
        if kwargs:
            args = tuple(self.signature.fill(args, kwargs))
            given = len(args)
        key: list[Any] = []
        payloads: list[Any] = []
        scalars: list[Any] = []
        for role, value in zip(self.roles, args):
            kind = type(value)
            if kind is _Maca:
                payload = value._payload
                key.append(payload[2])
                payloads.append(payload)
            elif role is Role.TENSOR:
                payloads.append(ABSENT)
                if value is None:
                    key.append(None)
                elif is_number(value):
                    key.append(kind)
                    scalars.append(value)
                else:
                    key.append(self.host_operand(value, args, scalars))
            elif role is Role.TENSORS:
                key.append(self.list_operand(value, args, payloads, scalars))
            elif role is Role.SCALAR:
                key.append(static_key(value) if self.sized_by_numbers else kind)
                if value is not None:
                    if kind is not float and kind is not int and not is_number(value):
                        value = value.item()  # a 0-dim tensor where PyTorch takes a number
                    scalars.append(value)
            elif role is Role.SCALARS:
                key.append((len(value), *map(type, value)))
                scalars.extend(value)
            else:
                key.append(static_key(value))
        # PyTorch leaves out trailing arguments that have their default: absent tensors still take their place
        if given < self.tensors_end:
            payloads.extend([ABSENT] * sum(self.is_tensor[given:]))
        key_tuple = tuple(key)
        run = self.cache.get(key_tuple)
        if run is None:
            run = self.build(args, given)
            remember(self.cache, key_tuple, run)
        return run(args, payloads, scalars)

    def host_operand(self, value: Any, args: tuple[Any, ...], scalars: list[Any]) -> Any:
        if isinstance(value, MacaTensor):
            raise TypeError(f"{self.signature.name}: subclasses of MacaTensor are not supported")
        if isinstance(value, torch.Tensor):
            if value.dim() == 0 and value.device.type == "cpu" and self.row.elementwise:
                scalars.append(value.item())
                return ("host", value.dtype)
            check_devices(self.signature.name, args)
        raise TypeError(f"{self.signature.name} got {type(value).__name__} where it takes a tensor")

    def list_operand(
        self, values: Any, args: tuple[Any, ...], payloads: list[Any], scalars: list[Any]
    ) -> Any:
        if values is None:
            payloads.append(ABSENT)
            return None
        key: list[Any] = []
        for value in values:
            if type(value) is _Maca:
                payload = value._payload
                key.append(payload[2])
                payloads.append(payload)
            elif value is None:
                key.append(None)
                payloads.append(ABSENT)
            else:
                key.append(self.host_operand(value, args, scalars))
                payloads.append(ABSENT)
        return tuple(key)

    # -- the first call of a signature ------------------------------------------------------------------------
    def build(self, args: tuple[Any, ...], given: int) -> Callable[[Any, Any, Any], Any]:
        full = self.signature.fill(args, None)
        check_devices(self.signature.name, full, zero_dim=True)
        if any(isinstance(t, _Maca) and (t._payload[2].conj or t._payload[2].neg) for t in flatten(full)):
            return self.resolved
        strided = [
            i
            for i, a in enumerate(self.signature.arguments)
            if a.name in self.row.contiguous and isinstance(full[i], _Maca) and not full[i].is_contiguous()
        ]
        if strided:
            return self.copied(strided)
        try:
            if self.form is Form.OUT:
                return self.build_out(full, given)
            inferred = self.infer(self.signature, full)
            if self.writes_list:
                plan = create(self.signature, self.row, full, given, None, inplace_list=True)
                returned = self.signature.returned_arguments

                def run_list(args: Any, payloads: Any, scalars: Any) -> Any:
                    plan.launch(payloads, scalars)
                    results = [args[i] for i in returned if i is not None]
                    return results[0] if len(results) == 1 else tuple(results) if results else None

                return run_list
            if self.inplace:
                return self.build_inplace(full, given)
            plan = create(self.signature, self.row, full, given, inferred)
        except Refused as refused:
            self.refuse(full, str(refused))
        except Declined as declined:
            return self.declined(full, str(declined))
        if self.row.operator in _COPIES and _changes_layout(full[0]._payload[2], plan.metas[0]):

            def run_counted(args: Any, payloads: Any, scalars: Any) -> Any:
                counting.layout_conversions += 1
                return plan.run(payloads, scalars)

            return run_counted
        self.remember_fast(args, plan)

        def run(args: Any, payloads: Any, scalars: Any) -> Any:
            return plan.run(payloads, scalars)

        return run

    def resolved(self, args: Any, payloads: Any, scalars: Any) -> Any:
        """Operators that PyTorch lets see lazy conjugate and negative bits: kernels do not know them."""
        return self.general(tuple([substitute(a, physical) for a in args]), None)

    def copied(self, strided: list[int]) -> Callable[[Any, Any, Any], Any]:
        """Arguments that the row wants row-major are copied, and counted."""

        def run(args: Any, payloads: Any, scalars: Any) -> Any:
            counting.strided_copies += len(strided)
            dense = [a.contiguous() if i in strided else a for i, a in enumerate(args)]
            return self.general(tuple(dense), None)

        return run

    def remember_fast(self, args: tuple[Any, ...], plan: Plan) -> None:
        if not (self.is_plain and plan.single):
            return
        tensors = sum(a.role in (Role.TENSOR, Role.TENSORS) for a in self.signature.arguments)
        meta: Any = plan.metas[0]
        entry = (plan.program, meta.size, meta.stride, meta.dtype, meta)
        if len(args) == 1 and type(args[0]) is _Maca and tensors == 1:
            remember(self.fast, args[0]._payload[2], entry)
        elif len(args) == 2 and type(args[0]) is _Maca:
            if type(args[1]) is _Maca and tensors == 2:
                remember(self.fast, (args[0]._payload[2], args[1]._payload[2]), entry)
            elif type(args[1]) in (float, int) and self.roles[1] in (Role.TENSOR, Role.SCALAR):
                # only when every operand but the first is the number itself
                if tensors == (2 if self.roles[1] is Role.TENSOR else 1):
                    remember(self.fast, (args[0]._payload[2], type(args[1])), entry)

    def build_inplace(self, full: list[Any], given: int) -> Callable[[Any, Any, Any], Any]:
        target: Meta = full[0]._payload[2]
        # a fill writes the same to every element, whatever they share
        if target.overlaps_itself() and self.row.operator not in ("fill", "zero"):
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to a single memory "
                "location. Please clone() the tensor before performing the operation."
            )
        direct = self.row.elementwise or self.row.random or self.form is Form.DIRECT
        if direct:
            plan = create(self.signature, self.row, full, given, meta_tensor(target), result_memory=[target])

            def run(args: Any, payloads: Any, scalars: Any) -> Any:
                payloads.append(payloads[0])
                plan.run(payloads, scalars)
                return args[0]

            return run
        twin = self.twin

        def run_through_temporary(args: Any, payloads: Any, scalars: Any) -> Any:
            result = self.signature.call(twin, self.signature.fill(args, None))
            args[0].copy_(result)
            return args[0]

        return run_through_temporary

    def infer(self, signature: Signature, full: list[Any]) -> Any:
        """The meta kernel's results; what it refuses is worded by PyTorch's CPU kernel."""
        try:
            return infer(signature, full, self.row)
        except Exception as error:
            reject(signature, full, error)

    def build_out(self, full: list[Any], given: int) -> Callable[[Any, Any, Any], Any]:
        outs = self.signature.outs
        twin_signature = read(self.twin, self.row.launch_scalars)
        metas = [full[i]._payload[2] for i in outs]
        inputs = [v for i, v in enumerate(full) if i not in outs]
        wanted = flatten(self.infer(twin_signature, inputs))
        choice = twin_signature.positions.get("dtype")
        if choice is not None and inputs[choice] is None and wanted[0].dtype != metas[0].dtype:
            inputs[choice] = metas[0].dtype  # sums and scans compute in the dtype of what they are written to
            wanted = flatten(self.infer(twin_signature, inputs))
        if any(w is not None and w.dtype != m.dtype for w, m in zip(wanted, metas)):
            # which casts it allows, its CPU kernel knows
            host_fallback.replay_on_host(self.signature, full, with_values=True)
        same = self.row.elementwise and all(
            w is not None and meta_of(tuple(w.shape), m.stride, w.dtype) is m for w, m in zip(wanted, metas)
        )
        if same:
            results = tuple(meta_tensor(m) for m in metas)
            plan = create(
                self.signature,
                self.row,
                full,
                given,
                results if len(results) > 1 else results[0],
                result_memory=metas,
            )

            def run(args: Any, payloads: Any, scalars: Any) -> Any:
                plan.run(payloads, scalars)
                written = [args[i] for i in outs]
                return written[0] if len(written) == 1 else tuple(written)

            return run
        twin = self.twin

        def run_through_temporary(args: Any, payloads: Any, scalars: Any) -> Any:
            values = self.signature.fill(args, None)
            operands = [v for i, v in enumerate(values) if i not in outs]
            if choice is not None:
                operands[choice] = inputs[choice]
            results = twin_signature.call(twin, operands)
            return write_out([values[i] for i in outs], results)

        return run_through_temporary

    def refuse(self, full: list[Any], reason: str) -> NoReturn:
        """The operands contradict each other: PyTorch's own error, or ours."""
        host_fallback.replay_on_host(self.signature, full)
        raise RuntimeError(f"{self.signature.name}: {reason}")

    def declined(self, full: list[Any], reason: str) -> Callable[[Any, Any, Any], Any]:
        """The library has no kernel for this signature: PyTorch's own error, or the next way."""
        host_fallback.replay_on_host(self.signature, full)

        def run(args: Any, payloads: Any, scalars: Any) -> Any:
            # keyword-only arguments came here by position
            split = self.signature.positional
            return without_row(self.func, args[:split], self.signature.named(args), reason)

        return run


_COPIES = {"clone", "_to_copy", "copy"}


def _changes_layout(source: Meta, result: Meta | None) -> bool:
    """Does a copy of a 4-D or 5-D tensor reorder its dimensions in memory?"""
    if result is None or len(source.size) not in (4, 5) or source.size != result.size:
        return False
    if not (source.dense and result.dense):
        return False
    return any(a != b for n, a, b in zip(source.size, source.stride, result.stride) if n > 1)


class RandomLauncher(KernelLauncher):
    """A kernel that draws random numbers: from the device's generator, or seeded by a host generator."""

    def quick(self) -> Launcher:
        return self

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        position = self.signature.positions.get("generator", len(args))
        generator = args[position] if position < len(args) else (kwargs or {}).get("generator")
        if generator is None:
            return self.general(args, kwargs)
        # without it the plan is the same as for the device's own generator
        args = tuple([None if i == position else a for i, a in enumerate(args)])
        options = {k: v for k, v in (kwargs or {}).items() if k != "generator"}
        with drawn_from(generator):
            return self.general(args, options)
