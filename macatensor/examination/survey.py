"""Does PyTorch's meta kernel say what its CPU kernel gives? Asked of every aten call that OpInfo's samples make.

Results are laid out as the meta kernel says, so each disagreement has to be a rule of a row.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from macatensor.dispatch.plan import meta_tensor
from macatensor.dispatch.signature import find_row
from macatensor.examination.entries import database, samples_of, typical_dtype
from macatensor.examination.questions import attempt, call, channels_last_sample, native, parts
from macatensor.examination.transfer import copied, is_plain
from macatensor.parity.transport import replace, tensors
from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.meta import meta_of_tensor
from op_table import Kind

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput


def _description(t: torch.Tensor) -> tuple[object, ...]:
    strides = tuple(s for s, n in zip(t.stride(), t.shape) if n > 1) if t.numel() else ()
    return tuple(t.shape), strides, t.dtype


class Survey(TorchDispatchMode):
    """Compares both kernels of every aten call inside.

    ``asked``: calls by overload. ``differs``: those whose results' sizes, strides or dtype the meta kernel has wrong,
    with an example.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asked: Counter[OpOverload] = Counter()
        self.differs: dict[OpOverload, str] = {}
        self.without_meta: set[OpOverload] = set()
        self._seen: set[tuple[object, ...]] = set()

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> Value:
        kwargs = kwargs or {}
        given = [t for t in tensors([args, kwargs]) if t is not None]
        is_known = func.namespace == "aten" and given and all(is_plain(t) for t in given)
        metas = replace((args, kwargs), lambda t: meta_tensor(meta_of_tensor(t))) if is_known else None
        result = func(*args, **kwargs)
        if metas is not None:
            self._compare(func, given, metas, result)
        return result

    def _compare(
        self, func: OpOverload, given: list[torch.Tensor], metas: tuple[Arguments, Keywords], result: Value
    ) -> None:
        key = (
            func,
            *(_description(t) for t in given),
            str([a for a in metas[0] if not isinstance(a, torch.Tensor)]),
        )
        if key in self._seen or not all(t is None or is_plain(t) for t in tensors(result)):
            return
        self._seen.add(key)
        self.asked[func] += 1
        options = {k: torch.device("meta") if k == "device" else v for k, v in metas[1].items()}
        outcome = attempt(lambda: func(*metas[0], **options))
        if outcome.error is not None:
            self.without_meta.add(func)
            return
        for ours, theirs in zip(tensors(outcome.result), tensors(result)):
            if ours is None or theirs is None or ours.device.type != "meta":
                continue
            if _description(ours) != _description(theirs):
                self.differs.setdefault(
                    func,
                    f"{[_description(t) for t in given]}: meta {_description(ours)}, CPU {_description(theirs)}",
                )


def _backward(info: OpInfo, sample: SampleInput) -> None:
    result = call(info.op, copied(parts(sample)))
    if sample.output_process_fn_grad is not None:
        result = sample.output_process_fn_grad(result)
    outputs = [t for t in tensors(result) if t is not None and t.requires_grad]
    if outputs:
        torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])


def survey(entries: Iterable[str] | None = None, limit: int = 3) -> Survey:
    """Contiguous, channels_last and backward calls of the first ``limit`` samples of entries (default: all)."""
    seen = Survey()
    for name in database("operators") if entries is None else entries:
        info = database("operators")[name]
        dtype = getattr(torch, typical_dtype(info))
        differentiable = info.supports_autograd and dtype.is_floating_point
        for sample in samples_of(info, dtype, differentiable, limit):
            with seen:
                native(info.op, parts(sample))
                native(info.op, channels_last_sample(parts(sample)))
                if differentiable:
                    attempt(functools.partial(_backward, info, sample))
    return seen


def rule_of(func: OpOverload) -> str:
    """What makes results right where the meta kernel is not: empty when nothing does."""
    found = find_row(func)
    if found is None:
        return "taken apart"
    row = found[0]
    if row.kind is not Kind.KERNEL:
        return str(row.kind.value)
    return str(row.strides) or ("a meta rule" if row.meta else "")
