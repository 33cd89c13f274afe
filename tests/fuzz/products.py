"""Random products of matrices and vectors, of any layout, against float64.

    .venv/bin/python tests/fuzz/products.py --programs 3000 --first 0
    .venv/bin/python tests/fuzz/products.py --seed 17

Operands repeat or share elements, have gaps or lie the other way; results are new ones or of any layout, whose gaps stay as they
were.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from math import prod

import programs
import torch
from programs import Line

from macatensor import maca
from macatensor.runtime import counters

ROUNDINGS = (
    8  # that a result may be off, of its terms' magnitudes: chains of 64 terms, and the chains' sums in order
)
CHAIN = (
    1024  # terms that OpenBLAS adds up in one at most; where all are alike each rounding is to the same side
)
LARGEST = 1 << 20  # numbers of an operand
SIDES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 24, 31, 33, 64, 65, 96, 127, 129, 200, 257, 513, 700)
BATCHES = (1, 2, 3, 5, 16)
DTYPES = (
    *[torch.float32] * 6, *[torch.bfloat16, torch.float16] * 2, torch.float64, *[torch.complex64] * 2, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
)  # fmt: skip
# operands by the names of their sides; "1" is a side that is repeated, "c" another batch. What is added comes first.
OPERANDS = {
    "mm": ["mk kn"],
    "bmm": ["bmk bkn"],
    "mv": ["mk k"],
    "dot": ["k k"],
    "outer": ["m n"],
    "matmul": ["mk kn", "bmk kn", "mk bkn", "bmk bkn", "bmk k", "k bkn", "cbmk bkn", "c1mk bkn", "1mk bkn"],
    "addmm": ["mn mk kn", "n mk kn", "1n mk kn", "m1 mk kn", "1 mk kn"],
    "baddbmm": ["bmn bmk bkn", "mn bmk bkn", "n bmk bkn", "b1n bmk bkn", "bm1 bmk bkn"],
    "addbmm": ["mn bmk bkn", "n bmk bkn"],
    "addmv": ["m mk k"],
    "addr": ["mn m n"],
    "linear": ["mk nk", "mk nk n", "bmk nk n", "k nk n"],
}
SUMS = ("addmm", "baddbmm", "addbmm", "addmv", "addr")


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in a buffer of ``numbers``."""

    sizes: list[int]
    strides: list[int]
    offset: int

    @staticmethod
    def draw(draw: random.Random, sizes: list[int], is_result: bool = False) -> Layout:
        kind = draw.choice(
            ("dense", "order", "gaps", "steps", *(("repeated", "shared") if not is_result else ()))
        )
        order = list(range(len(sizes)))
        if kind != "dense":
            draw.shuffle(order)
        strides, step = [0] * len(sizes), draw.choice((2, 3)) if kind == "steps" else 1
        for d in reversed(order):
            strides[d] = step
            step = step * max(1, sizes[d]) + (draw.choice((0, 1, 3, 8)) if kind == "gaps" else 0)
        if kind == "repeated":
            strides = [draw.choice((0, stride)) for stride in strides]
        if kind == "shared":
            strides = [draw.choice((1, 2, 3, stride)) for stride in strides]
        return Layout(sizes, strides, draw.choice((0, 0, 1, 7)))

    @property
    def numbers(self) -> int:
        return 1 + self.offset + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True) if n)

    @property
    def is_distinct(self) -> bool:
        return self.numbers >= prod(self.sizes) and 0 not in self.strides

    def of(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer.as_strided(self.sizes, self.strides, self.offset)


@dataclass(frozen=True)
class Product:
    """An operator and its operands, drawn with a seed."""

    name: str
    operands: list[Layout]
    result: Layout | None  # of ``out=``
    conjugated: list[bool]
    factors: dict[str, float]
    dtype: torch.dtype
    threads: int
    terms: int

    @staticmethod
    def draw(seed: int) -> Product:
        draw = random.Random(seed)
        name = draw.choice(list(OPERANDS))
        dtype = draw.choice(DTYPES)
        sides = {"m": draw.choice(SIDES), "k": draw.choice(SIDES), "n": draw.choice(SIDES), "1": 1}
        sides |= {"b": draw.choice(BATCHES), "c": draw.choice(BATCHES)}
        while sides["c"] * sides["b"] * max(sides[a] * sides[b] for a, b in ("mk", "kn", "mn")) > LARGEST:
            for side in "mkn":
                sides[side] = (sides[side] + 1) // 2
        operands = [[sides[s] for s in names] for names in draw.choice(OPERANDS[name]).split()]
        meta = [torch.empty(sizes, device="meta") for sizes in operands]
        sizes = list(_call(name, meta, {}).shape)
        has_result = name != "linear" and draw.random() < 0.3
        factors = {}
        if name in SUMS:
            factors = {"alpha": draw.choice((1, 1, 2, -1)), "beta": draw.choice((1, 1, 0, 2, -1))}
        return Product(name, [Layout.draw(draw, n) for n in operands],
                       Layout.draw(draw, sizes, is_result=True) if has_result else None,
                       [dtype.is_complex and draw.random() < 0.3 for _ in operands],
                       factors, dtype, draw.randint(1, 3), sides["k"] * (sides["b"] if name == "addbmm" else 1))  # fmt: skip

    def call(self) -> str:
        return f"torch.{self.name} of {self.dtype}: {self.operands}, {self.factors}, out={self.result}"


def _call(
    name: str, operands: list[torch.Tensor], factors: dict[str, float], **out: torch.Tensor
) -> torch.Tensor:
    function = torch.nn.functional.linear if name == "linear" else getattr(torch, name)
    result: torch.Tensor = function(*operands, **factors, **out)
    return result


def _numbers(count: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(count, generator=generator, dtype=torch.promote_types(dtype, torch.float32)).to(
            dtype
        )
    return torch.randint(0 if dtype is torch.uint8 else -9, 10, (count,), generator=generator).to(dtype)


def run(seed: int, lines: list[Line] | None = None, mark: object = None) -> tuple[list[Line], str]:
    """The product of a seed, and in what it differs."""
    p = Product.draw(seed)
    line = Line("result", p.call())
    if mark is not None:
        mark(True, [line])  # type: ignore[operator]
    torch.set_num_threads(p.threads)
    generator = torch.Generator().manual_seed(seed)
    buffers = [_numbers(layout.numbers, p.dtype, generator) for layout in p.operands]
    operands, exact = [], []
    for layout, buffer, conjugated in zip(p.operands, buffers, p.conjugated, strict=True):
        ours, wide = layout.of(maca(buffer)), layout.of(buffer.to(_wide(p.dtype)))
        operands.append(ours.conj() if conjugated else ours)
        exact.append(wide.conj().resolve_conj() if conjugated else wide)
    expected = _call(p.name, exact, p.factors)
    sums = _call(p.name, [t.abs() for t in exact], {n: abs(factor) for n, factor in p.factors.items()})
    before = counters.fallbacks.copy()
    try:
        if p.result is None:
            text = _difference(p, _call(p.name, operands, p.factors), expected, sums)
        else:
            memory = _numbers(p.result.numbers, p.dtype, generator)
            text = _into_memory(p, operands, memory, expected, sums)
    except RuntimeError as error:
        text = f"raises {type(error).__name__}: {error}"
    if on_host := counters.fallbacks - before:
        text = f"is computed on the host: {', '.join(sorted(on_host))}"
    return [line], text


def _into_memory(
    p: Product, operands: list[torch.Tensor], memory: torch.Tensor, expected: torch.Tensor, sums: torch.Tensor
) -> str:
    assert p.result is not None
    ours = maca(memory)
    given = p.result.of(ours)
    _call(p.name, operands, p.factors, out=given)
    if given.stride() == tuple(
        p.result.strides
    ):  # not resized, as PyTorch's product of a vector and a matrix does
        untouched = ours.cpu()
        p.result.of(untouched).copy_(p.result.of(memory))
        if not torch.equal(untouched, memory):
            return "what lies in the result's gaps is overwritten"
    return _difference(p, given, expected, sums)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(
        dtype, torch.float64 if dtype.is_floating_point or dtype.is_complex else torch.int64
    )


def _difference(p: Product, got: torch.Tensor, expected: torch.Tensor, sums: torch.Tensor) -> str:
    if got.dtype != p.dtype or got.shape != expected.shape:
        return f"{tuple(got.shape)} of {got.dtype} in place of {tuple(expected.shape)}"
    host = got.cpu()
    if not (p.dtype.is_floating_point or p.dtype.is_complex):
        return "" if torch.equal(host, expected.to(p.dtype)) else "a whole number differs"
    info = torch.finfo(p.dtype)
    are_alike = not all(layout.is_distinct for layout in p.operands)
    roundings = ROUNDINGS + (min(p.terms, CHAIN) / 2 if are_alike else 0)
    off = (host.to(_wide(p.dtype)) - expected).abs()
    fits = (off <= info.eps * (roundings * sums.abs() + info.smallest_normal)) | (sums.abs() > info.max)
    return "" if fits.all() else f"off by {off[~fits].max():.3g} of {p.dtype} on {p.threads} threads"


if __name__ == "__main__":
    sys.exit(programs.main(__doc__, __file__, run, programs.source_of("products", "Product")))
