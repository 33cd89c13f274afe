"""Does ``torch.compile`` take an operator whole on the device, with eager's values, where it does on the CPU?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from macatensor.examination.entries import samples_of
from macatensor.examination.judge import difference, on_host
from macatensor.examination.questions import is_random, native, ours, parts, raised, record
from macatensor.examination.task import Answer
from macatensor.parity.transport import replace, tensors
from macatensor.runtime.boxed import Value
from macatensor.runtime.random import seed_host_and_device

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo


def compiled(info: OpInfo, dtype: torch.dtype, answer: Answer, limit: int | None) -> None:
    """One graph of backend ``maca`` against the device's eager mode; what ``aot_eager`` refuses on the CPU is not
    counted."""
    for number, sample in enumerate(samples_of(info, dtype, False, limit)):
        given = parts(sample)
        seed_host_and_device(0)
        want = ours(info.op, given)
        if want.error is not None:
            continue
        if native(_whole(info.op, "aot_eager"), given).error is not None:
            continue
        seed_host_and_device(0)
        whole = _whole(info.op, "maca")
        got = ours(whole, given)
        if got.error is not None and not tensors(list(given)):  # no function that takes a device
            got = native(whole, given)
        if got.error is not None:
            record(answer, number, given, raised(got.error))
            continue
        expected = replace(want.result, on_host)
        wrong, answer.max_ulp = difference(got.result, expected, {})
        if wrong and not difference(got.result, expected, {}, values=False)[0] and is_random(info, given):
            wrong = ""  # uninitialized, or drawn on the host
        record(answer, number, given, wrong)


def _whole(op: Callable[..., Value], backend: str) -> Callable[..., Value]:
    torch._dynamo.reset()

    def function(*args: Value, **kwargs: Value) -> Value:
        return op(*args, **kwargs)

    whole: Callable[..., Value] = torch.compile(function, backend=backend, fullgraph=True)
    return whole
