"""What the roundings of a sum may come to, from the sum's own terms.

A sum of n terms in any order is off by at most n / 2 * eps * sum(|terms|), which a product of bfloat16 numbers is not either
once n is large; no number by itself is right for every sum. What a chain of additions in fact rounds follows from its
terms: by the root of their number where roundings are independent, in proportion where they are one rounding over and
over (equal terms) or where small terms are lost beside large ones. So where a result lies further from its reference
than the number of its row, the terms themselves are added up in the result's dtype, in chains as long as the row says.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from macatensor.parity.measure import allowance
from macatensor.parity.transport import replace, tensors, twin, wide
from op_table import Bound, Row

Terms = npt.NDArray[np.float64]
TermsAt = Callable[[int, int], list[Terms]]
"""The terms of an element of a result, given the numbers of both: one array, or for complex numbers one for each part."""

# Independent roundings: of a million results one lies 4.9 standard deviations off.
_DEVIATIONS = 6.0
# A coherent error is the plain chain's; a library may split chains where the error is up to twice as large.
_COHERENT = 2.0

_LOOKED_AT = 4  # results that lie furthest off, and as many others

# Which arguments a product is linear in without counting a term twice: one of its factors and what is added.
_FACTORS = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "convolution_backward"), (0,)),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "addmv", "addr"), (0, 1)),
    "convolution": (0, 2),
}


def terms_of(row: Row, args: Any, kwargs: Any) -> TermsAt:
    """Terms of a call's results. The operator is linear in its floating operands, or in those that :data:`_FACTORS`
    names: a term is an element of one of them times the result's derivative by it. No terms: it has no derivative."""
    operator, _, overload = row.name.partition(".")
    func = getattr(getattr(torch.ops.aten, operator), overload or "default")  # results of in-place forms, too
    known = {a.name for a in func._schema.arguments}

    @functools.cache  # one graph for all elements that are looked at
    def graph() -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        wider, named = replace((list(args), {k: v for k, v in kwargs.items() if k in known}), _widened)
        chosen = _FACTORS.get(operator, range(len(wider)))
        leaves = {i: wider[i].requires_grad_() for i in chosen if i < len(wider) and _is_float(wider[i])}
        with torch.enable_grad():
            return list(leaves.values()), tensors(func(*wider, **named))

    def at(result: int, element: int) -> list[Terms]:
        try:
            # apart: a thread that is inside of a dispatch records nothing for autograd
            with ThreadPoolExecutor(1) as apart:
                pairs = apart.submit(derivatives, result, element).result()
        except (RuntimeError, NotImplementedError):
            return []
        if not any(x.is_complex() for x, _ in pairs):
            return [_in_memory([x * g for x, g in pairs])]
        # the derivative is the conjugate of the other factor
        real = [torch.stack([x.real * g.real, x.imag * g.imag], -1) for x, g in pairs]
        imaginary = [torch.stack([x.imag * g.real, -x.real * g.imag], -1) for x, g in pairs]
        return [_in_memory(real), _in_memory(imaginary)]

    def derivatives(result: int, element: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        leaves, outcome = graph()
        target = outcome[result]
        assert target is not None
        with torch.enable_grad():
            picked = target.reshape(-1)[element]
            one = torch.ones_like(picked)
            found = torch.autograd.grad(picked, leaves, one, retain_graph=True, allow_unused=True)
        return [(x.detach(), g) for x, g in zip(leaves, found) if g is not None]

    return at


def _widened(t: torch.Tensor) -> torch.Tensor:
    return twin(t, wide(t.dtype))


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _in_memory(parts: list[torch.Tensor]) -> Terms:
    flat = torch.cat([p.reshape(-1) for p in parts]).numpy()
    found: Terms = flat[flat != 0]  # most belong to other results
    return found


def _orders(terms: Terms) -> Iterator[Terms]:
    yield terms
    yield terms[::-1]
    yield terms[np.argsort(-np.abs(terms), kind="stable")]  # the small ones meet the whole sum


def rounding(terms: Terms, dtype: torch.dtype, chain: float) -> float:
    """The error to allow in the sum of ``terms`` in ``dtype`` (float32 or float64) by chains of at most ``chain``."""
    if not len(terms) or not np.isfinite(terms).all():
        return 0.0
    return max(_of_order(ordered, dtype, chain) for ordered in _orders(terms))


def _of_order(terms: Terms, dtype: torch.dtype, chain: float) -> float:
    number = np.float32 if dtype is torch.float32 else np.float64
    length = int(min(chain, len(terms)))
    padded = np.zeros(-(-len(terms) // length) * length)
    padded[: len(terms)] = terms
    links = padded.reshape(-1, length)
    sums = np.add.accumulate(links.astype(number), axis=1)
    exact = np.add.accumulate(links.astype(np.longdouble), axis=1)
    totals = np.add.accumulate(sums[:, -1])
    variance = float((_spacing(sums) ** 2).sum() + (_spacing(totals) ** 2).sum()) / 12
    # equal terms err alike in every chain, others cancel
    magnitudes = np.add.accumulate(np.abs(links), axis=1).sum(0)
    share = np.abs((sums - exact).sum(0)) / np.maximum(magnitudes, np.finfo(np.float64).tiny)
    joined = np.abs(totals - np.add.accumulate(sums[:, -1].astype(np.longdouble))).max()
    coherent = float(share.max()) * float(magnitudes[-1]) + float(joined)
    return float(_DEVIATIONS * variance**0.5 + _COHERENT * coherent)


def _spacing(sums: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    steps: npt.NDArray[np.float64] = np.spacing(np.abs(sums)).astype(np.float64)
    return steps


def share_by_chains(
    got: torch.Tensor,
    want: torch.Tensor,
    bound: Bound,
    terms: torch.Tensor | None,
    terms_at: Callable[[int], list[Terms]],
) -> float:
    """The share of what a bound allows, where chains of a result's terms may allow more than the number: of the results
    that by the number lie furthest off, and of some that lie off at all.

    ``got``: float32, float64 or complex of these; ``want``: in float64 or complex128; ``terms``: sums of magnitudes.
    """
    part = got.real.dtype if got.is_complex() else got.dtype
    allowed = allowance(got.dtype, want, bound, terms, 0.0).reshape(-1)
    error = (got.to(want.dtype) - want).reshape(-1)
    parts = [error.real.abs(), error.imag.abs()] if error.is_complex() else [error.abs()]
    shares = torch.stack(parts).amax(0) / allowed
    if not bool(shares.isfinite().all()):
        return math.inf
    off = (shares > 1).nonzero().reshape(-1)
    worst = shares.topk(min(_LOOKED_AT, shares.numel())).indices.tolist()
    spread = off[:: max(1, len(off) // _LOOKED_AT)].tolist()
    # a float64 reference is a sum of float64 itself
    factor = 2.0 if part is torch.float64 else 1.0
    share = 0.0
    for element in dict.fromkeys(worst + spread):
        by_part = terms_at(element)
        if not by_part:
            return float(shares.max())
        for distance, addends in zip(parts, by_part):
            least = factor * rounding(addends, part, bound.chain)
            share = max(share, float(distance[element]) / max(float(allowed[element]), least))
    return share
