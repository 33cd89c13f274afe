"""From a signature to a plan: PyTorch's meta kernel says what the result is, the library chooses how."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from macatensor.choices import deciding
from macatensor.dispatch import (  # noqa: F401 - register their rules
    meta_rules_images,
    meta_rules_normalization,
    meta_rules_pointwise,
    meta_rules_recurrent,
    meta_rules_selection,
)
from macatensor.dispatch.attribute_rules import ATTRIBUTE_RULES
from macatensor.dispatch.meta_rules import META_RULES
from macatensor.dispatch.promotion import common_dtype
from macatensor.dispatch.request import Declined, Operand, Request, Scalar
from macatensor.dispatch.signature import Role, Signature
from macatensor.dispatch.stride_rules import STRIDE_RULES
from macatensor.runtime import counters, extensions
from macatensor.runtime.boxed import Value
from macatensor.runtime.ffi import allocate, ffi, lib, native
from macatensor.runtime.meta import Meta, meta_of, set_lazy_bits
from macatensor.runtime.plan_flags import plan_flags
from macatensor.runtime.tensor import MacaTensor, Payload
from op_table import Row

if TYPE_CHECKING:
    from macatensor.runtime.ffi import Program

# What a compiled program may fuse: the requests of such kernels, by their programs' numbers, as long as these live.
known_requests: weakref.WeakValueDictionary[int, Request] = weakref.WeakValueDictionary()

ABSENT: Payload = (None, 0, None)  # type: ignore[assignment]

_HUGE = 1 << 36  # bytes of one result: only the allocator says whether the device has so many

_SCALAR_META: dict[type, Meta] = {
    bool: meta_of((), (), torch.bool),
    int: meta_of((), (), torch.int64),
    float: meta_of((), (), torch.float64),
    complex: meta_of((), (), torch.complex128),
}


def meta_tensor(meta: Meta) -> torch.Tensor:
    """An empty tensor on the meta device."""
    return set_lazy_bits(torch.empty_strided(meta.size, meta.stride, dtype=meta.dtype, device="meta"), meta)


def substitute(value: Value, replace: Callable[[MacaTensor], torch.Tensor]) -> Value:
    """``value`` with every MacaTensor in it, one list deep, replaced."""
    if isinstance(value, MacaTensor):
        return replace(value)
    if isinstance(value, (list, tuple)):
        return [replace(v) if isinstance(v, MacaTensor) else v for v in value]
    if isinstance(value, torch.device) and value.type == "maca":
        return torch.device("meta")
    return value


def flatten(result: Value) -> list[Value]:
    """The tensors (or None) of an operator's result, in order."""
    if result is None:
        return []
    if isinstance(result, (list, tuple)):
        flat: list[Value] = []
        for r in result:
            if isinstance(r, (list, tuple)):
                flat.extend(r)
            else:
                flat.append(r)
        return flat
    return [result]


def infer(signature: Signature, full: list[Value], row: Row) -> Value:
    """Runs PyTorch's meta kernel: the results as meta tensors, with the row's strides."""
    args = [substitute(v, lambda t: meta_tensor(t._payload[2])) for v in full]
    own = META_RULES[row.meta] if row.meta else None
    with torch._C.DisableTorchFunction():  # a default device of the caller's is not one for what these make
        result = own(*args) if own is not None else signature.call(signature.func, args)
    rule = STRIDE_RULES.get(row.strides)
    if rule is not None:
        tensors = [r for r in flatten(result) if r is not None]
        strides = rule(args, tensors)
        fixed = iter(
            torch.empty_strided(t.shape, s, dtype=t.dtype, device="meta") for t, s in zip(tensors, strides)
        )
        if isinstance(result, torch.Tensor):
            return next(fixed)
        shaped = [
            [next(fixed) if x is not None else None for x in r]
            if isinstance(r, (list, tuple))
            else (next(fixed) if r is not None else None)
            for r in result
        ]
        return (
            shaped if isinstance(result, list) else tuple(shaped)
        )  # a list is one result of several tensors
    return result


