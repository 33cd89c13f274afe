"""Kernels that no aten operator names: launched by name, with operands and attributes given by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from macatensor.dispatch.plan import ABSENT, program
from macatensor.dispatch.request import Attribute, Declined, Operand, Request
from macatensor.runtime import counters, plan_caches
from macatensor.runtime.meta import Meta
from macatensor.runtime.plan_caches import PlanCache
from macatensor.runtime.tensor import MacaTensor, payload

if TYPE_CHECKING:
    from macatensor.runtime.ffi import Program

_programs: PlanCache[Program] = PlanCache()


def launch(
    kernel: str,
    inputs: Sequence[torch.Tensor | None],
    results: list[Meta | None],
    attributes: Mapping[str, Attribute | None],
    written: Sequence[int] = (),
) -> list[MacaTensor]:
    """Runs ``kernel`` on ``inputs`` (None: absent) and returns new tensors of ``results``' metas. ``written``: which inputs
    it writes.

    Raises :class:`macatensor.dispatch.request.Declined` when the library has no kernel for them.
    """
    payloads = [payload(t) if t is not None else ABSENT for t in inputs]
    return program_of(kernel, inputs, results, attributes, written).launch(payloads, ())


def program_of(
    kernel: str,
    inputs: Sequence[torch.Tensor | None],
    results: list[Meta | None],
    attributes: Mapping[str, Attribute | None],
    written: Sequence[int] = (),
) -> Program:
    """The ``Program`` that :func:`launch` runs."""
    key = (
        kernel,
        tuple(payload(t)[2] if t is not None else None for t in inputs),
        tuple(results),
        tuple((k, type(v), v) for k, v in attributes.items()),
        tuple(written),
    )
    found = _programs.get(key)
    if found is None:
        generation = plan_caches.generation
        found = _create(kernel, inputs, results, attributes, written)
        counters.count("plan_misses")
        _programs.remember(key, found, generation)
    return found


def _create(
    kernel: str,
    inputs: Sequence[torch.Tensor | None],
    results: list[Meta | None],
    attributes: Mapping[str, Attribute | None],
    written: Sequence[int],
) -> Program:
    request = Request(kernel)
    for t in inputs:
        request.add([Operand(payload(t)[2] if t is not None else None)], is_list=False, is_output=False)
    for meta in results:
        request.add([Operand(meta)], is_list=False, is_output=True)
    request.attributes = [(k, v) for k, v in attributes.items() if v is not None]
    try:
        return program(
            request, kernel, [i in written for i in range(len(inputs))], results, [-1] * len(results)
        )
    except Declined as error:
        raise Declined(f"{kernel}: {error}") from None
