"""Questions about autograd: gradients, and gradients of gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from macatensor.examination.entries import Sample, samples_of
from macatensor.examination.judge import tolerances
from macatensor.examination.questions import attempt, call, distance, parts, raised, record
from macatensor.examination.task import Answer
from macatensor.examination.transfer import copied, on_device
from macatensor.parity.transport import tensors
from macatensor.runtime.boxed import Value

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput


def _leaves(sample: Sample) -> list[torch.Tensor]:
    return [t for t in tensors(list(sample)) if t is not None and t.requires_grad]


def _outputs(result: Value) -> list[torch.Tensor]:
    return [t for t in tensors(result) if t is not None and t.requires_grad]


def _cotangents(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Fixed numbers between -1 and 1, on the host."""
    generator = torch.Generator().manual_seed(7)
    drawn = []
    for t in outputs:
        part = torch.float64
        real = torch.rand(t.shape, generator=generator, dtype=part) * 2 - 1
        if t.is_complex():
            real = torch.complex(real, torch.rand(t.shape, generator=generator, dtype=part) * 2 - 1)
        drawn.append(real.to(t.dtype))
    return drawn


def _gradients(info: OpInfo, sample: SampleInput, values: Sample, order: int) -> list[torch.Tensor | None]:
    """Gradients of ``order`` with respect to the sample's leaves; None for those that have none."""
    moved = any(t.device.type == "maca" for t in _leaves(values))
    result = call(info.op, values)
    if sample.output_process_fn_grad is not None:
        result = sample.output_process_fn_grad(result)
    leaves = _leaves(values)
    outputs = _outputs(result)
    for _ in range(order):
        if not outputs:
            return [None] * len(leaves)
        weights = _cotangents(outputs)
        gradients = torch.autograd.grad(
            outputs,
            leaves,
            on_device(weights) if moved else weights,
            allow_unused=True,
            create_graph=order > 1,
        )
        outputs = _outputs(list(gradients))
    return [None if g is None else g.detach() for g in gradients]


def _on(
    place: Callable[[Sample], Sample], info: OpInfo, sample: SampleInput, order: int
) -> list[torch.Tensor | None]:
    return _gradients(info, sample, place(parts(sample)), order)


def _ask(info: OpInfo, dtype: torch.dtype, answer: Answer, limit: int | None, order: int) -> None:
    for number, sample in enumerate(samples_of(info, dtype, True, limit)):
        given = parts(sample)
        if not _leaves(given):
            continue
        want = attempt(functools.partial(_on, copied, info, sample, order))
        if want.error is not None:
            continue
        got = attempt(functools.partial(_on, on_device, info, sample, order))
        if got.error is not None:
            record(answer, number, given, raised(got.error))
            continue
        tolerance = tolerances(info, dtype, "test_fn_grad")
        wrong, ulps = distance(info, given, got.result, want.result, tolerance)
        answer.max_ulp = max(answer.max_ulp, ulps)
        record(answer, number, given, wrong)


def gradient(info: OpInfo, dtype: torch.dtype, answer: Answer, limit: int | None) -> None:
    """Gradients with respect to every differentiable argument, for fixed cotangents."""
    if info.supports_autograd:
        _ask(info, dtype, answer, limit, 1)


def second_order(info: OpInfo, dtype: torch.dtype, answer: Answer, limit: int | None) -> None:
    """Gradients of gradients."""
    if info.supports_autograd and info.supports_gradgrad:
        _ask(info, dtype, answer, limit, 2)