def result_meta(tensor: torch.Tensor) -> Meta:
    """Of a new tensor: each element has memory of its own, where PyTorch 2.11's meta kernels of scatters expand, too."""
    meta = meta_of(tuple(tensor.shape), tensor.stride(), tensor.dtype)
    if meta.overlaps_itself():
        return meta_of(meta.size, torch.empty_like(tensor).stride(), meta.dtype)
    return meta


def _is_attribute(value: object) -> bool:
    if value is None or isinstance(
        value, (torch.device, torch.layout, torch.memory_format, torch.Generator, torch.Tensor)
    ):
        return False
    if isinstance(value, (list, tuple)):
        return all(isinstance(v, (bool, int, float)) for v in value)
    return isinstance(value, (bool, int, float, str, torch.dtype))


def _operand_of(value: Value, request: Request) -> Operand:
    if value is None:
        return Operand(None)
    if isinstance(value, MacaTensor):
        return Operand(value._payload[2])
    if isinstance(value, torch.Tensor):  # a 0-dim host tensor: its value travels as a scalar
        return Operand(meta_of((), (), value.dtype), request.slots(1))
    return Operand(_SCALAR_META[type(value)], request.slots(1))


class Room(NamedTuple):
    """Which scalars surely fit."""

    low: float
    high: float
    is_integral: bool  # NaN and infinities do not
    is_real: bool  # imaginary parts do not


def room_for_scalars(dtypes: Iterable[torch.dtype], least: float = -math.inf, exact: bool = False) -> Room:
    """Which scalars from ``least`` on surely fit into all of ``dtypes``. PyTorch may wrap others, round them to infinity or
    refuse them, each operator in its own way. ``exact``: nor do scalars that the dtypes round."""
    low, high = least, math.inf
    is_integral = is_real = False
    for dtype in dtypes:
        is_real = is_real or not dtype.is_complex
        if dtype is torch.bool:
            continue
        is_inexact = dtype.is_floating_point or dtype.is_complex
        is_integral = is_integral or not is_inexact
        info = torch.finfo(dtype) if is_inexact else torch.iinfo(dtype)
        if exact and is_inexact:
            last = 2 / torch.finfo(dtype).eps
            low, high = max(low, -last), min(high, last)
        low = max(low, float(info.min))
        # the float nearest to 2^63 - 1 is 2^63, which does not fit
        high = min(
            high, float(info.max) if float(info.max) <= info.max else math.nextafter(float(info.max), 0)
        )
    return Room(low, high, is_integral, is_real)


def program(
    request: Request,
    operator: str,
    written: Sequence[bool],
    metas: Sequence[Meta | None],
    lists: Sequence[int],
    *,
    returned: Sequence[int] | None = None,
    repeats_first: bool = False,
    in_memory: bool = False,
    defaults: Sequence[Scalar] = (),
    order: Sequence[int] = (),
    least: float = -math.inf,
    exact: bool = False,
    fusible: bool = False,
) -> Program:
    """The ``Program`` of a request: called with (arguments, payloads, scalars) it launches and returns the results.

    ``metas``: the results that each launch allocates, None for one that is None; ``lists``: for each result of the
    operator -1, or the length of the list that it is; metas beyond those are results that nobody sees. ``returned``:
    instead, which arguments are the results. ``repeats_first``: the first operand is the result as well. ``order``:
    for each operand of the request which of the given ones it is; by default they are in its order. ``least``: no
    number below it is surely fine, and ``exact``: none that the dtypes round. ``fusible``: a compiled program may
    fuse it, where the device's own library serves it. Raises :class:`Declined`.
    """
    for meta in metas:
        if meta is not None and meta.nbytes >= _HUGE:
            allocate(meta.nbytes)  # raises before anything is prepared for so many elements
    held = request.create_program(operator, written, in_memory=in_memory, defaults=defaults)
    address = int(ffi.cast("intptr_t", held))
    results = [
        meta
        for i, (meta, slot) in enumerate(request.operands)
        if meta is not None and slot < 0 and (i >= len(written) or written[i])
    ]
    room = room_for_scalars({meta.dtype for meta in results} if request.scalars else (), least, exact)
    keep: object = held
    if fusible and not lib.maca_program_extension(held):
        request.keep.clear()
        known_requests[lib.maca_program_number(held)] = request
        keep = held, request
    return native.Program(keep, address, operator, metas, lists, returned, repeats_first, order, room)


