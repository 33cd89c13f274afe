"""References for operators that PyTorch's CPU backend does not implement, and terms of sums that it does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import numpy as np
import torch

from macatensor.runtime.boxed import Value

Tensor = torch.Tensor
_T = TypeVar("_T")
_Formula = TypeVar("_Formula", bound=Callable[..., Value])

FORMULAS: dict[str, Callable[..., Value]] = {}


def formula(function: _Formula) -> _Formula:
    FORMULAS[function.__name__] = function
    return function


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """x Phi(x); Phi by erfc, where PyTorch's 1 + erf is 0 below -8.3."""
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return x * torch.sigmoid(2 * inner)
    tail: Tensor = torch.special.erfc(-x / math.sqrt(2))
    return x * tail / 2


def _gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    """Its slope, of which PyTorch's tails, too, are made from 1 + erf and 1 - tanh^2 and so are 0."""
    slope: Tensor
    if approximate == "tanh":
        scale = 2 * math.sqrt(2 / math.pi)
        inner = scale * (x + 0.044715 * x**3)
        tail = torch.sigmoid(inner)
        slope = tail + x * tail * torch.sigmoid(-inner) * scale * (1 + 3 * 0.044715 * x**2)
    else:
        density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        slope = torch.special.erfc(-x / math.sqrt(2)) / 2 + x * density
    better = grad * slope
    return torch.where(
        better.isfinite(), better, torch.ops.aten.gelu_backward(grad, x, approximate=approximate)
    )


# In float64 closer to the function than PyTorch's kernel.
def _erfinv(y: Tensor) -> Tensor:
    """A step of Newton's method in the complement, where PyTorch's own loses digits next to 1."""
    x = torch.erfinv(y)
    if not x.dtype.is_floating_point:
        return x
    slope = torch.exp(-x * x) * (2 / math.sqrt(math.pi))
    better = x - (torch.special.erfc(x.abs()) - (1 - y.abs())) / -slope * y.sign()
    return torch.where((y.abs() > 0.5) & better.isfinite() & (y.abs() < 1), better, x)


# How NumPy names an unscaled transform, one over sqrt(n) and one over n, in each direction. NumPy is the reference
# because MKL, whose transforms PyTorch's are, loses up to seven bits of float64 in lengths like 134 on some processors.
_Norm = Literal["backward", "ortho", "forward"]
_FORWARD: tuple[_Norm, ...] = ("backward", "ortho", "forward")
_INVERSE: tuple[_Norm, ...] = ("forward", "ortho", "backward")


def _fft_c2c(x: Tensor, dim: list[int], normalization: int, forward: bool) -> Tensor:
    transform, norms = (np.fft.fftn, _FORWARD) if forward else (np.fft.ifftn, _INVERSE)
    return torch.from_numpy(transform(x.resolve_conj().numpy(), axes=dim, norm=norms[normalization]))


def _fft_r2c(x: Tensor, dim: list[int], normalization: int, onesided: bool) -> Tensor:
    transform = np.fft.rfftn if onesided else np.fft.fftn
    return torch.from_numpy(transform(x.resolve_neg().numpy(), axes=dim, norm=_FORWARD[normalization]))


def _fft_c2r(x: Tensor, dim: list[int], normalization: int, last_dim_size: int) -> Tensor:
    sizes = [*(x.shape[d] for d in dim[:-1]), last_dim_size]
    norm = _INVERSE[normalization]
    return torch.from_numpy(np.fft.irfftn(x.resolve_conj().numpy(), s=sizes, axes=dim, norm=norm))


def _tanh_backward(grad: Tensor, y: Tensor) -> Tensor:
    """PyTorch's own 1 - y^2 loses as many digits as y has nines."""
    slope = (1 - y) * (1 + y)
    return grad * (slope.conj() if y.is_complex() else slope)


def named(*functions: Callable[..., _T]) -> dict[str, Callable[..., _T]]:
    """By the names under which rows of the op table ask for them."""
    return {f.__name__.removeprefix("_"): f for f in functions}


SHARPER = named(_gelu, _gelu_backward, _tanh_backward, _erfinv, _fft_c2c, _fft_r2c, _fft_c2r)


def _entropy_terms(
    x: Tensor, target: Tensor, weight: Tensor | None, positive: Tensor | None, reduction: int
) -> list[Tensor | None]:
    """(1 - t) |x| and -log sigmoid(x), which cancel where x is negative."""
    terms = (1 - target) * x.abs() + torch.nn.functional.softplus(-x) * (
        1 if positive is None else 1 + positive
    )
    terms = terms if weight is None else terms * weight
    return [terms if reduction == 0 else terms.mean() if reduction == 1 else terms.sum()]


