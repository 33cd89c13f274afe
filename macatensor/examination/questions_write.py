"""Questions about writing: ``out=``, in-place variants and what aliases them, exceptions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from macatensor.examination.entries import Sample, samples_of
from macatensor.examination.judge import difference, tolerances
from macatensor.examination.questions import (
    Outcome,
    attempt,
    call,
    distance,
    is_nearer,
    native,
    ours,
    parts,
    raised,
    record,
)
from macatensor.examination.task import Answer
from macatensor.examination.transfer import copied, on_device
from macatensor.parity.transport import tensors
from macatensor.runtime.boxed import Value
from macatensor.runtime.random import seed_host_and_device

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo


def _same_class(got: Outcome, want: Outcome) -> str:
    """Empty when the device raised what the host raised, or a class of it."""
    assert want.error is not None
    if got.error is None:
        return f"no exception, PyTorch {raised(want.error)}"
    if isinstance(got.error, type(want.error)):
        return ""
    return f"{raised(got.error)}; PyTorch {raised(want.error)}"


def _refusal(got: Outcome, want: Outcome) -> str | None:
    """What is wrong where either raised; None where both gave results."""
    if want.error is not None:
        return _same_class(got, want)
    return raised(got.error) if got.error is not None else None


def _other_dtype(dtype: torch.dtype) -> torch.dtype:
    """One that results of ``dtype`` cannot be cast to, or the widest."""
    if dtype.is_complex:
        return torch.float32
    if dtype.is_floating_point:
        return torch.int64
    return torch.bool if dtype is not torch.bool else torch.int64


_OUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of equal sizes": lambda t: torch.zeros_like(t),
    "with gaps": lambda t: torch.zeros((*t.shape, 2), dtype=t.dtype)[..., 0],
    "empty": lambda t: torch.zeros(0, dtype=t.dtype),
    "of other sizes": lambda t: torch.zeros((*t.shape, 2), dtype=t.dtype),
    "of another dtype": lambda t: torch.zeros_like(t, dtype=_other_dtype(t.dtype)),
}


def _outs_for(result: Value) -> Iterator[tuple[str, torch.Tensor | tuple[torch.Tensor, ...]]]:
    many = isinstance(result, (tuple, list))
    for name, make in _OUTS.items():
        made = [make(t.detach()) for t in (result if many else [result])]
        yield name, tuple(made) if many else made[0]


def out(info: OpInfo, dtype: torch.dtype, answer: Answer, limit: int | None) -> None:
    """``out=`` tensors of the right kind, with gaps, empty, wrongly sized, of another dtype, and one that overlaps the
    input: what the host does, exceptions included."""
    if not info.supports_out:
        return
    for number, sample in enumerate(samples_of(info, dtype, False, limit)):
        given = parts(sample)
        expected = native(info.op, given)
        many = isinstance(expected.result, (tuple, list))
        results = list(expected.result) if many else [expected.result]
        if expected.error is not None or not all(isinstance(t, torch.Tensor) for t in results):
            continue
        for name, outs in _outs_for(expected.result):
            _ask_out(answer, info, dtype, number, given, outs, f" out {name}")
        first = given[0]
        if isinstance(first, torch.Tensor) and not many and first.shape == results[0].shape and first.dim():
            _ask_overlap(answer, info, number, given, results[0])


def _ask_out(
    answer: Answer,
    info: OpInfo,
    dtype: torch.dtype,
    number: int,
    given: Sample,
    outs: torch.Tensor | tuple[torch.Tensor, ...],
    what: str,
) -> None:
    host_outs = copied(outs)
    want = attempt(lambda: info.op(given[0], *given[1], **given[2], out=host_outs))
    moved, our_outs = on_device((given, outs))
    got = attempt(lambda: info.op(moved[0], *moved[1], **moved[2], out=our_outs))
    refused = _refusal(got, want)
    if refused is not None:
        record(answer, number, given, refused, what)
        return
    returned, held = tensors(got.result), tensors(our_outs)
    wanted = tensors(want.result)
    if all(a is b for a, b in zip(wanted, tensors(host_outs))):
        if not all(a is b for a, b in zip(returned, held)):
            record(answer, number, given, "the result is not the tensor given as out=", what)
            return
    wrong, _ = distance(info, given, our_outs, host_outs, tolerances(info, dtype, "test_out"))
    if wrong and is_nearer(info, given, our_outs, host_outs):
        wrong, answer.nearer = "", answer.nearer + 1
    record(answer, number, given, wrong, what)


def _ask_overlap(answer: Answer, info: OpInfo, number: int, given: Sample, result: torch.Tensor) -> None:
    """``out=`` one element further in the input's memory."""

    def overlapping() -> tuple[torch.Tensor, torch.Tensor]:
        memory = torch.zeros(given[0].numel() + 1, dtype=given[0].dtype)
        memory[:-1] = given[0].reshape(-1)
        return memory[:-1].view(given[0].shape), memory[1:].view(given[0].shape)

    if given[0].numel() < 2 or result.dtype != given[0].dtype:
        return
    first, target = overlapping()
    want = attempt(lambda: info.op(first, *copied(given[1]), **copied(given[2]), out=target))
    if want.error is None:
        return  # the host does not look
    from macatensor.parity.transport import place

    memory = place(torch.zeros(given[0].numel() + 1, dtype=given[0].dtype))
    rest = on_device((given[1], given[2]))
    moved, our_target = memory[:-1].view(given[0].shape), memory[1:].view(given[0].shape)
    got = attempt(lambda: info.op(moved, *rest[0], **rest[1], out=our_target))
    record(answer, number, given, _same_class(got, want), " out over the input")


