"""How far two tensors lie apart: from all elements in float64, or from their recorded summaries.

The first tensor is the reference b, the second the one examined; d is their difference. Non-finite elements take no
part in sums and maxima: they are counted where the two disagree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from macatensor.accuracy.elements import TensorEntry

_CHUNK = 1 << 21  # elements that are float64 at a time: 16 MB an operand
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class Distance:
    """Measures of one pair of tensors; None where the level or the dtype has none."""

    error: float = 0.0  # what is judged: diff2, or of summaries a lower bound of it
    base_norm: float = 0.0  # sqrt(sum b^2)
    difference_norm: float = 0.0  # sqrt(sum d^2), of summaries a lower bound
    identical: bool = False  # the same bytes
    nonfinite: int = 0  # elements of which one is NaN or infinite and the other is something else
    nan_against_number: bool = False
    inf_against_number: bool = False
    max_abs: float | None = None
    max_rel: float | None = None  # over elements whose reference is not 0
    diff1: float | None = None  # sum|d| / sum|b|
    diff2: float | None = None  # sqrt(sum d^2 / sum b^2)
    cosine: float | None = None
    within_1_1000: float | None = None  # share of elements with |d| <= |b| / 1000
    within_5_1000: float | None = None
    max_ulp: float | None = None
    mean_ulp: float | None = None
    unequal: float | None = None  # share of elements that differ at all


def _ratio(numerator: float, denominator: float) -> float:
    if numerator == 0:
        return 0.0
    return numerator / denominator if denominator else math.inf


def _real(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.reshape(-1)


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """Floating numbers as integers that count representable numbers from 0."""
    bits = values.view(_BITS[values.element_size()])
    magnitude = (bits & torch.iinfo(bits.dtype).max).to(torch.int64)
    return torch.where(bits < 0, -magnitude, magnitude)


def _steps(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Representable numbers from x to y, as float64; between signs, where int64 may overflow, to its precision."""
    p, q = _ordered(x), _ordered(y)
    return torch.where((p < 0) == (q < 0), (p - q).double(), p.double() - q.double()).abs()


def of_tensors(base: torch.Tensor, other: torch.Tensor) -> Distance:
    """Measures over all elements, in float64.

    Args:
        base: reference, any dtype and strides, on the host.
        other: the same shape; another dtype is compared by value, without ULP.

    Raises:
        ValueError: the shapes differ.
    """
    if base.shape != other.shape:
        raise ValueError(f"accuracy: shapes {list(base.shape)} and {list(other.shape)} have no distance")
    a, b = _real(base), _real(other)
    count = a.numel()
    ulps = a.dtype == b.dtype and a.is_floating_point()
    sum_d = sum_b = sum_dd = sum_bb = sum_oo = sum_bo = sum_ulp = max_abs = max_rel = max_ulp = 0.0
    near1 = near5 = equal = nonfinite = finite = 0
    nan_against = inf_against = False
    for i in range(0, count, _CHUNK):
        x, y = a[i : i + _CHUNK], b[i : i + _CHUNK]
        u, v = x.double(), y.double()
        same = x == y if x.dtype == y.dtype else u == v  # int64 beyond 2^53 is compared as it is
        good = u.isfinite() & v.isfinite()
        if not bool(good.all()):
            nan = u.isnan() != v.isnan()
            inf = (u.isinf() | v.isinf()) & (u != v) & ~nan
            nan_against |= bool(nan.any())
            inf_against |= bool(inf.any())
            nonfinite += int(nan.sum()) + int(inf.sum())
            equal += int((same | (u.isnan() & v.isnan()))[~good].sum())
            x, y, u, v, same = x[good], y[good], u[good], v[good], same[good]
        if not u.numel():
            continue
        finite += u.numel()
        equal += int(same.sum())
        d, m = (v - u).abs(), u.abs()
        sum_d += float(d.sum())
        sum_b += float(m.sum())
        sum_dd += float(d @ d)
        sum_bb += float(u @ u)
        sum_oo += float(v @ v)
        sum_bo += float(u @ v)
        max_abs = max(max_abs, float(d.max()))
        nonzero = m > 0
        if bool(nonzero.any()):
            max_rel = max(max_rel, float((d[nonzero] / m[nonzero]).max()))
        near1 += int((d <= m / 1000).sum())
        near5 += int((d <= m / 200).sum())
        if ulps:
            steps = _steps(x, y)
            sum_ulp += float(steps.sum())
            max_ulp = max(max_ulp, float(steps.max()))
    norms = math.sqrt(sum_bb) * math.sqrt(sum_oo)
    difference = math.sqrt(sum_dd)
    diff2 = _ratio(difference, math.sqrt(sum_bb))
    return Distance(
        error=diff2,
        base_norm=math.sqrt(sum_bb),
        difference_norm=difference,
        identical=base.dtype == other.dtype and equal == count,
        nonfinite=nonfinite,
        nan_against_number=nan_against,
        inf_against_number=inf_against,
        max_abs=max_abs,
        max_rel=max_rel,
        diff1=_ratio(sum_d, sum_b),
        diff2=diff2,
        cosine=max(-1.0, min(1.0, sum_bo / norms)) if norms else (1.0 if sum_bb == sum_oo else 0.0),
        within_1_1000=near1 / finite if finite else 1.0,
        within_5_1000=near5 / finite if finite else 1.0,
        max_ulp=max_ulp if ulps else None,
        mean_ulp=(sum_ulp / finite if finite else 0.0) if ulps else None,
        unequal=1 - equal / count if count else 0.0,
    )


