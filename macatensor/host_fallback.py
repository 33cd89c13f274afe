"""Operators computed by PyTorch on the host: copied there, counted, warned of once, refusable."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from macatensor import counting, ffi, switches
from macatensor.host_copy import download
from macatensor.meta import set_lazy_bits
from macatensor.plan import flatten, substitute
from macatensor.resize import restride
from macatensor.signature import Signature, find_row
from macatensor.tensor import MacaTensor
from op_table import Kind, cpu_checks

_modes: list[str] = []  # process-wide: backward runs on a thread of its own and must see it too
_warned: set[str] = set()
_LARGEST_REPLAY = 1 << 28  # bytes of one empty operand; above it PyTorch's meta kernel has the word
_LARGEST_COPY = 1 << 20  # bytes of one operand that are worth a copy for an error


class HostRefused(NotImplementedError):
    """The device has no kernel for a call, and ``fallback("error")`` refuses to run it on the host."""


def mode() -> str:
    """``"warn"``, ``"error"`` or ``"silent"``: the innermost :func:`fallback`, else ``MACA_FALLBACK``."""
    return _modes[-1] if _modes else switches.FALLBACK.value()


def may_ask_cpu(func: Any) -> bool:
    """May PyTorch's CPU kernel of an overload see operands that nobody has proven? Operators of other libraries may."""
    return func.namespace != "aten" or cpu_checks(func._schema.name.partition("::")[2])


@functools.cache
def _lacks_kernel(func: Any) -> bool:
    """Has the library nothing for an operator of the table? A library that grows is helped out, whatever the operator."""
    found = find_row(func)
    return found is not None and found[0].kind is Kind.KERNEL and found[0].kernel_name not in ffi.kernels()


@contextlib.contextmanager
def fallback(name: str) -> Iterator[None]:
    """``with macatensor.fallback("error"):`` refuses operators that would run on the host.

    ``name``: "warn" (once per operator), "error" or "silent". Raises ValueError for another.
    """
    if name not in ("warn", "error", "silent"):
        raise ValueError(f"fallback got {name!r}; accepted: 'warn', 'error', 'silent'")
    _modes.append(name)
    try:
        yield
    finally:
        _modes.remove(name)


