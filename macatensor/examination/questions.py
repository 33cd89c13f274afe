"""Questions about results: forward parity, odd strides, channels_last, strides of results."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from macatensor.examination import trace
from macatensor.examination.entries import Sample, samples_of
from macatensor.examination.judge import difference, on_host, stride_difference, tolerances
from macatensor.examination.task import Answer
from macatensor.examination.transfer import copied, is_plain, on_device, stays_on_host
from macatensor.parity.transport import replace, tensors, twin, wide
from macatensor.runtime.boxed import Value
from macatensor.runtime.random import seed_host_and_device

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

# their elements are whatever the memory held
_UNINITIALIZED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}


def _rebuilt(u: torch.Tensor, s: torch.Tensor, vh: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Singular values, and the matrix that was taken apart."""
    rank = s.shape[-1]
    return s, (u[..., :rank] * s.unsqueeze(-2).to(u.dtype)) @ vh[..., :rank, :]


# Vectors are determined up to a sign or phase: what of a result is, by entry.
DETERMINED: dict[str, Callable[[Value], Value]] = {
    "linalg.eig": lambda r: (r[0], r[1].abs()),
    "linalg.eigh": lambda r: (r[0], r[1].abs()),
    "linalg.svd": lambda r: _rebuilt(*r),
    "svd": lambda r: _rebuilt(r[0], r[1], r[2].mH),
}
LIBRARY_FAMILIES = {"convolution", "linalg", "matmul"}  # computed by oneDNN, OpenBLAS and LAPACK
FIRST = 5  # first samples, which get no wider tolerance than PyTorch's default


@dataclass
class Outcome:
    """What a call gave: a result or the exception it raised."""

    result: Value = None
    error: BaseException | None = None


def attempt(function: Callable[[], Value]) -> Outcome:
    """Calls ``function``; whatever it raises is part of the outcome."""
    try:
        return Outcome(result=function())
    except Exception as error:
        return Outcome(error=error)


def call(op: Callable[..., Value], sample: Sample) -> Value:
    """``op`` of an OpInfo sample, or of its (input, args, kwargs)."""
    values, args, kwargs = sample
    return op(values, *args, **kwargs)


def native(op: Callable[..., Value], sample: Sample) -> Outcome:
    """The host's outcome, on copies."""
    return attempt(lambda: call(op, copied(sample)))


def ours(op: Callable[..., Value], sample: Sample) -> Outcome:
    """The device's outcome. A creation function that names no device is told one."""
    if not tensors(list(sample)) and "device" not in sample[2]:
        told = attempt(lambda: op(sample[0], *sample[1], **sample[2], device="maca"))
        if not isinstance(told.error, TypeError) and told.result is not NotImplemented:
            return told
    return attempt(lambda: call(op, on_device(sample)))


def parts(sample: SampleInput) -> Sample:
    """An OpInfo sample's input, args and kwargs."""
    return sample.input, sample.args, sample.kwargs


def describe(sample: Sample) -> str:
    """A short text of a sample's arguments."""
    from macatensor.parity.samples import describe as text

    shown = replace(sample, lambda t: t if is_plain(t) else torch.empty(0, dtype=t.dtype))
    values, args, kwargs = shown
    return ", ".join([text(v) for v in (values, *args)] + [f"{k}={text(v)}" for k, v in kwargs.items()])[:200]


def record(answer: Answer, number: int, sample: Sample, wrong: str, what: str = "") -> None:
    """Counts a sample; the first that is wrong is told."""
    answer.samples += 1
    if wrong:
        answer.wrong += 1
        answer.wrong_first += number < FIRST
        if answer.outcome != "fail":
            answer.outcome = "fail"
            answer.detail = f"sample {number}{what} ({describe(sample)}): {wrong}"


def raised(error: BaseException) -> str:
    return f"raised {type(error).__name__}: {' '.join(str(error).split())[:250]}"


@contextmanager
def _own_seeds() -> Iterator[None]:
    """OpInfo seeds some random operators at each call; here they draw on."""
    invocations = importlib.import_module("torch.testing._internal.common_methods_invocations")
    seeded = invocations.wrapper_set_seed

    def unseeded(op: Callable[..., Value], *args: Value, **kwargs: Value) -> Value:
        return op(*args, **kwargs)

    vars(invocations)["wrapper_set_seed"] = unseeded
    try:
        yield
    finally:
        vars(invocations)["wrapper_set_seed"] = seeded


def _is_uninitialized(info: OpInfo) -> bool:
    return info.name.removeprefix("_refs.") in _UNINITIALIZED


