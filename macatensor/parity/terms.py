"""The terms that results are left of: what errors of sums, and of functions that cancel, are measured at."""

from __future__ import annotations

import torch

from macatensor.parity.transport import replace, tensors, twin, wide
from macatensor.parity.wide_calls import FLOAT32, Operator, each_number, magnitudes, run, widen
from macatensor.runtime.boxed import Arguments, Keywords
from op_table import Row

_STEP = 2.0**-20  # relative size of the disturbance that measures a function's terms
_DISTURBED = 4  # times for each operand
_TOGETHER = 2  # times for all of them


def of_sum(func: Operator, row: Row, args: Arguments, kwargs: Keywords) -> list[torch.Tensor | None]:
    """``sum |term|`` of sums and products: the call on magnitudes."""
    args, kwargs = each_number(func, args, kwargs, abs)
    results, _ = run(func, row, magnitudes(args), magnitudes(kwargs))
    return [
        None if r is None else r.abs() if r.is_floating_point() or r.is_complex() else None for r in results
    ]


def by_disturbance(
    func: Operator,
    row: Row,
    args: Arguments,
    kwargs: Keywords,
    exact: list[torch.Tensor | None],
    together: bool = False,
) -> list[torch.Tensor | None]:
    """An estimate of ``|f| + sum |df/dx * x|`` from random relative changes of one operand at a time.

    One at a time, since changes of two operands may cancel as their terms do. ``together``: of all operands at once,
    which is no more than that sum, and takes two runs.
    """
    generator = torch.Generator().manual_seed(1)

    def disturb(t: torch.Tensor) -> torch.Tensor:
        wider = twin(t, wide(t.dtype))
        if not (wider.is_floating_point() or wider.is_complex()) or not wider.numel():
            return wider
        # every element of memory once, so that an expanded operand stays one
        memory = torch.as_strided(wider, (wider.untyped_storage().nbytes() // wider.element_size(),), (1,), 0)
        if together:  # signs alone, which is still no more than the sum of all and one draw
            signs = torch.randint(0, 2, memory.shape, generator=generator, dtype=torch.float64)
            memory.mul_(signs.mul_(2 * _STEP).add_(1 - _STEP))
            return wider
        signs = torch.randint(0, 2, memory.shape, generator=generator) * 2 - 1
        memory.mul_(1 + _STEP * signs * (0.5 + 0.5 * torch.rand(memory.shape, generator=generator)))
        return wider

    total: list[torch.Tensor | None] = [
        None if e is None else torch.zeros(e.shape, dtype=torch.float64) for e in exact
    ]
    spots = [
        spot
        for spot, operand in [*enumerate(args), *kwargs.items()]
        if spot not in FLOAT32
        and any(t is not None and (t.is_floating_point() or t.is_complex()) for t in tensors(operand))
    ]
    groups = [spots] if together and spots else [[spot] for spot in spots]
    # a call that writes its arguments needs fresh ones for each run; not every schema says so (running statistics)
    calm = widen(args), widen(kwargs)
    after = exact[len(exact) - len(tensors((args, kwargs))) :]
    writes = getattr(func._schema, "is_mutable", True) or any(
        now is not None and then is not None and not torch.equal(now, then)
        for now, then in zip(after, tensors(calm))
    )
    still = None if writes else calm
    for group in groups:
        largest = [None if t is None else torch.zeros_like(t) for t in total]
        for _ in range(_TOGETHER if together else _DISTURBED):
            calm_args, calm_kwargs = still or (widen(args), widen(kwargs))
            moved_args = tuple(
                [replace(v, disturb) if i in group else c for i, (v, c) in enumerate(zip(args, calm_args))]
            )
            moved_kwargs = {
                k: replace(v, disturb) if k in group else calm_kwargs[k] for k, v in kwargs.items()
            }
            moved, _ = run(func, row, moved_args, moved_kwargs)
            for i, (m, e) in enumerate(zip(moved, exact)):
                known = largest[i]
                if m is None or e is None or known is None or m.shape != e.shape or m.dtype != e.dtype:
                    continue
                if e.is_floating_point() or e.is_complex():
                    change = (m - e).abs().nan_to_num(nan=0.0, posinf=0.0)
                    largest[i] = torch.maximum(known, change)
        total = [t if t is None or c is None else t + c for t, c in zip(total, largest)]
    # a few random sign patterns: twice the largest change stands for the sum of all
    factor = (1 if together else 2) / _STEP
    return [
        None
        if e is None or c is None or not (e.is_floating_point() or e.is_complex())
        else e.abs() + factor * c
        for e, c in zip(exact, total)
    ]


def largest_of_matrix(terms: torch.Tensor | None, dims: int) -> torch.Tensor | None:
    """The largest over the last ``dims`` dimensions, for each element."""
    if terms is None or not terms.numel() or terms.dim() == 0:
        return terms
    last = tuple(range(-min(dims, terms.dim()), 0))
    return terms.amax(last, keepdim=True).expand(terms.shape)
