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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from macatensor.parity.measure import allowance
from macatensor.parity.transport import replace, tensors, twin, wide
from macatensor.runtime.boxed import Arguments, Keywords
from op_table import Bound, Row

Terms = npt.NDArray[np.float64]
# Independent roundings: of a million results one lies 4.9 standard deviations off.
_DEVIATIONS = 6.0
# A coherent error is the plain chain's; a library may split chains where the error is up to twice as large.
_COHERENT = 2.0

_LOOKED_AT = 4  # results that lie furthest off, and as many others

# Factors of so many binary digits, rounded to nearest or cut off: TF32's and bfloat16's.
_FEWER = ((11, True), (8, True), (11, False), (8, False))
_SAMPLE = 64  # errors that differ, at least
_CORRELATED = 0.5


class Chains:
    """What is made of a call's terms. The operator is linear in its floating operands, a product in the factor and in what
    is added that its row names: a term is an element of one of them times the result's derivative by it. A norm is no such
    sum, but the same terms add up to it, with twice the error.

    ``chain``: how many are added to one number.
    """

    def __init__(self, row: Row, args: Arguments, kwargs: Keywords, chain: float) -> None:
        operator, _, overload = row.name.partition(".")
        self.row, self.chain = row, chain
        # results of in-place forms, too
        self._func = getattr(getattr(torch.ops.aten, operator), overload or "default")
        known = [a.name for a in self._func._schema.arguments]
        # one of a product's factors, so that no term counts twice, and what is added
        self._added = known.index(row.added) if row.added else -1
        self._linear = {known.index(row.factor), self._added} - {-1} if row.factor else set(range(len(known)))
        self._args, self._kwargs = list(args), {k: v for k, v in kwargs.items() if k in known}

    @functools.cached_property  # one graph for all elements that are looked at
    def _graph(self) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        wider, named = replace((self._args, self._kwargs), _widened)
        leaves = {i: t.requires_grad_() for i, t in enumerate(wider) if i in self._linear and _is_float(t)}
        with torch.enable_grad():
            return list(leaves.values()), tensors(self._func(*wider, **named))

    def terms(self, result: int, elements: list[int]) -> list[list[Terms]]:
        """Of each element one array of terms, or for complex numbers one for each part; none where the operator has no
        derivative."""
        # apart: a thread that is inside of a dispatch records nothing for autograd
        with ThreadPoolExecutor(1) as apart:
            return apart.submit(lambda: [self._of(result, element) for element in elements]).result()

    def _of(self, result: int, element: int) -> list[Terms]:
        try:
            pairs = self._derivatives(result, element)
        except (RuntimeError, NotImplementedError):
            return []
        if not any(x.is_complex() for x, _ in pairs):
            return [_in_memory([x * g for x, g in pairs])]
        # the derivative is the conjugate of the other factor
        real = [torch.stack([x.real * g.real, x.imag * g.imag], -1) for x, g in pairs]
        imaginary = [torch.stack([x.imag * g.real, -x.real * g.imag], -1) for x, g in pairs]
        return [_in_memory(real), _in_memory(imaginary)]

    def _derivatives(self, result: int, element: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        leaves, outcome = self._graph
        target = outcome[result]
        assert target is not None
        with torch.enable_grad():
            picked = target.reshape(-1)[element]
            one = torch.ones_like(picked)
            found = torch.autograd.grad(picked, leaves, one, retain_graph=True, allow_unused=True)
        return [(x.detach(), g) for x, g in zip(leaves, found) if g is not None]

    def of_fewer_bits(self, result: int) -> Iterator[torch.Tensor]:
        """A product's result in float64, of factors that are rounded to fewer binary digits; none of other sums."""
        if not self.row.factor:
            return
        for bits, nearest in _FEWER:
            args, named = replace((self._args, self._kwargs), _widened)
            for i, given in enumerate(self._args):
                if _is_float(given) and i != self._added:
                    args[i] = _rounded(given, bits, nearest)
            with torch.no_grad():
                made = tensors(self._func(*args, **named))[result]
            if made is not None:
                yield made


def _widened(t: torch.Tensor) -> torch.Tensor:
    return twin(t, wide(t.dtype))


def _rounded(t: torch.Tensor, bits: int, nearest: bool) -> torch.Tensor:
    if t.dtype is not torch.float32:
        return _widened(t)
    last = 1 << (24 - bits)
    half = last // 2 if nearest else 0
    return ((t.contiguous().view(torch.int32) + half) & -last).view(torch.float32).double()


def _is_float(value: object) -> bool:
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


def _spacing(sums: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    steps: npt.NDArray[np.float64] = np.spacing(np.abs(sums)).astype(np.float64)
    return steps


@dataclass(frozen=True)
class Chained:
    """What chains of a result's terms allow: ``elements`` of it were looked at, ``allowed`` each an error."""

    elements: list[int]
    allowed: list[float]
    share: float  # of what is allowed, the worst


def by_chains(
    got: torch.Tensor,
    want: torch.Tensor,
    bound: Bound,
    terms: torch.Tensor | None,
    chains: Chains,
    result: int,
) -> Chained:
    """Where chains of a result's terms may allow more than the number of a bound: of the elements that by the number lie
    furthest off, and of some that lie off at all.

    ``got``: float32, float64 or complex of these; ``want``: in float64 or complex128; ``terms``: sums of magnitudes. What
    :func:`is_of_fewer_bits` recognizes is allowed no more than the number.
    """
    part = got.real.dtype if got.is_complex() else got.dtype
    allowed = allowance(got.dtype, want, bound, terms, 0.0).reshape(-1)
    error = (got.to(want.dtype) - want).reshape(-1)
    parts = [error.real.abs(), error.imag.abs()] if error.is_complex() else [error.abs()]
    shares = torch.stack(parts).amax(0) / allowed
    if not bool(shares.isfinite().all()):
        return Chained([], [], math.inf)
    off = (shares > 1).nonzero().reshape(-1)
    worst = shares.topk(min(_LOOKED_AT, shares.numel())).indices.tolist()
    spread = off[:: max(1, len(off) // _LOOKED_AT)].tolist()
    elements = list(dict.fromkeys(worst + spread))
    # a float64 reference is a sum of float64 itself
    factor = 2.0 if part is torch.float64 else 1.0
    share, room = 0.0, []
    for element, by_part in zip(elements, chains.terms(result, elements)):
        if not by_part:
            return Chained([], [], float(shares.max()))
        number = float(allowed[element])
        rooms = [max(number, factor * rounding(addends, part, chains.chain)) for addends in by_part]
        room.append(max(rooms))
        share = max([share, *(float(d[element]) / r for d, r in zip(parts, rooms))])
    others = (((t - want).reshape(-1) / allowed) for t in chains.of_fewer_bits(result))
    if share <= 1 and got.dtype is torch.float32 and is_of_fewer_bits(error / allowed, others):
        return Chained([], [], float(shares.max()))
    return Chained(elements, room, share)


def is_of_fewer_bits(shares: torch.Tensor, others: Iterator[torch.Tensor]) -> bool:
    """Does a product's error come from operands of fewer digits? Of equal signs and many terms it need not exceed what
    one chain of float32 rounds: it is told by what it is made of.

    ``shares``: errors over what the bound allows; ``others``: in turn, those that a rounding of the operands would have
    made. A clean kernel does not know them: its errors correlate with them by chance alone. They are compared by their
    ranks, so that no single large one decides.
    """
    for other in others:
        # equal operands give equal errors, which say one thing
        _, first = np.unique(other.numpy(), return_index=True)
        if len(first) < _SAMPLE:
            continue
        made, found = other.numpy()[first], shares.numpy()[first]
        by_rank = np.corrcoef(made.argsort().argsort(), found.argsort().argsort())[0, 1]
        # where few terms tower over the others errors are few, too; but then a rounding would have made larger ones
        is_as_large = 0.25 < np.median(np.abs(made)) / np.median(np.abs(found)) < 2
        if is_as_large and by_rank > max(_CORRELATED, _DEVIATIONS / len(first) ** 0.5):
            return True
    return False
