"""What random operators draw: the mapping that :mod:`macatensor.runtime.random` states, computed once more in NumPy.

From the generator's state before a call follow the words, from the words every number. So a kernel that starts at
another counter is found as well as one whose numbers follow another law.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from macatensor.parity.formulas import named
from macatensor.parity.measure import Distance, bound_text, distance, equal
from macatensor.parity.reference import Aim
from macatensor.parity.wide_calls import Operator
from macatensor.runtime.boxed import Arguments, Keywords, Value
from op_table.row import ulp

State = tuple[int, int]  # seed and offset
Words = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float64]

# Of the magnitude of what is added up. float32: logarithm, root, sine and cosine round, as do the product and the sum.
_BOUND = ulp("a logarithm, a root and a turn of float32, then a product and a sum", f32=8, f64=16)
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.complex64: 24}
# random_() of integers ends here, of floats where not every integer is one any more
_LARGEST = {
    torch.bool: 1, torch.uint8: 2**8 - 1, torch.int8: 2**7 - 1, torch.int16: 2**15 - 1, torch.int32: 2**31 - 1,
    torch.int64: 2**63 - 1, torch.float16: 2**11, torch.bfloat16: 2**8, torch.float32: 2**24, torch.float64: 2**53,
}  # fmt: skip


def philox(state: State, count: int) -> Words:
    """Words 0 to ``count`` - 1 of the stream: Philox 4x32-10, seed as key, counters from the offset on."""
    seed, offset = state
    blocks = (count + 3) // 4
    low = np.arange(blocks, dtype=np.uint64) + np.uint64(offset % 2**64)  # wraps as the counter does
    mask = np.uint64(0xFFFFFFFF)
    c0, c1 = low & mask, low >> np.uint64(32)
    c2 = c3 = np.zeros(blocks, np.uint64)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = np.uint64(_MULTIPLIERS[0]) * c0, np.uint64(_MULTIPLIERS[1]) * c2
        c0, c1 = (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0), p1 & mask
        c2, c3 = (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1), p0 & mask
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], -1).reshape(-1)[:count].astype(np.uint32)


class Numbers(NamedTuple):
    """What ``count`` elements should be, and the magnitude that their error is measured at; None: exactly so."""

    want: npt.NDArray[np.generic]
    magnitude: Floats | None = None


class Draw(NamedTuple):
    """A launch: how many elements of which dtype it fills, from which state, by which arguments."""

    state: State
    elements: int
    dtype: torch.dtype
    arguments: dict[str, Value]

    @property
    def wide(self) -> bool:
        return self.dtype in (torch.float64, torch.complex128)

    def words(self, count: int) -> Words:
        return philox(self.state, count)

    def pairs(self, count: int) -> npt.NDArray[np.uint64]:
        words = self.words(2 * count).astype(np.uint64)
        found: npt.NDArray[np.uint64] = words[1::2] << np.uint64(32) | words[::2]
        return found

    def own(self, count: int) -> npt.NDArray[np.uint32] | npt.NDArray[np.uint64]:
        """One word an element, of 64 bits for float64."""
        return self.pairs(count) if self.wide else self.words(count)

    def number(self, name: str, default: float) -> float:
        value = self.arguments.get(name)
        return default if value is None else float(value)

    def spread(self, name: str, default: float) -> Floats:
        """A parameter of every element, from a number or a tensor that is broadcast to the result."""
        value = self.arguments.get(name)
        if not isinstance(value, torch.Tensor):
            return np.full(self.elements, default if value is None else float(value))
        return np.asarray(value.double().broadcast_to(self.arguments["shape"]).reshape(-1).numpy())


def _open_unit(words: npt.NDArray[np.generic]) -> Floats:
    """(0, 1]: what goes into a logarithm, rounded as the mapping rounds it."""
    if words.dtype == np.uint64:
        found = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    else:
        half = np.float32(0.5)
        found = (((words >> np.uint32(1)).astype(np.float32) + half) * np.float32(2.0**-31)).astype(
            np.float64
        )
    return np.asarray(found)


def _uniform(draw: Draw) -> Numbers:
    low, high = draw.number("from", 0.0), draw.number("to", 1.0)
    words = draw.own(draw.elements)
    if draw.wide:
        unit = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    else:
        digits = _DIGITS[draw.dtype]
        unit = (words >> np.uint32(32 - digits)).astype(np.float64) * 2.0**-digits
    # what would round to the upper end stays below it
    top = max(low, _below(high, draw.dtype)) if low < high else high
    return Numbers(
        np.minimum(unit * (high - low) + low, top), np.full(draw.elements, max(abs(low), abs(high)))
    )


_WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _below(end: float, dtype: torch.dtype) -> float:
    """The largest number of a dtype below ``end``."""
    parts = dtype.to_real() if dtype.is_complex else dtype
    nearest = torch.tensor(end, dtype=parts)
    if float(nearest) >= end:
        bits = nearest.view(_WHOLE[parts.itemsize])
        of_zero = torch.ones_like(bits).view(parts).neg()  # the negative number nearest to 0
        nearest = of_zero if nearest == 0 else (bits - 1 if nearest > 0 else bits + 1).view(parts)
    return float(nearest)


def _standard_normal(draw: Draw) -> tuple[Floats, Floats]:
    """By Box and Muller, and the radii."""
    even = draw.elements + draw.elements % 2
    words = draw.own(even)
    radius = np.sqrt(-2 * np.log(_open_unit(words[::2])))
    bits = 64 if draw.wide else 32
    # the nearest quarter first: the turn itself would lose its last digits
    turns = words[1::2].astype(np.longdouble) / np.longdouble(2**bits) * 2 * np.pi
    angle = turns.astype(np.float64)
    found = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1).reshape(-1)
    return found[: draw.elements], np.repeat(radius, 2)[: draw.elements]


def _normal(draw: Draw) -> Numbers:
    mean, std = draw.spread("mean", 0.0), draw.spread("std", 1.0)
    if draw.dtype.is_complex:
        std = std * math.sqrt(0.5)  # each part has half the variance
    z, radius = _standard_normal(draw)
    return Numbers(z * std + mean, np.abs(mean) + np.abs(std) * np.maximum(radius, 1.0))


def _log_normal(draw: Draw) -> Numbers:
    normal = _normal(draw._replace(arguments={"mean": 1.0, "std": 2.0, **draw.arguments}))
    assert normal.magnitude is not None
    want = np.exp(normal.want.astype(np.float64))
    return Numbers(want, want * (1 + normal.magnitude))


def _exponential(draw: Draw) -> Numbers:
    # never 0: callers divide by it
    least = torch.finfo(draw.dtype if draw.wide else torch.float32).eps * -0.5
    logarithm = np.log(_open_unit(draw.own(draw.elements)))
    want = np.minimum(logarithm, least) * (-1.0 / draw.number("lambd", 1.0))
    return Numbers(want, np.abs(want))


def _bernoulli(draw: Draw) -> Numbers:
    words = draw.words(draw.elements).astype(np.float64)
    source = "p" if draw.arguments.get("p") is not None else "self"
    below = draw.spread(source, 0.5) * 2.0**32
    whole = not isinstance(draw.arguments.get(source), torch.Tensor)
    return Numbers(words < (np.floor(below) if whole else below))


def _random(draw: Draw) -> Numbers:
    low, end = draw.arguments.get("from") or 0, draw.arguments.get("to")
    span = (_LARGEST[draw.dtype] + 1 if end is None else int(end)) - int(low)
    words = draw.pairs(draw.elements)
    half = np.uint64(32)
    mask = np.uint64(0xFFFFFFFF)
    low_span, high_span = np.uint64(span & 0xFFFFFFFF), np.uint64(span >> 32 & 0xFFFFFFFF)
    middle = (words & mask) * low_span >> half
    middle += (words >> half) * low_span
    carry = middle >> half
    middle = (middle & mask) + (words & mask) * high_span
    drawn = (words >> half) * high_span + carry + (middle >> half)
    if span == 2**64:
        drawn = words
    return Numbers((drawn + np.uint64(int(low) % 2**64)).astype(np.int64))


_LAWS = named(_uniform, _normal, _log_normal, _exponential, _bernoulli, _random)


def by_name(func: Operator, args: Arguments, kwargs: Keywords) -> dict[str, Value]:
    """The arguments of a call by the names of its schema."""
    return {a.name: value for a, value in zip(func._schema.arguments, args)} | dict(kwargs)


def aim(law: str, state: State, got: torch.Tensor, arguments: dict[str, Value]) -> Aim:
    """What an operator with numbers of this law should draw from ``state``.

    ``got``: its result, of which only sizes and dtype count; ``arguments``: by the names of the schema, tensors on the
    host. Complex numbers are drawn part by part.
    """
    parts = _parts(got)
    shape = list(parts.shape)
    draw = Draw(state, parts.numel(), got.dtype, {**arguments, "shape": shape})
    want, magnitude = _LAWS[law](draw)
    exact = torch.from_numpy(np.ascontiguousarray(want)).reshape(shape)
    if magnitude is None:
        return Aim(exact.to(parts.dtype))
    terms = torch.from_numpy(magnitude).reshape(shape)
    if not got.is_complex():
        return Aim(exact, _BOUND, terms)
    return Aim(torch.view_as_complex(exact), _BOUND, terms.amax(-1))


def judge(law: str, state: State, got: torch.Tensor, arguments: dict[str, Value]) -> tuple[Distance, str]:
    """How far the numbers that an operator drew from ``state`` lie from the mapping's, and the text of its bound."""
    aimed = aim(law, state, got, arguments)
    if aimed.bound is None:
        return equal(got, aimed.want), "exact"
    return distance(got, aimed.want, aimed.bound, aimed.terms), bound_text(aimed.bound, got.dtype)


def _parts(t: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(t.contiguous()) if t.is_complex() else t


def kept_by_dropout(state: State, size: torch.Size, p: float) -> torch.Tensor:
    """The mask of ``native_dropout``: one word an element decides."""
    limit = min((1.0 - p) * 2.0**32, 2.0**32 - 1)
    kept = philox(state, size.numel()) < np.uint32(int(limit)) if p else np.ones(size.numel(), np.bool_)
    return torch.from_numpy(np.asarray(kept)).reshape(size)
