"""``OP_INFO`` lines of the log: each operator of the device, with what it was given, who computed it and how long."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from macatensor.runtime import switches
from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.ffi import lib
from macatensor.runtime.launches import implementations, launches
from macatensor.runtime.tensor import MacaTensor

log = logging.getLogger(__name__)
_MOST = 8  # values of a list that a line shows


def _shown(value: Value, depth: int = 0) -> str:
    if isinstance(value, torch.Tensor):
        where = "" if isinstance(value, MacaTensor) else f"@{value.device.type}"
        return (
            f"{str(value.dtype).removeprefix('torch.')}{where}{list(value.shape)}"
            f"({', '.join(map(str, value.stride()))})"
        )
    if isinstance(value, (list, tuple)) and depth < 3:
        inner = [_shown(v, depth + 1) for v in value[:_MOST]]
        return f"[{', '.join(inner + ['...'] * (len(value) > _MOST))}]"
    text = repr(value)
    return text if len(text) < 80 else f"{text[:77]}..."


def _has_maca(values: Sequence[Value]) -> bool:
    return any(isinstance(v, MacaTensor) or (isinstance(v, (list, tuple)) and _has_maca(v)) for v in values)


class _Lines(TorchDispatchMode):
    """Logs each operator with a MacaTensor among its arguments or results; it waits for the device to time it."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> Value:
        named = kwargs or {}
        before = [_shown(a) for a in args] + [f"{name}={_shown(v)}" for name, v in named.items()]
        stream = lib.maca_streams_current()
        lib.maca_streams_synchronize(stream)
        start = time.perf_counter()
        with launches() as made:
            result = func(*args, **named)
        lib.maca_streams_synchronize(stream)
        taken = time.perf_counter() - start
        if _has_maca((*args, *named.values(), result)):
            by = implementations(made) or ("no launch" if not made else "the library's only way")
            log.info(
                "OP_INFO %s(%s) -> %s by %s in %.1f us",
                func,
                ", ".join(before),
                _shown(result),
                by,
                taken * 1e6,
            )
        return result


@contextlib.contextmanager
def op_info() -> Iterator[None]:
    """Logs each operator of this thread's block at level INFO (logger ``macatensor.device.op_info``).

    Each is waited for, so the program is slower, and compiled graphs run operator by operator.
    """
    with _Lines():  # type: ignore[no-untyped-call]
        yield


def begin() -> None:
    """What ``MACA_OP_INFO`` asks for, of the thread that imports macatensor."""
    if switches.OP_INFO.value():
        if not log.isEnabledFor(logging.INFO):
            log.setLevel(logging.INFO)
        _Lines().__enter__()  # type: ignore[no-untyped-call]