def _stand_ins(tensors: list[MacaTensor], with_values: bool) -> list[torch.Tensor]:
    """Host operands for tensors that lie in one buffer: they share memory in the same way."""
    start = min(t._payload[1] * t._payload[2].itemsize for t in tensors) // 16 * 16
    end = max(t._payload[1] * t._payload[2].itemsize + t._payload[2].nbytes for t in tensors)
    if end - start > _LARGEST_REPLAY:
        raise MemoryError
    if with_values and end - start > _LARGEST_COPY:
        raise MemoryError  # kernels that look at values would see none
    # uninitialized integers would be random indices
    is_number = all(t.is_floating_point() or t.is_complex() for t in tensors)
    memory = (torch.empty if is_number else torch.zeros)(end - start, dtype=torch.uint8)
    if with_values:
        download(memory, tensors[0]._payload[0], start, end - start)
    made = []
    for tensor in tensors:
        _, offset, meta = tensor._payload
        t = torch.empty(0, dtype=meta.dtype)
        t.set_(memory.untyped_storage(), offset - start // meta.itemsize, meta.size, meta.stride)
        if not meta.size and not with_values:
            t.zero_()  # kernels may read the number in a 0-dim tensor
        made.append(set_lazy_bits(t, meta))
    return made


def _narrowed(tensor: MacaTensor) -> torch.Tensor:
    """Ones, at most two along each dimension, which broadcast as the tensor's elements do."""
    return torch.ones([min(n, 2) for n in tensor.shape], dtype=tensor.dtype)


def replay_on_host(
    signature: Signature, full: list[Any], with_values: bool = False, narrowed: bool = False
) -> None:
    """Runs PyTorch's CPU kernel on operands of the same metas, for the error it raises, if any; not one that
    trusts them.

    ``with_values``: on copies of what ours hold, for kernels that look at values; not at all when they are large. Else
    on empty memory; ``narrowed``: of a few elements, for elementwise operators whose sizes are known to fit. Counted;
    it draws no random numbers of the caller's.
    """
    if not may_ask_cpu(signature.func):
        return
    held: dict[int, list[MacaTensor]] = {}
    for t in flatten(full):
        if isinstance(t, MacaTensor):
            held.setdefault(id(t._payload[0]), []).append(t)
    stand_ins: dict[int, torch.Tensor] = {}
    try:
        for ts in held.values():
            made = map(_narrowed, ts) if narrowed else _stand_ins(ts, with_values)
            stand_ins.update((id(t), e) for t, e in zip(ts, made))
    except MemoryError:
        return
    args = [substitute(v, lambda t: stand_ins[id(t)]) for v in full]
    args = [torch.device("cpu") if isinstance(a, torch.device) else a for a in args]
    args = [a.clone_state() if isinstance(a, torch.Generator) else a for a in args]
    counting.replays[signature.name] += 1
    with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        signature.call(signature.func, args)


def on_cpu(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str) -> Any:
    """Copies operands to the host, runs PyTorch's kernel, copies results and written operands back.

    Raises NotImplementedError for an operator whose CPU kernel trusts its operands, since it could read past their ends,
    unless the library lacks the operator's kernel.
    """
    name = str(func)
    if not (may_ask_cpu(func) or _lacks_kernel(func)):
        raise NotImplementedError(
            f"{name} has no kernel on maca ({reason}) and is not run on the host: PyTorch's CPU kernel trusts operands "
            "that only PyTorch's public functions check. Call one of these, or register a kernel for PrivateUse1."
        )
    chosen = mode()
    if chosen == "error":
        raise HostRefused(
            f"{name} has no kernel on maca ({reason}) and MACA_FALLBACK=error refuses to run it on the host. "
            "Allow it with MACA_FALLBACK=warn or `with macatensor.fallback('silent'):`, or add a row for it."
        )
    counting.fallbacks[name] += 1
    if chosen == "warn" and name not in _warned:
        _warned.add(name)
        warnings.warn(
            f"{name} runs on the host and its operands are copied there and back: {reason}", stacklevel=3
        )
    pairs: list[tuple[MacaTensor, torch.Tensor]] = []

    def down(t: MacaTensor) -> torch.Tensor:
        for ours, theirs in pairs:
            if ours is t:
                return theirs
        host = t.cpu()
        pairs.append((t, host))
        return host

    host_args = [_on_host(a, down) for a in args]
    host_kwargs = {k: _on_host(v, down) for k, v in kwargs.items()}
    written = _written(func, args, kwargs)
    result = func(*host_args, **host_kwargs)
    for ours, theirs in pairs:
        if any(ours is w for w in written):
            if ours.shape != theirs.shape:  # an out= tensor that the host made fit
                restride(ours, tuple(theirs.shape), theirs.stride())
            ours.copy_(theirs)
    return _up(result, pairs)


def _on_host(value: Any, down: Any) -> Any:
    if isinstance(value, MacaTensor):
        return down(value)
    if isinstance(value, (list, tuple)):
        return [_on_host(v, down) for v in value]
    if isinstance(value, torch.device) and value.type == "maca":
        return torch.device("cpu")
    return value


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    written: list[Any] = []
    for i, a in enumerate(func._schema.arguments):
        if a.alias_info is not None and a.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(a.name)
            written.extend(value if isinstance(value, (list, tuple)) else [value])
    return written


def _up(result: Any, pairs: list[tuple[MacaTensor, torch.Tensor]]) -> Any:
    if isinstance(result, torch.Tensor):
        for ours, theirs in pairs:
            if result is theirs:
                return ours
        from macatensor.transfer import to_device

        return to_device(result, torch.preserve_format)
    if isinstance(result, (list, tuple)):
        return type(result)(_up(r, pairs) for r in result)
    return result
