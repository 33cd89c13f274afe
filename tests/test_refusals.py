"""What the CPU refuses, or computes in its own way, is so on maca, at the first call of a signature and at the next."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

Call = Callable[[str], Any]
F = torch.nn.functional


def _floats(device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(6, dtype=dtype, device=device)


def _truths(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    x = _floats(device)
    return x > 2, x > 1


def _indices(device: str, *index: int) -> torch.Tensor:
    return torch.tensor(index, device=device)


def _infinite(device: str, count: int) -> list[torch.Tensor]:
    """Vectors of complex numbers, infinite and NaN at other places each."""
    x = torch.tensor([complex(math.inf, 1), complex(1, math.nan), complex(-math.inf, math.inf), 1 + 2j, 0])
    return [x.roll(k).to(device) for k in range(count)]


def _power_in_place(device: str) -> torch.Tensor:
    truths = _truths(device)[0]
    torch._foreach_pow_([truths], False)
    return truths


def _gradient(function: Callable[[torch.Tensor], torch.Tensor], device: str) -> torch.Tensor:
    x = (_floats(device) - 2.5).requires_grad_()
    function(x * 1).sum().backward()
    assert x.grad is not None
    return x.grad


def _bytes(device: str) -> torch.Tensor:
    return torch.tensor([0, 1], dtype=torch.uint8, device=device)


def _image(device: str) -> torch.Tensor:
    return torch.arange(216, dtype=torch.float32).view(2, 3, 6, 6).to(device)


def _infinite(device: str) -> torch.Tensor:
    return torch.tensor([complex(float("inf"), 0), 1j, complex(0, float("inf"))], device=device)


def _parts(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x).mul(2**20).round()


def _volume(device: str) -> torch.Tensor:
    x = torch.arange(256, dtype=torch.float32).view(1, 4, 4, 4, 4)
    return x.to(device).to(memory_format=torch.channels_last_3d)


def _norms(name: str, input: torch.dtype, first: torch.dtype, other: torch.dtype) -> Call:
    def call(device: str) -> torch.Tensor:
        x = _image(device).to(input)
        one, two = (torch.ones(3, dtype=dtype, device=device) for dtype in (first, other))
        if name == "batch":
            return F.batch_norm(x, one, one, two, two)
        if name == "trained batch":
            return F.batch_norm(x, one, one, two, two, True)
        if name == "instance":
            return F.instance_norm(x, weight=one, bias=two)
        if name == "group":
            return F.group_norm(x, 3, one, two)
        return F.layer_norm(x.transpose(1, 3).contiguous(), (3,), one, two)

    return call


_DTYPES = (torch.float32, torch.float64, torch.float16)
CALLS: dict[str, Call] = {
    **{
        f"{name} norm, {' '.join(str(d).removeprefix('torch.') for d in dtypes)}": _norms(name, *dtypes)
        for name in ("batch", "trained batch", "instance", "group", "layer")
        for dtypes in itertools.product(_DTYPES, repeat=3)
        if len(set(dtypes)) > 1 and dtypes[0] is not torch.float16  # whose parameters may be float32
    },
    "ctc_loss, of nothing": lambda d: F.ctc_loss(
        torch.ones(0, 2, 4, device=d), _indices(d, 1, 1)[:, None], (0, 0), (1, 1)
    ),
    "softshrink, half": lambda d: F.softshrink(_floats(d, torch.half), 1e6),
    "softshrink, NaN": lambda d: F.softshrink(_floats(d), float("nan")),
    "softshrink, negative": lambda d: F.softshrink(_floats(d), -1.0),
    "softshrink.out": lambda d: torch.ops.aten.softshrink.out(_floats(d), -1.0, out=_floats(d)),
    "histc, half": lambda d: torch.histc(_floats(d, torch.half), 4, 0, 1e6),
    "histc, float32": lambda d: torch.histc(_floats(d), 4, -1e39, 1e39),
    "histc, no bins": lambda d: torch.histc(_floats(d), 0),
    "histc, reversed": lambda d: torch.histc(_floats(d), 4, 3, 1),
    "histc": lambda d: torch.histc(_floats(d), 4, 0, 6),
    "isin, bool": lambda d: torch.isin(*_truths(d)),
    "isin, bool and a number": lambda d: torch.isin(_truths(d)[0], True),
    "isin, complex": lambda d: torch.isin(_floats(d) + 0j, _floats(d) + 0j),
    "isin, inverted": lambda d: torch.isin(_floats(d), _floats(d)[::2], invert=True),
    "isin, a number": lambda d: torch.isin(2.0, _floats(d)),
    "softmax of a number": lambda d: torch.softmax(_floats(d)[0], -1),
    "softmax of a number, no such dimension": lambda d: torch.softmax(_floats(d)[0], -3),
    "pow, bool": lambda d: torch.pow(_truths(d)[0], -1),
    "pow, bool squared": lambda d: torch.pow(_truths(d)[0], 2),
    "pow_": lambda d: _floats(d, torch.int32).pow_(-2),
    "add, truths": lambda d: torch.add(*_truths(d), alpha=-1),
    "add, truths, 256": lambda d: torch.add(*_truths(d), alpha=256),
    "add, truths, none": lambda d: torch.add(*_truths(d), alpha=0),
    "add_, truths": lambda d: _truths(d)[0].add_(_truths(d)[1], alpha=-1),
    "add, truths and integers": lambda d: torch.add(_truths(d)[0], _floats(d, torch.int32), alpha=-1),
    "add, truths into integers": lambda d: torch.add(*_truths(d), alpha=-1, out=_floats(d, torch.int64)),
    "add, fraction": lambda d: torch.add(*_truths(d), alpha=1.5),
    "leaky_relu_, negative": lambda d: _gradient(lambda x: F.leaky_relu_(x, -0.5), d),
    "elu_, negative": lambda d: _gradient(lambda x: F.elu_(x, -0.5), d),
    "celu_, negative": lambda d: _gradient(lambda x: torch.celu_(x, -0.5), d),
    "rrelu_, negative": lambda d: _gradient(lambda x: F.rrelu_(x, -0.5, -0.1), d),
    "leaky_relu, negative": lambda d: _gradient(lambda x: F.leaky_relu(x, -0.5), d),
    "leaky_relu_": lambda d: _gradient(lambda x: F.leaky_relu_(x, 0.5), d),
    "cross_entropy, bytes": lambda d: (
        _gradient(lambda x: F.cross_entropy(x.view(2, 3), _bytes(d)), d).mul(64).round()
    ),
    "nll_loss, bytes": lambda d: _gradient(lambda x: F.nll_loss(x.view(2, 3), _bytes(d)), d),
    "batch_norm, empty": lambda d: _gradient(
        lambda x: torch.ops.aten._native_batch_norm_legit.no_stats(
            x[:0].view(0, 3), None, None, True, 0.1, 1e-5
        )[0],
        d,
    ),
    "where, bytes": lambda d: torch.where(_bytes(d), _floats(d)[:2], 7.0),
    "where, integers": lambda d: torch.where(_bytes(d).int(), 1.0, 7.0),
    "written through bytes": lambda d: _floats(d)[:2].index_put_((_bytes(d),), torch.ones(1, device=d)),
    "several through bytes": lambda d: _floats(d)[:2].index_put_((_bytes(d) + 1,), torch.ones(2, device=d)),
    "nonzero, into floats": lambda d: torch.nonzero(_floats(d), out=_floats(d)),
    "nonzero_static, into floats": lambda d: torch.nonzero_static(_floats(d), size=2, out=_floats(d)),
    "randperm, half": lambda d: torch.randperm(2049, dtype=torch.half, device=d).sort().values,
    "randperm, half, more": lambda d: torch.randperm(2050, dtype=torch.half, device=d),
    "randperm, complex": lambda d: torch.randperm(4, dtype=torch.complex64, device=d),
    "arange, complex": lambda d: torch.arange(6, dtype=torch.complex64, device=d),
    "arange, bool": lambda d: torch.arange(2, dtype=torch.bool, device=d),
    "arange, too many": lambda d: torch.arange(-1, 2, 1e-320, device=d),
    "conv2d, no channels": lambda d: F.conv2d(
        _image(d)[:, :0], torch.ones(4, 0, 3, 3, device=d), torch.ones(4, device=d)
    ),
    "conv2d, no filters": lambda d: F.conv2d(_image(d), torch.ones(0, 3, 3, 3, device=d)),
    "conv1d, no channels": lambda d: F.conv1d(_image(d)[0, :0], torch.ones(4, 0, 3, device=d)),
    "conv2d, no rows": lambda d: F.conv2d(_image(d)[:, :, :0], torch.ones(4, 3, 3, 3, device=d), padding=2),
    "conv2d, no channels, gradient": lambda d: _gradient(
        lambda x: F.conv2d(x[:0].view(2, 0, 6, 6), x.new_ones(4, 0, 3, 3)).sum() + x.sum(), d
    ),
    "lstsq, one matrix of a batch": lambda d: torch.linalg.lstsq(
        torch.eye(3, device=d)[None] * 2, _image(d)[0, 0, :3, :3]
    )[0],
    "lstsq, a batch": lambda d: torch.linalg.lstsq(
        torch.eye(3, device=d).expand(2, 3, 3), _image(d)[0, 0, :3, :3]
    )[0],
    "max_pool3d, strides": lambda d: torch.tensor(F.max_pool3d(_volume(d)[0], 2).stride()),
    "max_pool3d": lambda d: F.max_pool3d(_volume(d)[0], 2),
    "__ilshift__": lambda d: _floats(d, torch.int32).__ilshift__(2),
    "__irshift__": lambda d: _floats(d, torch.int32).__irshift__(_floats(d, torch.int32)),
    "__ilshift__, floats": lambda d: _floats(d).__ilshift__(2),
    "sum into bool": lambda d: torch.stack(
        [_floats(d).sum(dtype=torch.bool), (_floats(d) * 0).sum(dtype=torch.bool)]
    ),
    "prod into bool": lambda d: torch.prod(_image(d)[0, 0], 0, dtype=torch.bool),
    "logcumsumexp, complex": lambda d: _parts(torch.logcumsumexp(_floats(d).double() * (1 - 2j) - 1, 0)),
    "logcumsumexp, -inf": lambda d: _parts(torch.logcumsumexp((_floats(d).double() + 0j).log(), 0)),
    "adaptive_max_pool2d, integers": lambda d: F.adaptive_max_pool2d(_image(d).long(), 2),
    "clamp, bool": lambda d: torch.clamp(_truths(d)[0], False, True),
    "layer_norm, integers": lambda d: F.layer_norm(_floats(d, torch.int64), (6,)),
    "cummax, dimension": lambda d: torch.cummax(_floats(d)[0], -5)[0],
    "unfold, negative padding": lambda d: F.unfold(_image(d), 2, padding=-1),
    "select_scatter, sizes": lambda d: torch.select_scatter(_image(d), _image(d)[0, 0, 0], 0, 1),
    "slice_scatter, sizes": lambda d: torch.slice_scatter(_image(d), _image(d)[0], 0, 0, 2),
    "index_add, bytes": lambda d: torch.index_add(_floats(d), 0, _bytes(d), _floats(d)[:2]),
    "binary_cross_entropy, dtypes": lambda d: F.binary_cross_entropy(_floats(d) / 9, _floats(d, torch.half)),
    "nll_loss, weight": lambda d: F.nll_loss(
        _image(d)[0, 0, :2, :3], _bytes(d).long(), torch.ones(3, device=d).double()
    ),
    "conv_transpose2d, output_padding": lambda d: F.conv_transpose2d(
        _image(d), torch.ones(3, 3, 2, 2, device=d), output_padding=-1
    ),
    "upsample_nearest, no images": lambda d: F.interpolate(
        _image(d)[:0, :, 0], scale_factor=1.7, mode="nearest-exact"
    ),
    "pow, of one into integers": lambda d: torch.pow(1, _floats(d), out=_floats(d, torch.int32)),
    "pow, of two into integers": lambda d: torch.pow(2, _floats(d), out=_floats(d, torch.int32)),
    "empty, preserve_format": lambda d: torch.empty(0, device=d, memory_format=torch.preserve_format),
    "fused_sgd, of nothing": lambda d: torch.ops.aten._fused_sgd(
        [],
        [],
        [_floats(d)],
        weight_decay=0,
        momentum=1,
        lr=1,
        dampening=0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )[0],  # fmt: skip
    "cat, unsigned": lambda d: torch.cat([_bytes(d), _bytes(d).to(torch.uint32)]),
    "stack, unsigned": lambda d: torch.stack([_bytes(d), _bytes(d).to(torch.uint32)]),
    "adaptive_avg_pool3d_backward, rank": lambda d: torch.ops.aten._adaptive_avg_pool3d_backward(
        _image(d)[0], _image(d)[0]
    ),
    "binomial, truth": lambda d: torch.binomial(_floats(d), _truths(d)[0]),
    "convolution_backward, of vectors": lambda d: torch.ops.aten.convolution_backward(
        _image(d)[0, 0], _image(d)[0, 0], _floats(d), None, [1], [0], [1], False, [0], 1, [True, False, True]
    )[0],
    "foreach_pow, of integers": lambda d: torch._foreach_pow([_floats(d), _floats(d, torch.int32)], -1)[1],
    "foreach_pow, of no integers": lambda d: torch._foreach_pow([_floats(d, torch.int32)[:0]], [-1])[0],
    "binary_cross_entropy of a target outside": lambda d: torch.nn.functional.binary_cross_entropy(
        torch.full((3,), 0.5, device=d), torch.tensor([0.0, 1.5, 1.0], device=d)
    ),
    "smooth_l1_loss, broadcast": lambda d: _gradient(
        lambda x: torch.ops.aten.smooth_l1_loss(x, _image(d)[0, 0]), d
    ),
    "mse_loss, broadcast": lambda d: _gradient(lambda x: torch.ops.aten.mse_loss(x, _image(d)[0, 0]), d),
    "huber_loss, broadcast": lambda d: _gradient(lambda x: torch.ops.aten.huber_loss(x, _image(d)[0, 0]), d),
    "eigvalsh, one infinity": lambda d: torch.linalg.eigvalsh(torch.full((1, 1), float("inf"), device=d)),
    "max, of no rows": lambda d: torch.empty(0, 0, 3, device=d).max(0)[0],
    "min, of no rows": lambda d: torch.empty(0, 0, 3, device=d).min(0)[0],
    "mode, of no rows": lambda d: torch.empty(0, 0, 3, device=d).mode(0)[0],
    "diagonal_scatter, sizes": lambda d: torch.diagonal_scatter(_image(d), _floats(d)[:1]),
    "weight_norm, of a number": lambda d: torch._weight_norm(_floats(d)[0], _floats(d)[1]),
    "cdist, of halves": lambda d: torch.cdist(*[torch.ones(30, 4, dtype=torch.half, device=d)] * 2),
    "histogram, of halves": lambda d: torch.histogram(_floats(d, torch.half), _floats(d, torch.half))[0],
    "view_copy, of the host": lambda d: torch.ops.aten.view_copy.out(_floats("cpu"), [2, 3], out=_floats(d)),
    "matmul, into what it resizes": lambda d: torch.matmul(
        _floats(d), _image(d)[:1, 0], out=_image(d)[:1, 0, :0]
    ),
    "logspace, of one step": lambda d: torch.logspace(0.5, 2, 1, 1e-5, dtype=torch.int64, device=d),
    "smooth_l1_loss, beta": lambda d: F.smooth_l1_loss(_floats(d), _floats(d), beta=-1.0),
    "isin, nothing": lambda d: torch.isin(_floats(d)[:0], _floats(d)[:0], assume_unique=True),
    "isin, in nothing": lambda d: torch.isin(_floats(d), _floats(d)[:0], assume_unique=True, invert=True),
    "tile, nothing": lambda d: _floats(d)[:0].view(0, 3).tile(1, 2**31),
    "instance_norm, no deviation": lambda d: F.instance_norm(_image(d) * 0, eps=0.0),
    "isin, infinite and NaN": lambda d: torch.isin(
        _floats(d) / 0, torch.cat([torch.full((40,), float("nan"), device=d), 1 / _floats(d)])
    ),
    "linspace, bytes": lambda d: torch.linspace(1, -1, 5, dtype=torch.uint8, device=d),
    "histc, complex bounds": lambda d: torch.histc(_floats(d), 4, 1 - 2j, 3),
    "histc, complex but real": lambda d: torch.histc(_floats(d), 4, 1 + 0j, 3),
    "clamp_min, negative bytes": lambda d: torch._foreach_clamp_min([_bytes(d)], [-1])[0],
    "clamp_max, negative bytes": lambda d: torch._foreach_clamp_max([_bytes(d)], -1)[0],
    "addcdiv, bool": lambda d: torch.addcdiv(_floats(d), *_truths(d)),
    "cdist, two dtypes": lambda d: torch.cdist(_floats(d)[None], _floats(d, torch.float64)[None], p=3.0),
    "addcdiv, lists of bool": lambda d: torch._foreach_addcdiv([_floats(d)], *[[t] for t in _truths(d)])[0],
    "addcmul, lists of integers by fractions": lambda d: torch._foreach_addcmul_(
        [_indices(d, 1, 2)], [_floats(d)[0, :2]], [_floats(d)[0, :2]], torch.tensor([2.5])
    ),
    "batch_norm, weights with sides of 1": lambda d: F.batch_norm(
        _image(d), torch.zeros(3, device=d), torch.ones(3, device=d), *[_floats(d)[None, :3]] * 2, eps=0.0
    ),
    "batch_norm, momentum and infinite statistics": lambda d: (
        torch.batch_norm_update_stats(_image(d), mean := torch.full((3,), float("inf"), device=d), None, 0.1)
        and mean
    ),
    "linspace, a complex tensor": lambda d: torch.linspace(_infinite(d)[1], 0, 3, device=d),
    "mean, of which one part is infinite": lambda d: torch.view_as_real(_infinite(d)[:2].mean()).isnan(),
    "searchsorted, a side": lambda d: torch.searchsorted(_floats(d), _floats(d), side="bad"),
    "searchsorted, a place too far": lambda d: torch.searchsorted(
        _floats(d), _floats(d), sorter=_indices(d, 0, 1, 2, 3, 4, 6)
    ),
    "pow, 0": lambda d: _infinite(d).pow(0),
    "pow, of 1": lambda d: torch.pow(1, _infinite(d)),
    "pow, complex 0": lambda d: torch.pow(1 / _floats(d), 0j),
    "pow, real exponents": lambda d: torch.pow(1 + 0j, 1 / _floats(d)),
    "pow, of lists": lambda d: torch._foreach_pow([_infinite(d)], [0])[0],
    "pow, of 1 and lists": lambda d: torch._foreach_pow(1, [_infinite(d)])[0],
    "unique_consecutive, one dimension": lambda d: torch.ops.aten.unique_consecutive(_bytes(d), dim=0)[1],
    "index_reduce, sum": lambda d: _floats(d).index_reduce(0, _bytes(d).long(), _floats(d)[:2], "sum"),
    "adaptive_avg_pool3d, nothing": lambda d: F.adaptive_avg_pool3d(_volume(d)[:, :, :0], (2, 1, 3)),
    "mse_loss, the largest": lambda d: _gradient(lambda x: F.mse_loss(x * 1e38, -x), d),
    "set_, conjugate": lambda d: _floats(d, torch.cfloat).conj().set_(_infinite(d)[:1]),
    "set_, of a conjugate": lambda d: _floats(d, torch.cfloat).set_(_infinite(d)[:1].conj()),
    "set_, conjugate of nothing": lambda d: _floats(d, torch.cfloat).conj().set_(),
    "attention of one back end, host": lambda d: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        _image("cpu")[:0], _image(d)[:0], _image(d)[0]
    )[0],
    "pow, of truths by a truth": lambda d: _truths(d)[0].pow(True),
    "pow, of truths by 0 as a truth": lambda d: _truths(d)[0].pow(False),
    "pow, of lists of truths": lambda d: torch._foreach_pow([_truths(d)[0]], True)[0],
    "pow, of lists of truths by several": lambda d: torch._foreach_pow([*_truths(d)], [False, True])[1],
    "pow, of lists of truths in place": lambda d: _power_in_place(d),
    "index_select, by a matrix": lambda d: _floats(d).index_select(0, _indices(d, 0)[None]),
    "index_fill, by int32": lambda d: _floats(d).index_fill(0, _indices(d, 0).int(), 1),
    "index_fill, by int32 with a tensor": lambda d: _floats(d).index_fill(
        0, _indices(d, 0).int(), _floats(d)[1]
    ),
    "index_reduce, of a number": lambda d: (
        _floats(d).view(2, 3).index_reduce(1, _indices(d, 0)[0], _floats(d)[0], "prod")
    ),
    "index_reduce, of other sizes": lambda d: (
        _floats(d).view(2, 3).index_reduce(0, _indices(d, 0), _floats(d)[:1], "prod")
    ),
    "index, of nothing and out of bounds": lambda d: _floats(d).view(6, 1)[:, :0][_indices(d, 9)],
    "index, of a side of nothing": lambda d: _floats(d)[:0][_indices(d, 0)],
    "index_put, of nothing and out of bounds": lambda d: (
        _floats(d).view(6, 1)[:, :0].index_put((_indices(d, 9),), _floats(d)[0])
    ),
    "index_put, of a sum of nothing": lambda d: (
        _floats(d).view(6, 1)[:, :0].index_put((_indices(d, 9),), _floats(d)[0], accumulate=True)
    ),
    "index_fill, of nothing and out of bounds": lambda d: (
        _floats(d).view(6, 1)[:, :0].index_fill(0, _indices(d, 9), 1)
    ),
    "eq, of float8 and what it rounds": lambda d: (_floats(d) / 10).to(torch.float8_e4m3fn) == 0.1,
    "ne, of float8 and what it rounds": lambda d: (_floats(d) / 10).to(torch.float8_e4m3fn) != 0.1,
    "isin, of float8 and what it rounds": lambda d: torch.isin(
        (_floats(d) / 10).to(torch.float8_e4m3fn), 0.1
    ),
    "tril_indices, into as many elements": lambda d: torch.ops.aten.tril_indices.out(
        2, 5, out=_floats(d, torch.int64).view(3, 2)
    ),
    "tril_indices, of nothing": lambda d: torch.ops.aten.tril_indices.out(
        0, 5, out=_floats(d, torch.int64)[:0].view(3, 1, 0)
    ),
    "block_diag, with a number": lambda d: torch.block_diag(
        _floats(d, torch.uint8), _floats(d, torch.int16)[1]
    ),
    "block_diag, of dtypes that are not promoted": lambda d: torch.block_diag(
        _floats(d, torch.uint8).to(torch.uint32), _floats(d, torch.int64)
    ),
    "linspace, of one step from infinity": lambda d: torch.linspace(-float("inf"), 4, 1, device=d),
    "logspace, of one step from infinity": lambda d: torch.logspace(-float("inf"), 4, 1, device=d),
    "elu, of 0 by infinity": lambda d: torch.ops.aten.elu(_floats(d) - 3, 1.0, 1.0, -float("inf")),
    "batch norm, of one element a channel": lambda d: torch.ops.aten._native_batch_norm_legit_functional(
        _floats(d)[None], None, None, _floats(d), _floats(d), True, 0.1, 0.1
    )[1],
    "batch norm, of one element a channel, in place": lambda d: torch.native_batch_norm(
        _floats(d)[None], None, None, _floats(d), _floats(d), True, 0.1, 0.1
    )[2],
    "gradient of group norm, of no channels": lambda d: _gradient(
        lambda x: torch.group_norm(x.view(6, 1)[:, :0], 3), d
    ),
    "gradient of group norm, of no samples": lambda d: _gradient(
        lambda x: torch.group_norm(x.view(1, 6, 1)[:0], 3), d
    ),
    "group norm, of other sizes": lambda d: torch.native_group_norm(_floats(d), None, None, 1, -1, 3, 1, 0.1)[
        0
    ],
    "add, into integers": lambda d: torch.add(_floats(d), 1, out=_floats(d, torch.int32)),
    "threshold, bytes by a negative number": lambda d: F.threshold(_bytes(d), -2, 1),
    "threshold, bytes to a negative number": lambda d: F.threshold(_bytes(d), 0, -2),
    "index_add, of nothing and out of bounds": lambda d: (
        _floats(d).view(6, 1)[:, :0].index_add(0, _indices(d, 9), _floats(d).view(6, 1)[:1, :0])
    ),
    "index_add, rows into none": lambda d: (
        _floats(d).view(2, 3)[:0].index_add(0, _indices(d, 1), _floats(d).view(2, 3)[:1])
    ),
    "index_reduce, rows into none": lambda d: (
        _floats(d).view(2, 3)[:0].index_reduce(0, _indices(d, 1), _floats(d).view(2, 3)[:1], "amax")
    ),
    "index_fill, of no rows of nothing": lambda d: (
        _floats(d).view(6, 1)[:0, :0].index_fill(0, _indices(d, 9), 1)
    ),
    "index_fill, by a vector": lambda d: _floats(d).index_fill(0, _indices(d, 0), _floats(d)[:1]),
    "nll_loss, weight of one sample": lambda d: torch.ops.aten.nll_loss_forward(
        _floats(d), _indices(d, 1)[0], None, 0, 5
    )[1],
    "nll_loss, weight of one ignored sample": lambda d: torch.ops.aten.nll_loss_forward(
        _floats(d), _indices(d, 1)[0], None, 0, 1
    )[1],
    "batch_norm_update_stats, infinity first": lambda d: torch.batch_norm_update_stats(
        -1 / _floats(d).view(6, 1), None, None, 0.1
    )[0],
    "batch_norm_update_stats, infinity last": lambda d: torch.batch_norm_update_stats(
        -1 / _floats(d).view(6, 1).flip(0), None, None, 0.1
    )[0],
    **{
        f"pow, of lists by {power}": lambda d, power=power: torch.view_as_real(
            torch._foreach_pow([_infinite(d)], power)[0]
        ).nan_to_num(7.0)
        for power in (0.5, 2, 3, -1, -2)
    },
    "pow, of lists by 0.5, infinite": lambda d: torch._foreach_pow([-1 / _floats(d)], 0.5)[0].isnan(),
    "pow, of lists by -0.5, infinite": lambda d: torch._foreach_pow([-1 / _floats(d)], -0.5)[0].isnan(),
    "pow, of lists by -0.5, negative zeros": lambda d: torch._foreach_pow([-_floats(d)], -0.5)[0][:1],
    "index_fill, expanded by a negative index": lambda d: (
        _floats(d)[:2, None].expand(2, 3).index_fill_(0, _indices(d, -1), 7)
    ),
    "index_fill, by a vector of another dtype": lambda d: _floats(d).index_fill(
        0, _indices(d, 0), _indices(d, 1)
    ),
    "masked_fill, by a vector of another dtype": lambda d: _floats(d).masked_fill(
        _truths(d)[0], _indices(d, 1)
    ),
    "histogramdd, weights of other sizes": lambda d: torch.histogramdd(
        _image(d), [2] * 6, weight=_image(d)[:, :, 0].mT
    )[0],
    "masked_softmax, of other sizes": lambda d: torch._masked_softmax(
        _floats(d).view(2, 3), _truths(d)[0][:3], 1
    ),
    "gradient of masked_softmax, of other sizes": lambda d: torch.ops.aten._masked_softmax_backward(
        _floats(d).view(2, 3), _floats(d).view(2, 3), _truths(d)[0][:3], 1
    ),
    "adaptive_avg_pool2d, three sizes": lambda d: torch.ops.aten._adaptive_avg_pool2d(_image(d), [2, 2, 2]),
    "smooth_l1_loss, beta of NaN": lambda d: F.smooth_l1_loss(_floats(d), _floats(d), beta=float("nan")),
    "isin, a number that halves do not hold": lambda d: torch.isin(1e300, 1 / _floats(d, torch.half)),
    "isin, a number that none of ten halves is": lambda d: torch.isin(
        1e300, 1 / _floats(d, torch.half).repeat(2)
    ),
    "pdist, of nothing": lambda d: torch.pdist(_floats(d)[:3, None][:, :0], 1e300),
    "gradient of cdist, of NaN": lambda d: _gradient(
        lambda x: torch.cdist(x.view(2, 3), x.view(2, 3) + float("nan"), 1.0), d
    ).isnan(),
    "normal, of two dtypes": lambda d: torch.normal(_floats(d), _floats(d, torch.float64)) * 0,
    "histogram, of halves in a range": lambda d: torch.histogram(
        _floats(d, torch.half), 4, range=(0.0, 5.0), weight=_floats(d, torch.half)
    )[0],
    "histogramdd, of too many bins": lambda d: torch.ops.aten.histogramdd.int_bins(
        torch.empty(0, 17, device=d), 17
    )[0],
    "cdist, NaN and numbers that differ": lambda d: torch.cdist(
        *[_floats(d).view(2, 3) / 0] * 2, p=0.0
    ).isnan(),
    "inv_ex, of equal rows": lambda d: torch.linalg.inv_ex(
        torch.tensor([-0.9837260246276855, -1.2493537664413452], device=d).expand(2, 2)
    )[1],
    "norms of one number each": lambda d: torch.stack(
        [torch.linalg.vector_norm(_floats(d)[:, None], p, dim=1) for p in (2.0**62, -(2.0**62), 3, 0.001)]
    ),
    "_foreach_norm, of one number": lambda d: torch.stack(
        torch._foreach_norm([_floats(d)[3], _floats(d)[2:3]], 2.0**62)
    ),
    "topk, none of a number": lambda d: torch.cat([t.view(1) for t in torch.topk(_floats(d)[3], 0, 0)]),
    "batch_norm, a running mean alone": lambda d: F.batch_norm(
        _image(d), _floats(d)[: _image(d).shape[1]], None, training=True
    ),
    **{
        f"{name}, of infinite complex numbers": lambda d, name=name: getattr(torch, name)(
            *([x] for x in _infinite(d, 3 if "addc" in name else 2))
        )[0].isnan()
        for name in ("_foreach_mul", "_foreach_div", "_foreach_addcmul", "_foreach_addcdiv")
    },
    "div, of lists by float8": lambda d: torch._foreach_div(
        [_floats(d)], _floats(d)[3].to(torch.float8_e5m2)
    )[0],
    **{
        f"{name}, of lists of two dtypes and {factor}": lambda d, name=name, factor=factor: getattr(
            torch, name
        )([_bytes(d), _floats(d)], [_bytes(d), _floats(d)], alpha=factor)[1]
        for name, factor in itertools.product(("_foreach_add", "_foreach_sub_"), (1.0, 2, True, 1j))
    },
    "logcumsumexp, no such dimension": lambda d: torch.ops.aten._logcumsumexp(_infinite(d)[0], 3),
    "as_strided_copy, behind the beginning": lambda d: torch.ops.aten.as_strided_copy.out(
        _floats(d)[4:], [3], [1], 1, out=_floats(d)[:3]
    ),
    "as_strided_scatter, behind the beginning": lambda d: torch.ops.aten.as_strided_scatter.out(
        _floats(d)[4:], _floats(d)[:1], [1], [1], 4, out=_floats(d)[:2]
    ),
    "gradient of binary_cross_entropy, another weight": lambda d: (
        torch.ops.aten.binary_cross_entropy_backward(
            *[_floats(d, torch.half)[1:2] / 4] * 3, _floats(d)[1:2], 0
        )
    ),
    "gradient of learnt steps, of no channels": lambda d: (
        torch.ops.aten._fake_quantize_learnable_per_channel_affine_backward(
            *[_floats(d).view(6, 1)[:, :0]] * 2, *[_floats(d)[:0]] * 2, 1, 0, 2
        )[0]
    ),
}
_FITS: list[Call] = [
    lambda d: F.softshrink(_floats(d), 1.0),
    lambda d: F.softshrink(_floats(d, torch.half), 1.0),
    lambda d: torch.pow(_truths(d)[0], 3),
    lambda d: torch.add(*_truths(d), alpha=1),
]


def _outcome(call: Call, device: str) -> Any:
    try:
        return call(device).cpu()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("name", CALLS)
def test_as_the_cpu(name: str) -> None:
    for fits in _FITS:  # so that their plans are there
        assert torch.equal(_outcome(fits, "maca"), _outcome(fits, "cpu"))
    for _ in range(2):
        ours, theirs = (_outcome(CALLS[name], device) for device in ("maca", "cpu"))
        if isinstance(theirs, torch.Tensor):
            assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype
        else:
            assert ours is theirs