def create(
    signature: Signature,
    row: Row,
    full: list[Value],
    given: int,
    results: Value,
    *,
    result_memory: list[Meta] | None = None,
    inplace_list: bool = False,
    returned: Sequence[int] | None = None,
    repeats_first: bool = False,
) -> Program:
    """Asks the library for a plan and makes a :func:`program` of it.

    ``full``: every argument; the first ``given`` of them bring their scalars at each launch, the others' defaults
    are kept with the program. ``results``: the meta kernel's result. ``result_memory``: metas of tensors of the
    caller that take the results instead of new ones, by position. ``returned``: which arguments are then the
    operator's results. Raises :class:`Declined`.
    """
    request = Request(row.kernel_name)
    written: list[bool] = []
    brought: list[Scalar] = []
    defaults: list[Scalar] = []
    unsaid = row.also_writes if row.also_writes and full[signature.positions["training"]] else ()
    for i, (argument, value) in enumerate(zip(signature.arguments, full)):
        if argument.is_out:
            continue
        if argument.role is Role.TENSOR:
            request.add([_operand_of(value, request)], is_list=False, is_output=False)
            written.append(argument.written or (argument.name in unsaid and value is not None))
        elif argument.role is Role.TENSORS:
            if value is None:
                request.add([Operand(None)], is_list=False, is_output=False)
                written.append(False)
            else:
                request.add([_operand_of(v, request) for v in value], is_list=True, is_output=False)
                written.extend([argument.written] * len(value))
        elif argument.role is Role.SCALAR:
            if value is not None:
                request.attributes.append((f"{argument.name}.scalar", request.slots(1)))
                (brought if i < given else defaults).append(value)
        elif argument.role is Role.SCALARS:
            request.attributes.append((f"{argument.name}.scalar", request.slots(len(value))))
            request.attributes.append((f"{argument.name}.count", len(value)))
        elif _is_attribute(value):
            request.attributes.append((argument.name, value))
    common = common_dtype(signature, row, full)
    if common is not None:
        request.attributes.append(("common_dtype", common))
    if row.attributes:
        request.attributes.extend(ATTRIBUTE_RULES[row.attributes]())
    if inplace_list:
        request.attributes.append(("inplace", True))
    inputs = len(request.operands)
    shaped = list(results) if isinstance(results, tuple) else [results] if results is not None else []
    lists = [len(r) if isinstance(r, (list, tuple)) else -1 for r in shaped]
    metas = [None if t is None else result_meta(t) for t in flatten(results)]
    flat = iter(metas)
    for n in lists:
        request.add(
            [Operand(next(flat)) for _ in range(max(n, 1) if n < 0 else n)], is_list=n >= 0, is_output=True
        )
    if result_memory is not None:
        for position, target in enumerate(result_memory):
            request.operands[inputs + position] = Operand(target)
            request.arguments[len(request.arguments) - len(lists) + position].operands[0] = Operand(target)

    in_memory = result_memory is not None
    request.by_rows = row.by_rows

    def made(way: str) -> Program:
        request.way = way
        return program(
            request,
            signature.name,
            written,
            [] if in_memory else metas,
            [] if in_memory else lists,
            returned=returned,
            repeats_first=repeats_first,
            in_memory=in_memory,
            defaults=defaults,
            least=row.least,
            exact=row.exact_numbers,
            fusible=(row.elementwise or bool(row.by_rows)) and not row.random,
        )

    counters.count("plan_misses")
    if in_memory or row.kernel_name not in deciding.KERNELS or extensions.naming(row.kernel_name):
        return made(deciding.OWN)  # a joined library is no way of the device's
    asked = deciding.Asked(
        signature.func,
        row,
        full,
        request.kernel,
        plan_flags(request.kernel),
        [operand.meta for operand in request.operands],
        request.attributes,
        brought,
        request.build,
        made,
    )
    try:
        return made(deciding.way_of(asked))
    except Declined:  # a bank of another build of the library
        return made(deciding.OWN)