def inplace(info: OpInfo, dtype: torch.dtype, answer: Answer, limit: int | None) -> None:
    """The in-place variant on a tensor and on a view into a larger one: values, what surrounds the view, identity, the
    version counter, exceptions."""
    variant = info.inplace_variant
    if variant is None:
        return
    for number, sample in enumerate(samples_of(info, dtype, False, limit)):
        given = parts(sample)
        if not isinstance(given[0], torch.Tensor) or given[0].layout is not torch.strided:
            _ask_inplace_list(answer, info, variant, number, given)
            continue
        for as_view in (False, True):
            _ask_inplace(answer, info, dtype, variant, number, given, as_view)


def _embedded(t: torch.Tensor) -> torch.Tensor:
    """A tensor with a border around it, whose middle equals ``t``."""
    base = torch.ones([n + 2 for n in t.shape], dtype=t.dtype)
    _view_of(base, t).copy_(t)
    return base


def _view_of(base: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """The middle of ``base``, of the sizes of ``t``."""
    for d, n in enumerate(t.shape):
        base = base.narrow(d, 1, n)
    return base


def _ask_inplace(
    answer: Answer,
    info: OpInfo,
    dtype: torch.dtype,
    variant: Callable[..., Value],
    number: int,
    given: Sample,
    as_view: bool,
) -> None:
    what = " in place through a view" if as_view else " in place"
    base = _embedded(given[0].detach()) if as_view else given[0].detach()
    (host_base, host_args, host_kwargs) = copied((base, given[1], given[2]))
    (our_base, our_args, our_kwargs) = on_device((base, given[1], given[2]))
    host = _view_of(host_base, given[0]) if as_view else host_base
    target = _view_of(our_base, given[0]) if as_view else our_base
    versions = host._version, target._version
    seed_host_and_device(0)
    want = attempt(lambda: variant(host, *host_args, **host_kwargs))
    got = attempt(lambda: variant(target, *our_args, **our_kwargs))
    refused = _refusal(got, want)
    if refused is not None:
        record(answer, number, given, refused, what)
        return
    wrong, _ = distance(info, given, our_base, host_base, tolerances(info, dtype, "test_out"))
    if not wrong and want.result is host and got.result is not target:
        wrong = "the result is not the tensor that was written"
    if not wrong and (host._version > versions[0]) != (target._version > versions[1]):
        wrong = f"the version counter moved by {target._version - versions[1]}, PyTorch's by {host._version - versions[0]}"
    record(answer, number, given, wrong, what)


def _ask_inplace_list(
    answer: Answer, info: OpInfo, variant: Callable[..., Value], number: int, given: Sample
) -> None:
    """Foreach operators write every tensor of a list."""
    if not isinstance(given[0], (list, tuple)):
        return
    host, moved = copied(given), on_device(given)
    want = attempt(lambda: call(variant, host))
    got = attempt(lambda: call(variant, moved))
    wrong = _refusal(got, want)
    if wrong is None:
        wrong = difference(moved[0], host[0], {})[0]
    if not wrong and [t._version > 0 for t in moved[0]] != [t._version > 0 for t in host[0]]:
        wrong = "the version counters did not move as PyTorch's"
    record(answer, number, given, wrong, " in place")


def _in_whole(op: Callable[..., Value], given: Sample) -> Outcome:
    """The device's outcome with what its kernels find after the call has returned."""
    got = ours(op, given)
    found = attempt(torch.get_device_module("maca").synchronize)
    return got if got.error is not None or found.error is None else found


def errors(info: OpInfo, dtype: torch.dtype, answer: Answer, limit: int | None) -> None:
    """OpInfo's error inputs: an exception of the host's class."""
    if info.error_inputs_func is None:
        return
    seed_host_and_device(0)
    for number, item in enumerate(info.error_inputs("cpu")):
        given = parts(item.sample_input)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = native(info.op, given)
            if want.error is None:
                continue
            got = _in_whole(info.op, given)
        record(answer, number, given, _same_class(got, want))
