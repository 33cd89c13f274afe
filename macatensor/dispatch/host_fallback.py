"""Operators computed by PyTorch on the host: copied there, counted, warned of once, refusable."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import torch
from torch._ops import OpOverload

from macatensor.dispatch.consultation import may_ask_cpu
from macatensor.dispatch.resize import restride
from macatensor.dispatch.signature import find_row
from macatensor.dispatch.transfer import overwrite, to_device, to_host
from macatensor.runtime import counters, ffi, switches
from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.callers import warn
from macatensor.runtime.dispatch_keys import lazy_bits
from macatensor.runtime.tensor import MacaTensor
from op_table import Kind

_COPIES = (torch.ops.aten.clone.default, torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)
_modes: list[str] = []  # process-wide: backward runs on a thread of its own and must see it too
_warned: set[str] = set()


class HostRefused(NotImplementedError):
    """The device has no kernel for a call, and ``fallback("error")`` refuses to run it on the host."""


def mode() -> str:
    """``"warn"``, ``"error"`` or ``"silent"``: the innermost :func:`fallback`, else ``MACA_FALLBACK``."""
    return _modes[-1] if _modes else switches.FALLBACK.value()


@functools.cache
def _lacks_kernel(func: OpOverload) -> bool:
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


def announce(func: OpOverload, reason: str) -> None:
    """Counts an operator that is about to run on the host and warns of it once; raises HostRefused where that is refused."""
    name, chosen = str(func), mode()
    if chosen == "error":
        raise HostRefused(
            f"{name} has no kernel on maca ({reason}) and MACA_FALLBACK=error refuses to run it on the host. "
            "Allow it with MACA_FALLBACK=warn or `with macatensor.fallback('silent'):`, or add a row for it."
        )
    counters.fallbacks[name] += 1
    if chosen == "warn" and name not in _warned:
        _warned.add(name)
        warn(f"{name} runs on the host and its operands are copied there and back: {reason}")


def on_cpu(func: OpOverload, args: Arguments, kwargs: Keywords, reason: str) -> Value:
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
    announce(func, reason)
    is_copy = func in _COPIES  # what brings operands here and back would launch these
    pairs: list[tuple[MacaTensor, torch.Tensor]] = []

    def down(t: MacaTensor) -> torch.Tensor:
        for ours, theirs in pairs:
            if ours is t:
                return theirs
        host = to_host(t, launches=False) if is_copy else t.cpu()
        pairs.append((t, host))
        return host

    host_args = [_on_host(a, down) for a in args]
    host_kwargs = {k: _on_host(v, down) for k, v in kwargs.items()}
    written = _written(func, args, kwargs)
    with lazy_bits(), torch._C.DisableTorchFunction():
        result = func(*host_args, **host_kwargs)
    for ours, theirs in pairs:
        if any(ours is w for w in written):
            if ours.shape != theirs.shape:  # an out= tensor that the host made fit
                restride(ours, tuple(theirs.shape), theirs.stride())
            overwrite(ours, theirs) if is_copy else ours.copy_(theirs)
    return _up(result, pairs)


def _on_host(value: Value, down: Callable[[MacaTensor], torch.Tensor]) -> Value:
    if isinstance(value, MacaTensor):
        return down(value)
    if isinstance(value, (list, tuple)):
        return [_on_host(v, down) for v in value]
    if isinstance(value, torch.device) and value.type == "maca":
        return torch.device("cpu")
    return value


def _written(func: OpOverload, args: Arguments, kwargs: Keywords) -> list[Value]:
    written: list[Value] = []
    for i, a in enumerate(func._schema.arguments):
        if a.alias_info is not None and a.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(a.name)
            written.extend(value if isinstance(value, (list, tuple)) else [value])
    return written


def _up(result: Value, pairs: list[tuple[MacaTensor, torch.Tensor]]) -> Value:
    if isinstance(result, torch.Tensor):
        for ours, theirs in pairs:
            if result is theirs:
                return ours
        return to_device(result, torch.preserve_format)
    if isinstance(result, (list, tuple)):
        return type(result)(_up(r, pairs) for r in result)
    return result
