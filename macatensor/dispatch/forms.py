"""In-place and ``out=`` forms of operators that are Python functions of their functional overload."""

from __future__ import annotations

from collections.abc import Callable

from torch._ops import OpOverload

from macatensor.dispatch.resize import check_cast, write_out
from macatensor.dispatch.signature import Form, read
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value


def in_form(func: OpOverload, form: Form, twin: OpOverload, body: Callable[..., Value]) -> Launcher:
    """The launcher of ``func``, where ``body`` computes ``twin``, the functional overload of the same operator."""

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        return body(*args, **(kwargs or {}))

    if form is Form.DIRECT:
        return run
    signature, functional = read(func), read(twin)
    outs = signature.outs

    def run_into(args: Arguments, kwargs: Keywords | None) -> Value:
        full = signature.fill(args, kwargs)
        result = functional.call(body, [v for i, v in enumerate(full) if i not in outs])
        if form is Form.OUT:
            written = write_out([full[i] for i in outs], result)
            return written if signature.returns else None  # a list of tensors is written, not returned
        if isinstance(full[0], (list, tuple)):
            for target, value in zip(full[0], result):
                check_cast(value, target)
                target.copy_(value)
            return None
        full[0].copy_(result)
        return full[0]

    return run_into