def _fourier_terms(x: Tensor, dim: list[int], normalization: int, last: int) -> list[Tensor | None]:
    """What every element of a transform adds up: the magnitudes of its lines, once more for the half left out."""
    if not dim:
        return [None]
    size = [x.shape[d] for d in dim]
    halved = x.is_complex() and not isinstance(last, bool)
    if halved:
        size[-1] = last
    n = math.prod(size)
    scale = {0: 1.0, 1: 1 / math.sqrt(max(n, 1)), 2: 1 / max(n, 1)}[normalization]
    return [x.abs().sum(dim, keepdim=True) * (2 * scale if halved else scale)]


def _largest(t: Tensor) -> Tensor:
    return t.abs().max().nan_to_num() if t.numel() else t.new_zeros(())


def _filter_terms(x: Tensor, *rest: Value) -> list[Tensor | None]:
    """A coordinate's rounding moves a weight by eps, also one that is nearly zero."""
    return [x.abs().max().expand(())] if x.numel() else [None]


def _grid_terms(x: Tensor, *rest: Value) -> list[Tensor | None]:
    return [_largest(x)]


def _grid_gradients(grad: Tensor, x: Tensor, *rest: Value) -> list[Tensor | None]:
    """Of a coordinate all channels at a few taps add up, with the image's extent as a factor."""
    taps = x.shape[1] * max(x.shape[2:])
    return [4 * _largest(grad), taps * _largest(grad) * _largest(x)]


# Terms that cancel inside where no operand shows it: saturated gates are 1 whatever their arguments.
def _layer_terms(x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, hx: Tensor, cx: Tensor,
                 *rest: Value) -> list[Tensor]:  # fmt: skip
    """The largest sum of a gate's terms, and the state it is added to."""
    state = hx.abs().max().clamp(min=1)
    gates = (x.abs() @ w_ih.abs().t()).max() + state * w_hh.abs().sum(1).max()
    return [(gates + b_ih.abs().max() + b_hh.abs().max()) * (1 + _largest_state(cx))] * 4


def _largest_state(cx: Tensor) -> Tensor:
    return cx.abs().max() if cx.numel() else cx.new_zeros(())  # no cell state but an LSTM's


def _layer_gradient_terms(x: Tensor, w_ih: Tensor, w_hh: Tensor, *operands: Value) -> list[Tensor]:
    """A gate kept as float32 is near 1 or 0 to one rounding of 1, which is what its slope is wrong by."""
    cx, gradients = operands[3], operands[7:10]
    largest = sum(g.abs().max() for g in gradients if g is not None)
    weights = torch.maximum(w_ih.abs().max(), w_hh.abs().max())
    return [torch.as_tensor(largest * (1 + weights) * (1 + x.abs().max()) * (1 + _largest_state(cx)))] * 7


def _lstm_cell_terms(x: Tensor, h: Tensor, cx: Tensor, *biases: Value) -> list[Tensor]:
    return [1 + cx.abs(), 1 + cx.abs()]


def _gru_cell_terms(x: Tensor, h: Tensor, hx: Tensor, *biases: Value) -> list[Tensor]:
    return [1 + hx.abs()]


def _log_softmax_terms(x: Tensor, dim: int, half: bool) -> list[Tensor]:
    """x - max - log(sum): a rounding of the sum is as large in its logarithm, however small that is."""
    return [x.log_softmax(dim).abs() + 1 + (x - x.amax(dim, keepdim=True)).logsumexp(dim, keepdim=True)]


