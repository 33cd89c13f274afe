"""Distances of a result from its reference, and the verdict by a row's bound."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from op_table import Bound

# binary digits of the significand, exponent of the smallest normal number
_FORMATS: dict[torch.dtype, tuple[int, int]] = {
    torch.float16: (11, -14),
    torch.bfloat16: (8, -126),
    torch.float32: (24, -126),
    torch.float64: (53, -1022),
}
_PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
# A float64 result meets a reference that is itself a float64 kernel, with errors of its own.
REFERENCE_ULP = 1.0
REFERENCE_TERMS = 2.0
# A half is rounded from float32: a tie of the exact value may be one no more, by 2**-13 ULP at most.
_TWICE_ROUNDED = 2.0**-12


@dataclass
class Distance:
    """How far a result lies from its reference.

    ``ulp``: in units in the last place of the result's dtype at the reference (for sums: at the sum of the terms'
    magnitudes; for complex numbers: at the modulus). ``relative``: to the same magnitude. ``share``: of what the
    bound allows; above 1 fails. ``at``: where the worst element is.
    """

    ulp: float = 0.0
    relative: float = 0.0
    share: float = 0.0
    at: str = ""
    zeros: int = 0  # results that are a zero of the other sign

    def join(self, other: Distance) -> None:
        """Keeps the worse of both."""
        self.ulp, self.relative = max(self.ulp, other.ulp), max(self.relative, other.relative)
        if other.share > self.share or not self.at:
            self.share, self.at = max(self.share, other.share), other.at
        self.zeros += other.zeros


def bound_text(bound: Bound, dtype: torch.dtype) -> str:
    """``"2 ulp"``, ``"4 eps sum|terms|"``, ``"exact"``."""
    if bound.measure == "exact" or dtype not in _FORMATS and dtype not in _PARTS:
        return "exact"
    limit = bound.limit(str(dtype).removeprefix("torch."))
    return f"{limit:g} ulp" if bound.measure == "ulp" else f"{limit:g} eps sum|terms|{bound.chain_text}"


def ulp_at(magnitude: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The spacing of ``dtype`` at a float64 magnitude."""
    digits, smallest = _FORMATS[dtype]
    _, exponent = torch.frexp(magnitude)
    exponent = torch.where(magnitude > 0, exponent.to(torch.int64) - 1, torch.tensor(smallest)).clamp(
        min=smallest
    )
    return torch.ldexp(torch.ones_like(magnitude), exponent - (digits - 1))


def _name(index: int, shape: torch.Size) -> str:
    place = []
    for n in reversed(shape):
        place.append(index % n)
        index //= n
    return str(place[::-1])


def equal(got: torch.Tensor, want: torch.Tensor) -> Distance:
    """The same values, NaN for NaN; a zero of the other sign is counted, not failed."""
    distance = Distance()
    if got.is_complex():
        distance = equal(got.real, want.real)
        distance.join(equal(got.imag, want.imag))
        return distance
    same = got == want
    if got.is_floating_point():
        same = same | (got.isnan() & want.isnan())
        zeros = (got == 0) & (want == 0)
        distance.zeros = int((zeros & (got.signbit() != want.signbit())).sum())
    if bool(same.all()):
        return distance
    worst = int((~same).reshape(-1).to(torch.uint8).argmax())
    a, b = got.reshape(-1)[worst], want.reshape(-1)[worst]
    difference = abs(float(a) - float(b))
    if got.is_floating_point():
        step = float(ulp_at(b.double().abs().nan_to_num(posinf=0).reshape(1), got.dtype)[0])
        distance.ulp = difference / step if math.isfinite(difference) else math.inf
    else:
        distance.ulp = difference
    distance.relative = difference / abs(float(b)) if float(b) else math.inf
    distance.share = math.inf
    distance.at = f"at {_name(worst, got.shape)} got {a.item()!r}, reference {b.item()!r}"
    return distance


def _magnitude(t: torch.Tensor) -> torch.Tensor:
    return torch.maximum(t.real.abs(), t.imag.abs()) if t.is_complex() else t.abs()


def distance(
    got: torch.Tensor, want: torch.Tensor, bound: Bound, terms: torch.Tensor | None = None, loose: float = 0.0
) -> Distance:
    """From ``got`` of any floating dtype to the float64 (complex128) ``want``.

    ``terms``: sum of the magnitudes that were added up, or None when the result's own magnitude counts.
    ``loose``: ULP to allow above the bound.
    """
    if got.numel() == 0:
        return Distance()
    limit = bound.limit(str(got.dtype).removeprefix("torch."))
    magnitude = _magnitude(want)
    if terms is not None:
        magnitude = torch.maximum(magnitude, terms)
    part = _PARTS.get(got.dtype, got.dtype)
    if got.is_complex():
        result = _real(got.real, want.real, part, magnitude, bound, limit, loose)
        result.join(_real(got.imag, want.imag, part, magnitude, bound, limit, loose))
        return result
    return _real(got, want, part, magnitude, bound, limit, loose)