def elements(shape: list[int]) -> int:
    """The number of elements of a shape."""
    return math.prod(shape)


def of_summaries(base: TensorEntry, other: TensorEntry) -> Distance | None:
    """What the recorded numbers say; None when there are none (level 0).

    By the triangle inequality the differences of the norms, of the maxima and minima, and sqrt(n) times that of the
    means, are each at most the norm of d: their largest is a lower bound of it, and ``error`` of diff2.
    """
    if base.hash is not None and base.hash == other.hash and base.dtype == other.dtype:
        norm = base.norm or 0.0
        return Distance(base_norm=norm, identical=True, max_abs=0.0, unequal=0.0)
    counted = base.nan is not None and other.nan is not None
    pairs = [
        (scale, one, two)
        for scale, one, two in (
            (1.0, base.norm, other.norm),
            (1.0, base.max, other.max),
            (1.0, base.min, other.min),
            (math.sqrt(elements(base.shape)), base.mean, other.mean),
        )
        if one is not None and two is not None
    ]
    if not pairs and not counted:
        return None
    nan_against = inf_against = False
    bound = 0.0
    for scale, one, two in pairs:
        # other tools put NaN and infinities into their summaries
        if math.isnan(one) != math.isnan(two):
            nan_against = True
        elif math.isinf(one) or math.isinf(two):
            inf_against |= one != two
        elif not math.isnan(one):
            bound = max(bound, scale * abs(two - one))
    if counted:
        nan_against |= base.nan != other.nan
        inf_against |= base.inf != other.inf
    norm = math.nan if base.norm is None else base.norm
    if not math.isfinite(norm):  # without it the largest magnitude stands for it: at most the norm
        known = [abs(v) for v in (base.max, base.min) if v is not None and math.isfinite(v)]
        norm = max(known, default=0.0)
    different = abs((base.nan or 0) - (other.nan or 0)) + abs((base.inf or 0) - (other.inf or 0))
    return Distance(
        error=_ratio(bound, norm),
        base_norm=norm,
        difference_norm=bound,
        nonfinite=max(different, int(nan_against or inf_against)),
        nan_against_number=nan_against,
        inf_against_number=inf_against,
        unequal=None if base.hash is None or other.hash is None else 1.0,
    )