def _log_softmax_gradient_terms(grad: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> list[Tensor]:
    """grad - softmax * sum(grad) cancels where one gradient is the sum."""
    if not grad.dim():
        return [grad.abs()]
    return [grad.abs() + output.exp() * grad.sum(dim, keepdim=True).abs()]


def _softmax_gradient_terms(grad: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> list[Tensor]:
    if not grad.dim():
        return [grad.abs()]
    return [output * (grad.abs() + (grad * output).sum(dim, keepdim=True).abs())]


def _mixed_taps(
    weight: Tensor, stride: list[int], dilation: list[int], transposed: bool, groups: int
) -> Tensor | None:
    """Squares as minimal filtering mixes them, where it pays (16 channels): the nine taps meet all elements of their
    tile, which lie up to two to each side, so it has 5 x 5. Of these products' roundings, which are independent, the
    root of the sum of squares is what lies in a result however small its own terms are."""
    plain = all(s == 1 for s in (*stride, *dilation, groups)) and not transposed
    if weight.dim() != 4 or weight.shape[2:] != (3, 3) or min(weight.shape[:2]) < 16 or not plain:
        return None
    return weight.square().sum((2, 3), keepdim=True).expand(*weight.shape[:2], 5, 5)


def _wider(padding: list[int]) -> list[int]:
    return [p + 1 for p in padding]


def _convolution_floor(x: Tensor, w: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int],
                       transposed: bool, output_padding: list[int], groups: int) -> list[Tensor | None]:  # fmt: skip
    mixed = _mixed_taps(w, stride, dilation, transposed, groups)
    if mixed is None:
        return [None]
    squares: Tensor = torch.ops.aten.convolution(
        x.square(), mixed, None, stride, _wider(padding), dilation, transposed, output_padding, groups
    )
    return [squares.clamp(min=0).sqrt()]


def _convolution_gradient_floors(grad: Tensor, x: Tensor, w: Tensor, biases: list[int] | None, stride: list[int], padding: list[int],
                                 dilation: list[int], transposed: bool, output_padding: list[int], groups: int,
                                 mask: list[bool]) -> list[Tensor | None]:  # fmt: skip
    mixed = _mixed_taps(w, stride, dilation, transposed, groups)
    if mixed is None:
        return [None] * 3
    into, of_weight, _ = torch.ops.aten.convolution_backward(
        grad.square(), x.square(), mixed, None, stride, _wider(padding), dilation, transposed, output_padding, groups,
        [mask[0], mask[1], False],
    )  # fmt: skip
    # a tap of the weight's gradient adds up four of a tile's sums at least: twice the root
    return [
        into.clamp(min=0).sqrt() if mask[0] else None,
        2 * of_weight.sum((2, 3), keepdim=True).clamp(min=0).sqrt() if mask[1] else None,
        None,
    ]


_Terms = Callable[..., Sequence[Tensor | None]]
FLOORS: dict[str, _Terms] = named(
    _convolution_floor, _convolution_gradient_floors, _fourier_terms, _filter_terms, _grid_terms, _grid_gradients,
    _layer_terms, _layer_gradient_terms, _lstm_cell_terms, _gru_cell_terms, _entropy_terms, _log_softmax_terms,
    _log_softmax_gradient_terms, _softmax_gradient_terms,
)  # fmt: skip


def _softmax_terms(x: Tensor, dim: int, *rest: Value) -> list[Tensor]:
    """x - max rounds by half an ULP of itself, which is a relative error of its exponential: beyond 8 it counts."""
    if not x.numel() or not x.dim():
        return [x.softmax(dim)]
    return [x.softmax(dim) * ((x.amax(dim, keepdim=True) - x) / 8).clamp(min=1).nan_to_num(posinf=1)]


# The same of PyTorch's own kernels: 1 + erf and 1 + tanh lose the negative side, and where e^-x overflows they give 0.
def _argument(x: Tensor, **rest: Value) -> list[Tensor]:
    return [x.abs()]


def _gradient(grad: Tensor, *rest: Value) -> list[Tensor]:
    return [grad.abs()]


def _gradient_and_argument(grad: Tensor, x: Tensor, **rest: Value) -> list[Tensor]:
    return [grad.abs() * (1 + x.abs())]


def _overflown(x: Tensor) -> list[Tensor]:
    return [(1 + x.abs()) * 2.0**-100]


def _overflown_gradient(grad: Tensor, x: Tensor) -> list[Tensor]:
    return [grad.abs() * (1 + x.abs()) * 2.0**-100]


# Magnitudes that a bound in ULP counts from, where they are larger than the result's.
MAGNITUDES: dict[str, _Terms] = named(
    _softmax_terms, _argument, _gradient, _gradient_and_argument, _overflown, _overflown_gradient
)


@formula
def _stack(tensors: list[Tensor], dim: int = 0) -> Tensor:
    """PyTorch's own kernel of this internal operator writes past its result for some strides."""
    return torch.stack(tensors, dim)


@formula
def _efficientzerotensor(size: list[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """PyTorch's own has no memory to compare."""
    return torch.zeros(size, dtype=dtype, device=device)


def _scores(query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    scores = query @ key.transpose(-2, -1) * scale
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~allowed, -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
    return scores


@formula
def sdpa_forward(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> tuple[Tensor, ...]:
    """Output and logsumexp of softmax(q k^T scale) v; logsumexp of halves in float32."""
    scores = _scores(query, key, mask, is_causal, scale)
    logsumexp = scores.logsumexp(-1)
    return (scores - logsumexp.unsqueeze(-1)).exp().nan_to_num(nan=0.0) @ value, logsumexp.to(
        torch.promote_types(logsumexp.dtype, torch.float32)
    )


@formula
def sdpa_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    output: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, ...]:
    """Gradients of query, key, value (FlashAttention-2, arXiv:2307.08691, section 2.3)."""
    scores = _scores(query, key, mask, is_causal, scale)
    weights = (scores - logsumexp.to(scores.dtype).unsqueeze(-1)).exp().nan_to_num(nan=0.0)
    inner = grad @ value.transpose(-2, -1) - (grad * output).sum(-1, keepdim=True)
    of_scores = weights * inner * scale
    return of_scores @ key, of_scores.transpose(-2, -1) @ query, weights.transpose(-2, -1) @ grad


# PyTorch's own of these are for float32 only.
@formula
def _grid_sampler_2d_cpu_fallback(*args: Value) -> Tensor:
    result: Tensor = torch.ops.aten.grid_sampler_2d.default(*args)
    return result


@formula
def _grid_sampler_2d_cpu_fallback_backward(*args: Value) -> tuple[Tensor, ...]:
    gradients: tuple[Tensor, ...] = torch.ops.aten.grid_sampler_2d_backward.default(*args, [True, True])
    return gradients
