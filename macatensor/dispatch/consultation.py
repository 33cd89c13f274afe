"""A consultation: PyTorch's CPU kernel is asked what it says of a call that ours cannot take, on operands of its own."""

from __future__ import annotations

import re
import warnings
from typing import NoReturn

import torch
from torch._ops import OpOverload

from macatensor.dispatch.errors import check_devices
from macatensor.dispatch.plan import flatten, substitute
from macatensor.dispatch.signature import Signature
from macatensor.runtime import counters, layout
from macatensor.runtime.boxed import Value
from macatensor.runtime.callers import repeat_warnings
from macatensor.runtime.host_copies import download
from macatensor.runtime.meta import set_lazy_bits
from macatensor.runtime.tensor import MacaTensor
from op_table import cpu_checks

_LARGEST = 1 << 28  # bytes of one empty operand; above it PyTorch's meta kernel has the word
_LARGEST_COPY = 1 << 20  # bytes of one operand that are worth a copy for an error


# What operators of C++ raise, with torch.OutOfMemoryError and kin, which are RuntimeErrors.
_PYTORCHS = (RuntimeError, IndexError, TypeError, ValueError, MemoryError)
# What Python itself says of operands that code took for granted, in these classes.
_PYTHONS = re.compile(
    r"(list|tuple|string) index out of range|values to unpack|pop from empty|empty sequence|object is not|object has no|"
    r"argument must be a string|incompatible function arguments|argument '\w+' \(position \d+\) must be"
)


def may_ask_cpu(func: OpOverload) -> bool:
    """May PyTorch's CPU kernel of an overload see operands that nobody has proven? Operators of other libraries may."""
    return func.namespace != "aten" or cpu_checks(func._schema.name.partition("::")[2])


def _stand_ins(tensors: list[MacaTensor], with_values: bool, from_start: bool) -> list[torch.Tensor]:
    """Host operands for tensors that lie in one buffer: they share memory in the same way. ``from_start``: all of it."""
    # others may begin beyond the end of their memory
    filled = [
        (offset * meta.itemsize, meta) for _, offset, meta in (t._payload for t in tensors) if meta.numel
    ]
    start = min((begin for begin, _ in filled), default=0) // 16 * 16
    end = max((begin + meta.nbytes for begin, meta in filled), default=0)
    if from_start:
        start, end = 0, max(end, tensors[0]._payload[0].nbytes)
    # some kernels write all elements of an out= one after another, though it shares memory
    room = max((begin + meta.numel * meta.itemsize for begin, meta in filled), default=0)
    if max(end, room) - start > _LARGEST:
        raise MemoryError
    if with_values and end - start > _LARGEST_COPY:
        raise MemoryError  # kernels that look at values would see none
    # uninitialized integers would be random indices, and such numbers NaN now and then, which some kernels refuse
    memory = torch.zeros(max(end, room) - start, dtype=torch.uint8, device="cpu")
    if with_values:
        download(memory, tensors[0]._payload[0], start, end - start)
    made = []
    for tensor in tensors:
        _, offset, meta = tensor._payload
        t = torch.empty(0, dtype=meta.dtype, device="cpu")
        begin = offset - start // meta.itemsize if meta.numel else 0
        t.set_(memory.untyped_storage(), begin, meta.size, meta.stride)
        made.append(set_lazy_bits(t, meta))
    return made


def _narrowed(tensor: MacaTensor) -> torch.Tensor:
    """Ones, at most two along each dimension, which broadcast as the tensor's elements do."""
    return torch.ones([min(n, 2) for n in tensor.shape], dtype=tensor.dtype, device="cpu")


def consult_cpu(
    signature: Signature,
    full: list[Value],
    with_values: bool = False,
    narrowed: bool = False,
    heard: bool = False,
) -> Value:
    """Runs PyTorch's CPU kernel on operands of the same metas, for the error it raises, if any; not one that
    trusts them. Returns what it gives, None where it was not asked.

    ``with_values``: on copies of what ours hold, for kernels that look at values; not at all when they are large. Else
    on zeros; ``narrowed``: of a few elements, for elementwise operators whose sizes are known to fit.
    ``heard``: its warnings reach the user. Counted; it draws no random numbers of the caller's.
    """
    if not may_ask_cpu(signature.func):
        return None
    held: dict[int, list[MacaTensor]] = {}
    for t in flatten(full):
        if isinstance(t, MacaTensor):
            held.setdefault(id(t._payload[0]), []).append(t)
    # places that as_strided_copy and kin name are counted from where the memory begins
    from_start = "storage_offset" in signature.positions
    stand_ins: dict[int, torch.Tensor] = {}
    try:
        for ts in held.values():
            made = map(_narrowed, ts) if narrowed else _stand_ins(ts, with_values, from_start)
            stand_ins.update((id(t), e) for t, e in zip(ts, made))
    except MemoryError:
        return None
    args = [substitute(v, lambda t: stand_ins[id(t)]) for v in full]
    args = [torch.device("cpu") if isinstance(a, torch.device) else a for a in args]
    args = [a.clone_state() if isinstance(a, torch.Generator) else a for a in args]
    counters.consultations[signature.name] += 1

    def call() -> Value:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), torch._C.DisableTorchFunction():
            return signature.call(signature.func, args)

    if heard:
        return repeat_warnings(call)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


def _view_hint(signature: Signature, full: list[Value], error: Exception) -> str:
    """For a view of a 4-D tensor that its strides forbid; other faults of a view have nothing to do with layout."""
    if signature.name not in ("aten.view.default", "aten._unsafe_view.default"):
        return ""
    if full[0].dim() != 4 or "stride" not in str(error) or layout.default_is_nchw():
        return ""
    return (
        "\nOn maca 4-D tensors are channels_last after a transfer: use reshape(), or set PYTORCH_DEFAULT_NCHW=1 "
        "to keep them contiguous."
    )


def reject(signature: Signature, full: list[Value], error: Exception) -> Value:
    """Raises what PyTorch's CPU kernel says of operands like these, or ``error`` where it is not asked. Where it finds
    nothing wrong, what it gives: the meta kernel was. Of the end of Python's stack PyTorch is not asked."""
    if isinstance(error, RecursionError):
        raise error
    try:
        given = consult_cpu(signature, full)
    except Exception as authority:
        raise type(authority)(str(authority) + _view_hint(signature, full, authority)) from None
    if given is not None:
        return given
    _raise_worded(signature, error)


def refuse(signature: Signature, full: list[Value], error: Exception) -> NoReturn:
    """Raises what PyTorch's CPU kernel says of operands that a composite's body stumbled over, where ``error`` is of
    Python's making; else ``error``."""
    check_devices(signature.name, full, numbers=True)
    if isinstance(error, _PYTORCHS) and not _PYTHONS.search(str(error)):
        raise error
    try:
        consult_cpu(signature, full)
    except Exception as authority:
        raise type(authority)(str(authority)) from None
    _raise_worded(signature, error)


def _raise_worded(signature: Signature, error: Exception) -> NoReturn:
    """Raises the error in a class of PyTorch's: of Python code, where PyTorch's is C++, it may be any."""
    if not isinstance(error, _PYTORCHS) or _PYTHONS.search(str(error)):
        raise RuntimeError(f"{signature.name}: {type(error).__name__} {error}".rstrip()) from error
    text = str(error)
    if "    " in text and "\n" not in text:  # a literal over several lines of its source
        raise type(error)(" ".join(text.split())) from None
    raise error
