"""Histograms: composite rows that search bins and count with ``index_add``, or by a kernel, bins of equal width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from macatensor.dispatch.errors import scalar_type
from macatensor.dispatch.request import Scalar
from macatensor.operators.composites import composite
from macatensor.operators.dynamic import launch_kernel
from macatensor.runtime.ffi import kernels


def _check_range(low: float, high: float, what: str) -> None:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"{what}: range of [{low:g}, {high:g}] is not finite")


_Number = TypeVar("_Number", int, float)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _range(self: Tensor, low: _Number, high: _Number) -> tuple[_Number, _Number]:
    """Of the data where both are equal, and around one number that all of it is."""
    if low == high and self.numel() > 0:
        low, high = (type(low)(v) for v in torch.aminmax(self))
    if low == high:
        low, high = low - 1, high + 1
    _check_range(low, high, "torch.histc")
    return low, high


def _histc_of_integers(self: Tensor, bins: int, low: int, high: int) -> Tensor:
    """As CUDA's, in whole numbers: where a bin begins is rounded down."""
    low, high = _range(self, low, high)
    x = self.reshape(-1).long()
    inside = (x >= low) & (x <= high)
    place = torch.where(inside, (x - low) * bins // (high - low), 0).clamp_(max=bins - 1)
    return torch.zeros(bins, dtype=self.dtype, device=self.device).index_add_(0, place, inside.to(self.dtype))


@composite
def histc(self: Tensor, bins: int = 100, min: Scalar = 0, max: Scalar = 0) -> Tensor:
    """Counts in bins of equal width from ``min`` to ``max``, of the data where both are equal."""
    if isinstance(min, complex) or isinstance(max, complex):
        torch.histc(torch.zeros(1, device="cpu"), 1, min, max)  # raises, but where the imaginary part is 0
        min, max = complex(min).real, complex(max).real
    if self.dtype in (torch.float32, torch.float64) and bins > 0 and "histc" in kernels():
        largest = torch.finfo(self.dtype).max
        if -largest <= min <= max <= largest:
            low, high = _range(self, float(min), float(max))
            return launch_kernel(
                "histc", [self.reshape(-1)], (bins,), self.dtype, attributes={"min": low, "max": high}
            )
    is_integral = self.dtype in _INTEGERS
    # or PyTorch's error; of integers, which CUDA counts and the CPU does not, that of numbers
    given = torch.zeros(1, dtype=torch.float64 if is_integral else self.dtype, device="cpu")
    torch.histc(given, 1 if bins > 0 else bins, min, max)
    if is_integral:
        return _histc_of_integers(self, bins, int(min), int(max))
    low, high = _range(self, float(min), float(max))
    x = self.reshape(-1)
    first, last = (
        torch.tensor(low, dtype=self.dtype, device="cpu"),
        torch.tensor(high, dtype=self.dtype, device="cpu"),
    )
    low, width, high = float(first), float(last - first), float(last)
    inside = (x >= low) & (x <= high)
    # in this order and rounded to the dtype each time, as PyTorch's: the rounding decides on the bin
    place = (x - low) * bins / width
    if self.dtype.itemsize == 2:  # whose product overflows, as 656 of 100 bins does in float16
        place = torch.where(place.isfinite(), place.float(), (x.float() - low) * bins / (high - low))
    # a place is no number where the width is 0
    place = torch.where(inside, place, 0).long().clamp_(0, bins - 1)
    return torch.zeros(bins, dtype=self.dtype, device=self.device).index_add_(0, place, inside.to(self.dtype))


def _points(self: Tensor, dimensions: int) -> Tensor:
    if self.dim() < 2 or self.shape[-1] != dimensions:
        raise RuntimeError(
            f"torch.histogramdd: the innermost dimension of the input must be of {dimensions} coordinates, "
            f"but got input of sizes {list(self.shape)}"
        )
    # PyTorch's looks at no dtype of nothing
    if self.numel() and self.dtype not in (torch.float32, torch.float64):
        raise NotImplementedError(f"\"histogramdd\" not implemented for '{scalar_type(self.dtype)}'")
    return self.reshape(-1, dimensions)


def _check_weight(self: Tensor, weight: Tensor | None) -> None:
    if weight is not None and weight.shape != self.shape[:-1]:
        raise RuntimeError(
            "torch.histogramdd: if weight tensor is provided it should have the same shape as the input tensor excluding "
            f"its innermost dimension, but got input with shape {list(self.shape)} and weight with shape "
            f"{list(weight.shape)}"
        )


def _counts(points: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool) -> Tensor:
    """Weights in the cells of a grid; the last edge of each dimension belongs to the last bin."""
    for e in edges:
        if e.dtype != points.dtype:
            raise RuntimeError(
                f"torch.histogramdd: input tensor and bins tensors should have the same dtype, but got input with "
                f"dtype {points.dtype} and bins with dtype {e.dtype}"
            )
        if e.dim() != 1 or e.numel() == 0:
            raise RuntimeError(
                "torch.histogramdd: bins tensors should have one dimension and at least 1 element"
            )
    for d, e in enumerate(edges):
        if e.numel() == 1:
            raise RuntimeError(f"torch.histogram(): bins must be > 0, but got 0 for dimension {d}")
    if weight is None:
        weight = torch.ones(points.shape[0], dtype=points.dtype, device=points.device)
    elif weight.dtype != points.dtype or weight.numel() != points.shape[0]:
        raise RuntimeError("torch.histogramdd: if weight tensor is provided it should match the input")
    place = torch.zeros(points.shape[0], dtype=torch.int64, device=points.device)
    inside = torch.ones(points.shape[0], dtype=torch.bool, device=points.device)
    for d, e in enumerate(edges):
        x = points[:, d].contiguous()
        last = e.numel() - 1
        inside = inside & (x >= e[0]) & (x <= e[-1])
        at = (torch.searchsorted(e.contiguous(), x, right=True) - 1).clamp_(max=last - 1)
        place = place * last + at
    sizes = [e.numel() - 1 for e in edges]
    if math.prod(sizes) >= 1 << 63:
        raise RuntimeError("numel: integer multiplication overflow")
    flat = torch.zeros(math.prod(sizes), dtype=points.dtype, device=points.device)
    if flat.numel():
        weight = torch.where(inside, weight.reshape(-1), 0)
        flat.index_add_(0, torch.where(inside, place, 0), weight)
    result = flat.reshape(sizes)
    if density:
        result = result / result.sum()
        for d, e in enumerate(edges):
            shape = [1] * len(edges)
            shape[d] = sizes[d]
            result = result / e.diff().reshape(shape)
    return result


def _edges(points: Tensor, bins: Sequence[int], range: Sequence[float] | None) -> list[Tensor]:
    if any(b <= 0 for b in bins):
        raise RuntimeError("torch.histogramdd(): bins must be > 0")
    count = len(bins)
    if range is not None:
        if len(range) != 2 * count:
            raise RuntimeError(
                f"torch.histogramdd: for a {count}-dimensional histogram range should have {2 * count} elements, but "
                f"got {len(range)}"
            )
        low, high = [float(v) for v in range[::2]], [float(v) for v in range[1::2]]
    elif points.numel() == 0:
        low, high = [0.0] * count, [1.0] * count
    else:
        low, high = (v.tolist() for v in torch.aminmax(points, dim=0))
    result = []
    for d, (a, b) in enumerate(zip(low, high)):
        _check_range(a, b, f"torch.histogramdd: dimension {d}'s")
        if a > b:
            raise RuntimeError(f"torch.histogramdd: min should not exceed max, but got min {a:g} max {b:g}")
        if a == b:
            a, b = a - 0.5, b + 0.5
        result.append(torch.linspace(a, b, bins[d] + 1, dtype=points.dtype, device=points.device))
    return result


def _of_halves(self: Tensor, weight: Tensor | None) -> bool:
    return self.dtype in (torch.float16, torch.bfloat16) and (weight is None or weight.dtype == self.dtype)


def _counts_of_halves(self: Tensor, edges: Tensor, weight: Tensor | None, density: bool) -> Tensor:
    points = _points(self.float().reshape(-1, 1), 1)
    return _counts(points, [edges.float()], None if weight is None else weight.float(), density).to(
        self.dtype
    )


@composite
def histogram_of_counts(
    self: Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    """``histogram`` with a number of bins."""
    if range is not None and _of_halves(
        self, weight
    ):  # PyTorch's takes them where it need not look for the range
        (edges,) = _edges(self, [bins], range)
        return _counts_of_halves(self, edges, weight, density), edges
    points = _points(self.reshape(-1, 1), 1)
    (edges,) = _edges(points, [bins], range)
    return _counts(points, [edges], weight, density), edges


@composite
def histogram_of_edges(
    self: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    """``histogram`` with given edges."""
    if _of_halves(self, weight) and bins.dtype == self.dtype:
        return _counts_of_halves(self, bins, weight, density), bins.clone()
    return _counts(_points(self.reshape(-1, 1), 1), [bins], weight, density), bins.clone()


@composite
def histogramdd_edges(
    self: Tensor,
    bins: list[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> list[Tensor]:
    """Edges of ``histogramdd`` with numbers of bins."""
    return _edges(_points(self, len(bins)), bins, range)


@composite
def histogramdd_of_counts(
    self: Tensor,
    bins: list[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:
    """``histogramdd`` with numbers of bins."""
    points = _points(self, len(bins))
    _check_weight(self, weight)
    return _counts(points, _edges(points, bins, range), weight, density)


@composite
def histogramdd_of_edges(
    self: Tensor, bins: list[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    """``histogramdd`` with given edges."""
    points = _points(self, len(bins))
    _check_weight(self, weight)
    return _counts(points, bins, weight, density)
