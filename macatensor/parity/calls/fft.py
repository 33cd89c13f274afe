"""Calls of Fourier transforms."""

from __future__ import annotations

from collections.abc import Iterator

from macatensor.parity.draw import Call, Draw, calls

# every radix, its powers, primes that become a convolution; real lines of even and odd length
_LENGTHS = (1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 30, 49, 61, 64, 67, 120, 127, 134, 256, 509, 1000)
# cut into columns and rows
_LONG = (8192, 8190, 4099)
_DIMS = ([0], [1], [2], [1, 2], [2, 1], [0, 2], [0, 1, 2], [2, 0, 1])


@calls("_fft_c2c")
def _c2c(draw: Draw) -> Iterator[Call]:
    for i, dims in enumerate(_DIMS):
        yield Call((draw.tensor(3, 4, 5, low=-2, high=2), dims, i % 3, bool(i % 2)))
    yield Call((draw.tensor(2, 6, 4, 5, low=-2, high=2), [1, 3], 0, True))
    if draw.plain:
        for n in _LENGTHS + _LONG:
            yield Call((draw.tensor(2 if n > 1000 else 19, n, low=-2, high=2), [1], n % 3, bool(n % 2)))
        yield Call((draw.tensor(1, 1000, low=-2, high=2), [1], 0, True))
        yield Call((draw.tensor(3, 4, low=-2, high=2), [], 0, True))


@calls("_fft_r2c")
def _r2c(draw: Draw) -> Iterator[Call]:
    for i, dims in enumerate(_DIMS):
        yield Call((draw.tensor(3, 4, 5, low=-2, high=2), dims, i % 3, bool(i % 2)))
    yield Call((draw.tensor(2, 6, 4, 5, low=-2, high=2), [1, 3], 0, True))
    if draw.plain:
        for n in _LENGTHS + _LONG:
            for onesided in (True, False):
                yield Call((draw.tensor(2 if n > 1000 else 19, n, low=-2, high=2), [1], n % 3, onesided))


@calls("_fft_c2r")
def _c2r(draw: Draw) -> Iterator[Call]:
    for i, dims in enumerate(_DIMS):
        half = (3, 4, 5)[dims[-1]]
        yield Call((draw.tensor(3, 4, 5, low=-2, high=2), dims, i % 3, 2 * half - 1 - i % 2))
    yield Call((draw.tensor(2, 6, 4, 5, low=-2, high=2), [1, 3], 0, 8))
    if draw.plain:
        for n in _LENGTHS + _LONG:
            rows = 2 if n > 1000 else 19
            yield Call((draw.tensor(rows, n // 2 + 1, low=-2, high=2), [1], n % 3, n))