def is_random(info: OpInfo, sample: Sample) -> bool:
    """Does PyTorch itself give other values with other seeds, or whatever the memory held?"""
    if _is_uninitialized(info):
        return True
    results = []
    with _own_seeds():
        for seed in range(1, 7):  # few numbers drawn are the same ones now and then
            seed_host_and_device(seed)
            results.append(tensors(call(info.op, copied(sample))))
    return any(
        a is not None and b is not None and not _same(a, b)
        for other in results[1:]
        for a, b in zip(results[0], other)
    )


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal elements on the host, NaN equal to NaN."""
    if not (is_plain(a) and is_plain(b)):
        return True
    try:
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    except AssertionError:
        return False
    return True


def is_nearer(info: OpInfo, sample: Sample, got: Value, want: Value) -> bool:
    """Is the device's result no farther from the result in float64 than PyTorch's own, which rounded otherwise?"""
    reference = attempt(lambda: call(info.op, replace(sample, lambda t: twin(t, wide(t.dtype)))))
    if reference.error is not None:
        return False
    if difference(got, want, {}, values=False)[0]:
        return False
    for a, b, exact in zip(tensors(got), tensors(want), tensors(reference.result)):
        if a is None or b is None or exact is None:
            continue
        if not (b.is_floating_point() or b.is_complex()):
            if not torch.equal(on_host(a), b):
                return False
            continue
        if exact.dtype != wide(b.dtype) or exact.dtype == b.dtype or exact.shape != b.shape:
            return False
        ours, theirs = (_error(t.to(exact.dtype), exact) for t in (on_host(a), b.detach()))
        if not bool(ours <= theirs):
            return False
    return True


def _error(t: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """The largest absolute error; infinite where one is not a number or infinite and the other is."""
    if not t.numel():
        return torch.zeros(())
    same = (t == exact) | (t.isnan() & exact.isnan())
    error = (t - exact).abs().nan_to_num(nan=torch.inf)
    return torch.where(same, torch.zeros_like(error), error).max()


def distance(
    info: OpInfo, sample: Sample, got: Value, want: Value, tolerance: dict[str, float]
) -> tuple[str, float]:
    """As :func:`macatensor.examination.judge.difference`. Of random results sizes and dtypes only, of vectors what is
    determined of them."""
    if _is_uninitialized(info):
        return difference(got, want, tolerance, values=False)
    wrong, ulps = difference(got, want, tolerance)
    if wrong and not difference(got, want, tolerance, values=False)[0]:
        if is_random(info, sample):
            return "", 0.0
        determined = DETERMINED.get(info.name)
        if determined is not None:
            return difference(determined(got), determined(want), tolerance)
    return wrong, ulps


def compare(
    answer: Answer,
    info: OpInfo,
    number: int,
    sample: Sample,
    dtype: torch.dtype,
    what: str = "",
    strides: bool = False,
    tolerance: dict[str, float] | None = None,
    in_order: Sample | None = None,
) -> None:
    """Runs one sample on both and records how it went; samples that PyTorch refuses are not counted.

    ``tolerance``: for values, strictly. None takes the entry's, and of results that are apart by rounding the one
    nearer to float64 is right. ``in_order``: the same values in contiguous memory; PyTorch's answer to them is right
    too, since its kernels read wrong memory for some strides (nanmedian of an expanded tensor).
    """
    seed_host_and_device(0)
    want = native(info.op, sample)
    if want.error is not None:
        return
    seed_host_and_device(0)
    got = ours(info.op, sample)
    if got.error is not None:
        record(answer, number, sample, raised(got.error), what)
        return
    if strides:
        record(answer, number, sample, stride_difference(got.result, want.result), what)
        return
    strict = tolerance is not None
    if tolerance is None:
        tolerance = tolerances(info, dtype, "test_compare_cpu")
    wrong, ulps = distance(info, sample, got.result, want.result, tolerance)
    if wrong and in_order is not None:
        want = native(info.op, in_order)
        wrong, ulps = distance(info, in_order, got.result, want.result, tolerance)
    if wrong and not strict and is_nearer(info, sample, got.result, want.result):
        wrong, answer.nearer = "", answer.nearer + 1
    answer.max_ulp = max(answer.max_ulp, ulps)
    record(answer, number, sample, wrong, what)


def forward(info: OpInfo, dtype: torch.dtype, answer: Answer, limit: int | None) -> None:
    """Sizes and dtype strictly. Values within PyTorch's default tolerances; beyond float32's first samples an entry's
    own may be wider."""
    for number, sample in enumerate(samples_of(info, dtype, False, limit)):
        strict: dict[str, float] | None = {} if dtype is torch.float32 and number < FIRST else None
        compare(answer, info, number, parts(sample), dtype, tolerance=strict)


def _strided(t: torch.Tensor) -> torch.Tensor:
    """Every second element of memory twice as long, in the last dimension."""
    if t.dim() == 0:
        return t
    memory = torch.empty((*t.shape[:-1], t.shape[-1] * 2), dtype=t.dtype)
    return memory[..., ::2].copy_(t)


def _transposed(t: torch.Tensor) -> torch.Tensor:
    """Dimensions in reverse order in memory."""
    order = tuple(reversed(range(t.dim())))
    return t.permute(order).contiguous().permute(order)


def _offset(t: torch.Tensor) -> torch.Tensor:
    """Three elements into its memory."""
    memory = torch.empty(t.numel() + 5, dtype=t.dtype)
    return memory[3 : 3 + t.numel()].view(t.shape).copy_(t)


def _expanded(t: torch.Tensor) -> torch.Tensor:
    """Its first slice, for every index of the first dimension."""
    if t.dim() == 0 or t.shape[0] == 0 or not (t.is_floating_point() or t.is_complex()):
        return t
    return t[:1].contiguous().expand(t.shape)


def _channels_last(t: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return t.contiguous(memory_format=formats[t.dim()]) if t.dim() in formats else t


# equal rows make a matrix singular: its factors, and what rests on them, are not determined
_FACTORED = ("linalg.", "qr", "geqrf", "svd", "pca_lowrank", "pinverse", "lu", "cholesky", "ormqr", "logdet")
_LAYOUTS = {"strided": _strided, "transposed": _transposed, "offset": _offset, "expanded": _expanded}


def _laid_out(sample: Sample, change: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
    return replace(sample, lambda t: t if stays_on_host(t) or not is_plain(t) else change(t.detach()))


def noncontiguous(info: OpInfo, dtype: torch.dtype, answer: Answer, limit: int | None) -> None:
    """Operands with gaps, transposed, at an offset, expanded: the values of the same call on the host."""
    for number, sample in enumerate(samples_of(info, dtype, False, limit)):
        for name, change in _LAYOUTS.items():
            if name == "expanded" and info.name.startswith(_FACTORED):
                continue
            laid_out = _laid_out(parts(sample), change)
            in_order = _laid_out(laid_out, torch.Tensor.contiguous)
            compare(answer, info, number, laid_out, dtype, f" {name}", in_order=in_order)


def _rank(sample: Sample) -> int:
    return max((t.dim() for t in tensors(list(sample)) if t is not None), default=0)


def channels_last_sample(sample: Sample) -> Sample:
    """Its tensors of rank 4 and 5 with channels innermost."""
    return _laid_out(sample, _channels_last)


def channels_last(info: OpInfo, dtype: torch.dtype, answer: Answer, limit: int | None) -> None:
    """Operands of rank 4 and 5 with channels innermost: values, and the strides of results."""
    asked = 0
    for number, sample in enumerate(samples_of(info, dtype, False, None)):
        if _rank(parts(sample)) not in (4, 5):
            continue
        laid_out = channels_last_sample(parts(sample))
        compare(answer, info, number, laid_out, dtype)
        compare(answer, info, number, laid_out, dtype, " strides", strides=True)
        asked += 1
        if limit is not None and asked >= limit:
            break


def strides(info: OpInfo, dtype: torch.dtype, answer: Answer, limit: int | None) -> None:
    """Strides and lazy bits of results, for contiguous and transposed operands."""
    for number, sample in enumerate(samples_of(info, dtype, False, limit)):
        compare(answer, info, number, parts(sample), dtype, strides=True)
        compare(
            answer, info, number, _laid_out(parts(sample), _transposed), dtype, " transposed", strides=True
        )


def threads(info: OpInfo, dtype: torch.dtype, answer: Answer, limit: int | None) -> None:
    """The same bits for one thread and for three. The worker process splits small operands too.

    A library may add up in another order for another number of threads: what rests on one is as near as PyTorch's own
    result has to be.
    """
    before = torch.get_num_threads()
    for number, sample in enumerate(samples_of(info, dtype, False, limit)):
        given = parts(sample)
        results = []
        trace.asked.clear()
        for count in (1, 3):
            torch.set_num_threads(count)
            seed_host_and_device(0)
            results.append(ours(info.op, given))
        torch.set_num_threads(before)
        one, three = results
        if one.error is not None or _is_uninitialized(info):
            continue
        if three.error is not None:
            record(answer, number, given, raised(three.error))
            continue
        host = replace(one.result, lambda t: on_host(t))
        exactly: dict[str, float] = {"rtol": 0.0, "atol": 0.0}
        record(
            answer,
            number,
            given,
            difference(three.result, host, {} if trace.asked & LIBRARY_FAMILIES else exactly)[0],
        )