def _allowed(
    dtype: torch.dtype, magnitude: torch.Tensor, step: torch.Tensor, bound: Bound, limit: float, loose: float
) -> torch.Tensor:
    """The error that a bound allows where results have ``magnitude`` and ``step`` is the dtype's spacing."""
    if bound.measure == "per_term":
        extra = REFERENCE_TERMS if dtype is torch.float64 else 0.0
        smallest = ulp_at(torch.zeros(1, dtype=torch.float64), dtype)
        return (limit + extra) * torch.finfo(dtype).eps * magnitude + smallest
    extra = loose
    if dtype is torch.float64:
        extra += REFERENCE_ULP
    return (limit * (1 + _TWICE_ROUNDED) + extra) * step


def allowance(
    dtype: torch.dtype, want: torch.Tensor, bound: Bound, terms: torch.Tensor | None, loose: float
) -> torch.Tensor:
    """For each element of the float64 (complex128) ``want`` the error, as float64, that :func:`distance` lets pass in
    a result of ``dtype``; for complex numbers in each of their parts."""
    magnitude = _magnitude(want)
    if terms is not None:
        magnitude = torch.maximum(magnitude, terms)
    part = _PARTS.get(dtype, dtype)
    magnitude = magnitude.double()
    largest = torch.finfo(part).max
    magnitude = torch.where(
        magnitude.isfinite(), magnitude, _magnitude(want).double().nan_to_num(posinf=largest)
    )
    limit = bound.limit(str(dtype).removeprefix("torch."))
    return _allowed(part, magnitude, ulp_at(magnitude, part), bound, limit, loose)


def is_within(got: torch.Tensor, want: torch.Tensor, bound: Bound, terms: torch.Tensor | None) -> bool:
    """Is ``got`` certainly within its bound of the finite ``want``? False where only :func:`distance` knows."""
    magnitude = _magnitude(want)
    if terms is not None:
        magnitude = torch.maximum(magnitude, terms)
    part = _PARTS.get(got.dtype, got.dtype)
    limit = bound.limit(str(got.dtype).removeprefix("torch."))
    # a unit in the last place is more than half of eps times the number
    share = limit if bound.measure == "per_term" else limit / 2
    allowed = share * torch.finfo(part).eps * magnitude
    error = got.to(want.dtype) - want
    if error.is_complex():
        error, allowed = torch.view_as_real(error), allowed.unsqueeze(-1)
    return bool(((error.abs() <= allowed) & (allowed < torch.inf)).all())


def _real(
    got: torch.Tensor,
    want: torch.Tensor,
    dtype: torch.dtype,
    magnitude: torch.Tensor,
    bound: Bound,
    limit: float,
    loose: float,
) -> Distance:
    got, want, magnitude = got.double(), want.double(), magnitude.double()
    largest = torch.finfo(dtype).max
    # past the largest number lies infinity, one step on: overflow is judged by its distance like all else
    rounded = want.to(dtype).double()
    if dtype is not torch.float64:
        ceiling = 2.0 * 2.0 ** math.floor(math.log2(largest))
        got = torch.where(rounded.isinf() & (got == rounded), want, got)
        got = torch.where(
            got.isinf() & want.isfinite(), torch.copysign(torch.tensor(ceiling).double(), got), got
        )
    same = (got == want) | (got.isnan() & want.isnan())
    finite = got.isfinite() & want.isfinite()
    error = torch.where(same, torch.zeros_like(got), torch.where(finite, (got - want).abs(), torch.inf))
    magnitude = torch.where(magnitude.isfinite(), magnitude, want.abs().nan_to_num(posinf=largest))
    step = ulp_at(magnitude, dtype)
    ulps = error / step
    allowed = _allowed(dtype, magnitude, step, bound, limit, loose)
    share = torch.where(error == 0, torch.zeros_like(error), error / allowed)
    worst = int(share.reshape(-1).argmax())
    relative = torch.where(magnitude > 0, error / magnitude, torch.where(error > 0, torch.inf, 0.0))
    normal = magnitude >= torch.finfo(dtype).tiny
    zeros = int(((got == 0) & (rounded == 0) & (got.signbit() != rounded.signbit())).sum())
    at = ""
    if float(share.reshape(-1)[worst]) > 0:
        a, b = float(got.reshape(-1)[worst]), float(want.reshape(-1)[worst])
        at = f"at {_name(worst, got.shape)} got {a!r}, reference {b!r}"
    return Distance(
        float(ulps.max()), float(torch.where(normal, relative, 0.0).max()), float(share.max()), at, zeros
    )
