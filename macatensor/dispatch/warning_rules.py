"""What PyTorch warns of where it computes all the same: by the name that rows of the op table give.

A rule takes the operator's arguments in schema order and returns the warnings. It is asked at the first call of a
signature, and again at each call of one that it had something to say of.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from macatensor.dispatch.launcher import Run
from macatensor.dispatch.signature import Signature
from macatensor.runtime.boxed import Value
from macatensor.runtime.callers import warn

Rule = Callable[[Signature, list[Value]], list[str]]
WARNING_RULES: dict[str, Rule] = {}


def _warning_rule(function: Rule) -> Rule:
    """Makes a function the rule of rows that name it."""
    WARNING_RULES[function.__name__.removeprefix("_")] = function
    return function


@_warning_rule
def _degrees_of_freedom(signature: Signature, full: list[Value]) -> list[str]:
    self, dims, correction = full[:3]
    chosen = range(self.dim()) if not dims else {d % max(self.dim(), 1) for d in dims}
    count = math.prod(self.shape[d] for d in chosen if self.dim())
    if self.numel() == 0 or count - (1 if correction is None else correction) > 0:
        return []
    name = signature.func._schema.name.partition("::")[2]
    return [
        f"{name}(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor (input "
        "numel divided by output numel)."
    ]


@_warning_rule
def _copied_boundaries(signature: Signature, full: list[Value]) -> list[str]:
    boundaries, values = full[:2]
    sorter = full[signature.positions["sorter"]]
    parts = (("input value", values), ("boundary", boundaries), ("sorter", sorter))
    return [
        f"torch.searchsorted(): {what} tensor is non-contiguous, this will lower the performance due to extra data copy "
        f"when converting non-contiguous tensor to contiguous, please use contiguous {what} tensor if possible."
        for what, t in parts
        if hasattr(t, "is_contiguous") and not t.is_contiguous()
    ]


def warned(signature: Signature, rule: str, full: list[Value], run: Run) -> Run:
    """``run``, or where the rule warns of the call, ``run`` behind its warnings."""
    texts = WARNING_RULES[rule] if rule else None
    if texts is None or not texts(signature, full):
        return run

    def run_warned(args: Value, payloads: Value, scalars: Value) -> Value:
        for text in texts(signature, signature.fill(args, None)):
            warn(text)
        return run(args, payloads, scalars)

    return run_warned
