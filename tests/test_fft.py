"""Fourier transforms: every length, dimension order and layout; the same bits for any number of threads."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from running import threads_restored

from macatensor.parity.transport import fetch, place

# each radix, primes up to the limit and past it, lines cut into columns and rows, their convolutions
_LENGTHS = (1, 2, 3, 6, 7, 16, 35, 61, 64, 67, 97, 120, 134, 512, 1009, 4096, 4099, 5000, 8190, 65536)


def _close(got, want, n):
    """Within a few rounding errors for each of the log n stages, of the rms result."""
    want = torch.from_numpy(
        want
    )  # of NumPy: MKL's transforms of some lengths lose three bits on some processors
    got, scale = fetch(got), float(want.abs().pow(2).mean().sqrt())
    assert got.shape == want.shape
    error = float((got.to(want.dtype) - want).abs().max())
    assert error <= 4 * torch.finfo(got.dtype).eps * (math.log2(n) + 1) * scale


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("rows", [1, 19])
def test_lengths(dtype, rows):
    generator = torch.Generator().manual_seed(0)
    for n in _LENGTHS:
        wide = torch.randn(rows if n < 3000 else 1, n, dtype=torch.complex128, generator=generator)
        x = wide.to(dtype)
        wide = x.to(torch.complex128).numpy()
        real = place(x.real.contiguous())
        _close(torch.fft.fft(place(x)), np.fft.fft(wide), n)
        _close(torch.fft.ifft(place(x), norm="ortho"), np.fft.ifft(wide, norm="ortho"), n)
        _close(torch.fft.rfft(real), np.fft.rfft(wide.real), n)
        _close(torch.fft.fft(real), np.fft.fft(wide.real), n)
        half = n // 2 + 1
        _close(torch.fft.irfft(place(x[:, :half]), n=n), np.fft.irfft(wide[:, :half], n=n), n)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("n", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("rows", [1, 2, 301])
def test_lines_in_registers(dtype: torch.dtype, n: int, rows: int) -> None:
    """Several at once, of which the last group may lack some; those of float32 are more than 2048 elements, or in double."""
    generator = torch.Generator().manual_seed(0)
    apart = torch.randn(rows, 9, n + 3, dtype=torch.complex128, generator=generator).to(dtype)
    x, ours = (t[..., :n] for t in (apart, place(apart)))
    wide = x.to(torch.complex128).numpy()
    _close(torch.fft.fft(ours), np.fft.fft(wide), n)
    _close(torch.fft.ifft(ours, norm="ortho"), np.fft.ifft(wide, norm="ortho"), n)
    _close(torch.fft.irfft(ours), np.fft.irfft(wide), n)
    _close(torch.fft.irfft(ours, n=2 * n - 2), np.fft.irfft(wide, n=2 * n - 2), n)
    real = place(x.real.contiguous())
    _close(torch.fft.rfft(real), np.fft.rfft(wide.real), n)
    _close(torch.fft.fft(real), np.fft.fft(wide.real), n)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_strides_are_pytorchs(order):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 5, 6, dtype=torch.complex128, generator=generator).permute(order)
    real = torch.randn(4, 5, 6, dtype=torch.float64, generator=generator).permute(order)
    aten = torch.ops.aten
    for count in (1, 2, 3):
        for dims in itertools.permutations(range(3), count):
            last = 2 * x.shape[dims[-1]] - 1
            for call in (
                lambda t, r, d=list(dims): aten._fft_c2c(t, d, 1, False),
                lambda t, r, d=list(dims): aten._fft_r2c(r, d, 0, True),
                lambda t, r, d=list(dims): aten._fft_r2c(r, d, 2, False),
                lambda t, r, d=list(dims), n=last: aten._fft_c2r(t, d, 0, n),
            ):
                got, want = call(place(x), place(real)), call(x, real)
                assert got.stride() == want.stride()
                torch.testing.assert_close(fetch(got), want, rtol=1e-13, atol=1e-13)


def test_threads_do_not_change_bits():
    generator = torch.Generator().manual_seed(0)
    for shape in ((300, 1000), (2, 10007), (1 << 16,), (40, 30, 50)):
        x = place(torch.randn(shape, dtype=torch.complex64, generator=generator))
        results = []
        for threads in (1, 2, 3):
            with threads_restored(threads):
                results.append(fetch(torch.fft.fftn(x)))
        assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_a_line_does_not_touch_its_neighbours():
    x = torch.zeros(3, 15)
    x[0], x[1] = math.nan, 1e30
    got = fetch(torch.fft.rfft(place(x)))
    assert got[0].isnan().all() and (got[2] == 0).all()


def test_stft_and_back():
    generator = torch.Generator().manual_seed(0)
    x, window = torch.randn(2, 4000, generator=generator), torch.hann_window(400)
    got = torch.stft(place(x), 400, 100, window=place(window), return_complex=True)
    torch.testing.assert_close(fetch(got), torch.stft(x, 400, 100, window=window, return_complex=True))
    torch.testing.assert_close(fetch(torch.istft(got, 400, 100, window=place(window), length=4000)), x)
