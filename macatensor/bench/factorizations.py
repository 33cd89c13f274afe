"""Factorizations, solutions and Fourier transforms at three sizes; native PyTorch's and ours are LAPACK and PocketFFT or MKL."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from macatensor.bench.case import Case, Function, Operands, rand

BAR = 1.0
_SIZES = (64, 256, 1024)
_SLOW_SIZES = (32, 128, 512)  # of what takes a second at 1024


def _positive(side: int) -> Callable[[], Operands]:
    """A symmetric positive definite matrix."""

    def make() -> Operands:
        root = torch.rand(side, side)
        return (root @ root.mT + side * torch.eye(side),)

    return make


LINALG: dict[str, tuple[Function, Callable[[int], Callable[[], Operands]], tuple[int, ...]]] = {
    "svd": (lambda a: torch.linalg.svd(a, full_matrices=False), lambda n: rand(1, n, n), _SLOW_SIZES),
    "eigh": (torch.linalg.eigh, _positive, _SLOW_SIZES),
    "qr": (torch.linalg.qr, lambda n: rand(1, n, n), _SIZES),
    "cholesky": (torch.linalg.cholesky, _positive, _SIZES),
    "solve": (torch.linalg.solve, lambda n: rand(2, n, n), _SIZES),
    "inv": (torch.linalg.inv, _positive, _SIZES),
    "det": (torch.linalg.det, lambda n: rand(1, n, n), _SIZES),
}  # fmt: skip


def linalg(quick: bool) -> Iterator[Case]:
    """float32 matrices: SVD, symmetric eigenvalues, QR, Cholesky, solutions, inverses and determinants."""
    for name, (function, make, sizes) in LINALG.items():
        for n in sizes:
            yield Case(f"linalg.{name}.{n}", function, make(n // 16 if quick else n), BAR)


def fft(quick: bool) -> Iterator[Case]:
    """float32 and complex64: 1024 lines of 1024, one of 2^20, an image of 1024 x 1024, and lines of a prime's length."""
    side, length, prime = (64, 1 << 10, 61) if quick else (1024, 1 << 20, 1009)

    def complexes(*size: int) -> Callable[[], Operands]:
        return lambda: (torch.randn(size, dtype=torch.complex64),)

    yield Case("fft.lines", torch.fft.fft, complexes(side, side), BAR)
    yield Case("fft.long", torch.fft.fft, complexes(length), BAR)
    yield Case("fft.prime", torch.fft.fft, complexes(side, prime), BAR)
    yield Case("fft.image", torch.fft.fft2, complexes(side, side), BAR)
    yield Case("fft.real_lines", torch.fft.rfft, rand(1, side, side), BAR)
    yield Case("fft.real_inverse", torch.fft.irfft, complexes(side, side // 2 + 1), BAR)
