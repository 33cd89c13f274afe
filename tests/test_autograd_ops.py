"""Gradients of every differentiable operator: backward on the device against backward on the CPU in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from macatensor.parity.transport import fetch, place


def _draw(*shape, low=-2.0, high=2.0):
    generator = torch.Generator().manual_seed(torch.Size(shape).numel())
    return torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low


X = _draw(3, 7)
POSITIVE = _draw(3, 7, low=0.25, high=3)
UNIT = _draw(3, 7, low=-0.75, high=0.75)
AWAY = X + X.sign() * 0.25  # no kink and no pole near
IMAGE = _draw(2, 4, 6, 5)
BINS = torch.tensor([2, 0, 1])

_UNARY = {
    "abs": AWAY, "neg": X, "exp": X, "exp2": X, "expm1": X, "log": POSITIVE, "log2": POSITIVE, "log10": POSITIVE,
    "log1p": POSITIVE, "sqrt": POSITIVE, "rsqrt": POSITIVE, "reciprocal": AWAY, "square": X, "sin": X, "cos": X,
    "tan": UNIT, "asin": UNIT, "acos": UNIT, "atan": X, "sinh": X, "cosh": X, "tanh": X, "asinh": X,
    "acosh": POSITIVE + 1.5, "atanh": UNIT, "sigmoid": X, "erf": X, "erfc": X, "erfinv": UNIT, "lgamma": POSITIVE,
    "digamma": POSITIVE, "sinc": AWAY, "frac": AWAY, "deg2rad": X, "rad2deg": X, "relu": AWAY, "positive": X,
    "nan_to_num": X, "trunc": AWAY, "ceil": AWAY, "sign": AWAY, "i0": X,
}  # fmt: skip
_ACTIVATION = [
    "gelu", "silu", "mish", "softplus", "elu", "celu", "selu", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid",
    "relu6", "logsigmoid", "softsign", "tanhshrink", "hardshrink", "softshrink",
]  # fmt: skip
_REDUCE = {
    "sum": lambda t: t.sum(),
    "sum_dim": lambda t: t.sum(1),
    "mean": lambda t: t.mean(0, keepdim=True),
    "prod": lambda t: t.prod(1),
    "amax": lambda t: t.amax(1),
    "amin": lambda t: t.amin((0, 1)),
    "max_dim": lambda t: t.max(1).values,
    "min_dim": lambda t: t.min(0).values,
    "var": lambda t: t.var(1),
    "std": lambda t: t.std(1),
    "var_mean": lambda t: sum(torch.var_mean(t, 1)),
    "norm": lambda t: t.norm(dim=1),
    "norm1": lambda t: torch.linalg.vector_norm(t, 1),
    "logsumexp": lambda t: t.logsumexp(1),
    "cumsum": lambda t: t.cumsum(1),
    "cumprod": lambda t: t.cumprod(1),
    "logcumsumexp": lambda t: t.logcumsumexp(1),
    "cummax": lambda t: t.cummax(1).values,
    "softmax": lambda t: t.softmax(1),
    "log_softmax": lambda t: t.log_softmax(0),
    "median": lambda t: t.median(1).values,
    "topk": lambda t: t.topk(3, 1).values,
    "sort": lambda t: t.sort(1).values,
    "kthvalue": lambda t: t.kthvalue(2, 1).values,
    "nansum": lambda t: t.nansum(1),
}
_MOVE = {
    "slice": lambda t: t[1:, ::2] * 2,
    "select": lambda t: t[1] * 2,
    "index": lambda t: t[BINS.to(t.device)] * 2,
    "index_2": lambda t: t[:, BINS.to(t.device)],
    "mask": lambda t: t[t > 0],
    "gather": lambda t: t.gather(0, torch.tensor([[0, 1, 2, 0, 1, 2, 0]], device=t.device)),
    "index_select": lambda t: t.index_select(1, BINS.to(t.device)),
    "take_along_dim": lambda t: torch.take_along_dim(t, t.argsort(1), 1),
    "scatter": lambda t: t.scatter(1, BINS.to(t.device)[:, None], t[:, :1]),
    "scatter_add": lambda t: t.scatter_add(1, BINS.to(t.device)[:, None], t[:, 1:2]),
    "index_add": lambda t: t.index_add(0, BINS.to(t.device), t),
    "index_put": lambda t: t.index_put((BINS.to(t.device),), t[:, 0:1] * 3, accumulate=True),
    "masked_fill": lambda t: t.masked_fill(t > 0, 0.5),
    "where": lambda t: torch.where(t > 0, t * 2, t.neg()),
    "cat": lambda t: torch.cat([t, t * 2], 1),
    "stack": lambda t: torch.stack([t, t * 3], 1),
    "roll": lambda t: t.roll(2, 1),
    "flip": lambda t: t.flip(0),
    "tril": lambda t: t.tril(),
    "triu": lambda t: t.triu(1),
    "repeat": lambda t: t.repeat(2, 2),
    "expand": lambda t: t[:, None].expand(3, 4, 7),
    "unfold": lambda t: t.unfold(1, 3, 2),
    "diagonal": lambda t: t.diagonal() * 2,
    "trace": lambda t: t.trace(),
    "permute": lambda t: t.t().contiguous(),
    "pad": lambda t: F.pad(t, (1, 2, 0, 1)),
    "pad_reflect": lambda t: F.pad(t[None], (2, 1), mode="reflect"),
    "pad_replicate": lambda t: F.pad(t[None], (2, 1), mode="replicate"),
    "clamp": lambda t: t.clamp(-1, 1),
    "as_strided": lambda t: t.as_strided((2, 3), (7, 2), 1),
    "split": lambda t: t.split([3, 4], 1)[1] * 2,
    "unbind": lambda t: t.unbind(0)[1] * 2,
    "repeat_interleave": lambda t: t.repeat_interleave(2, 0),
    "block_diag": lambda t: torch.block_diag(t, t),
    "diag_embed": lambda t: torch.diag_embed(t),
}
_SPECTRAL = {
    "fft": lambda t: torch.view_as_real(torch.fft.fft(t, dim=0)),
    "ifft2": lambda t: torch.view_as_real(torch.fft.ifft2(t, norm="ortho")),
    "rfft": lambda t: torch.view_as_real(torch.fft.rfft(t)),
    "irfft": lambda t: torch.fft.irfft(torch.complex(t, t.neg()), n=9),
    "hfft": lambda t: torch.fft.hfft(torch.complex(t, t.exp())),
    "stft": lambda t: torch.view_as_real(torch.stft(t, 4, 2, window=torch.ones(4, dtype=t.dtype, device=t.device),
                                                    return_complex=True)),
}  # fmt: skip
_SPECIAL = {
    "i0e": lambda t: torch.special.i0e(t),
    "i1": lambda t: torch.special.i1(t),
    "i1e": lambda t: torch.special.i1e(t),
    "erfcx": lambda t: torch.special.erfcx(t),
    "log_ndtr": lambda t: torch.special.log_ndtr(t),
    "ndtri": lambda t: torch.special.ndtri(t.sigmoid()),
    "entr": lambda t: torch.special.entr(t.exp()),
    "polygamma": lambda t: torch.polygamma(2, t.exp()),
    "zeta": lambda t: torch.special.zeta(torch.full_like(t, 2.5).detach(), t.exp()),
    "igamma": lambda t: torch.igamma(torch.full_like(t, 1.5).detach(), t.exp()),
    "glu": lambda t: F.glu(torch.cat([t, t * 2], 1), 1),
}
_IMAGE = {
    "max_pool2d": lambda t: F.max_pool2d(t, 2),
    "max_pool2d_overlap": lambda t: F.max_pool2d(t, 3, 2, 1),
    "avg_pool2d": lambda t: F.avg_pool2d(t, 2),
    "adaptive_avg_pool2d": lambda t: F.adaptive_avg_pool2d(t, 3),
    "adaptive_max_pool2d": lambda t: F.adaptive_max_pool2d(t, 2),
    "pixel_shuffle": lambda t: F.pixel_shuffle(t, 2),
    "interpolate_nearest": lambda t: F.interpolate(t, scale_factor=2),
    "interpolate_bilinear": lambda t: F.interpolate(t, size=(7, 9), mode="bilinear", align_corners=False),
    "interpolate_bicubic": lambda t: F.interpolate(t, size=(7, 9), mode="bicubic", align_corners=True),
    "unfold": lambda t: F.unfold(t, 2),
    "reflect": lambda t: F.pad(t, (1, 1, 2, 2), mode="reflect"),
    "batch_norm": lambda t: F.batch_norm(t, None, None, training=True),
    "group_norm": lambda t: F.group_norm(t, 2),
    "instance_norm": lambda t: F.instance_norm(t),
    "layer_norm": lambda t: F.layer_norm(t, t.shape[1:]),
    "softmax2d": lambda t: t.softmax(1),
    "local_response_norm": lambda t: F.local_response_norm(t, 3),
    "interpolate_antialias": lambda t: F.interpolate(t, size=(4, 3), mode="bilinear", antialias=True),
    "fractional_max_pool2d": lambda t: F.fractional_max_pool2d(
        t, 2, 3, _random_samples=torch.full((2, 4, 2), 0.5, dtype=t.dtype, device=t.device)
    ),
}
_PAIRS = {
    "add": (lambda a, b: torch.add(a, b, alpha=2), X, _draw(7)),
    "sub": (torch.sub, X, _draw(3, 1)),
    "mul": (torch.mul, X, _draw(7)),
    "div": (torch.div, X, AWAY),
    "pow": (torch.pow, POSITIVE, X),
    "atan2": (torch.atan2, AWAY, POSITIVE),
    "hypot": (torch.hypot, AWAY, POSITIVE),
    "maximum": (torch.maximum, X, UNIT),
    "minimum": (torch.minimum, X, UNIT),
    "fmod": (torch.fmod, X, POSITIVE),
    "remainder": (torch.remainder, X, POSITIVE),
    "logaddexp": (torch.logaddexp, X, UNIT),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.25), X, UNIT),
    "xlogy": (torch.xlogy, POSITIVE, POSITIVE + 1),
    "copysign": (torch.copysign, AWAY, UNIT),
    "dist": (torch.dist, X, UNIT),
    "mm": (lambda a, b: a @ b.t(), X, UNIT),
    "mv": (lambda a, b: a @ b[0], X, UNIT),
    "dot": (lambda a, b: torch.dot(a[0], b[1]), X, UNIT),
    "outer": (lambda a, b: torch.outer(a[0], b[1]), X, UNIT),
    "bmm": (lambda a, b: a[None] @ b.t()[None], X, UNIT),
    "addmm": (lambda a, b: torch.addmm(a[:, :3], a, b.t(), beta=0.5, alpha=2), X, UNIT),
    "baddbmm": (lambda a, b: torch.baddbmm(a[None, :, :3], a[None], b.t()[None]), X, UNIT),
    "einsum": (lambda a, b: torch.einsum("ij,kj->ik", a, b), X, UNIT),
    "linear": (lambda a, b: F.linear(a, b, a[:, 0]), X, UNIT),
    "addcmul": (lambda a, b: torch.addcmul(a, a, b, value=0.5), X, UNIT),
    "addcdiv": (lambda a, b: torch.addcdiv(a, a, b, value=0.5), X, AWAY),
    "mse": (F.mse_loss, X, UNIT),
    "l1": (F.l1_loss, X, UNIT),
    "smooth_l1": (F.smooth_l1_loss, X, UNIT),
    "huber": (F.huber_loss, X, UNIT),
    "kl_div": (lambda a, b: F.kl_div(a.log_softmax(1), b.softmax(1), reduction="batchmean"), X, UNIT),
    "cosine": (F.cosine_similarity, X, AWAY),
    "bce": (lambda a, b: F.binary_cross_entropy(a.sigmoid(), b.sigmoid().detach()), X, UNIT),
    "bce_logits": (lambda a, b: F.binary_cross_entropy_with_logits(a, b.sigmoid().detach()), X, UNIT),
    "cross_entropy": (lambda a, b: F.cross_entropy(a + b, BINS.to(a.device), label_smoothing=0.1), X, UNIT),
    "nll": (lambda a, b: F.nll_loss((a + b).log_softmax(1), BINS.to(a.device)), X, UNIT),
    "embedding": (lambda a, b: F.embedding(BINS.to(a.device), a) + b, X, UNIT),
    "conv2d": (lambda a, b: F.conv2d(a, b, padding=1), IMAGE, _draw(3, 4, 3, 3)),
    "conv2d_strided": (lambda a, b: F.conv2d(a, b, stride=2, dilation=2, groups=2), IMAGE, _draw(6, 2, 2, 2)),
    "conv_transpose2d": (
        lambda a, b: F.conv_transpose2d(a, b, stride=2, output_padding=1),
        IMAGE,
        _draw(4, 3, 3, 3),
    ),
    "conv1d": (lambda a, b: F.conv1d(a[:, :, 0], b), IMAGE, _draw(3, 4, 3)),
    "attention": (lambda a, b: F.scaled_dot_product_attention(a, b, a), IMAGE, _draw(2, 4, 6, 5)),
    "attention_causal": (
        lambda a, b: F.scaled_dot_product_attention(a, b, b, is_causal=True),
        IMAGE,
        _draw(2, 4, 6, 5),
    ),
    "prelu": (lambda a, b: F.prelu(a, b[0, :1]), AWAY, UNIT),
    "grid_sample": (
        lambda a, b: F.grid_sample(a, b, align_corners=False),
        IMAGE,
        _draw(2, 3, 4, 2, low=-1, high=1),
    ),
    "grid_sample_bicubic": (
        lambda a, b: F.grid_sample(a, b, "bicubic", "reflection", align_corners=True),
        IMAGE,
        _draw(2, 3, 4, 2, low=-1, high=1),
    ),
    "grid_sample_3d": (
        lambda a, b: F.grid_sample(a[:, None], b[:, None], padding_mode="border", align_corners=False),
        IMAGE,
        _draw(2, 3, 4, 3, low=-1, high=1),
    ),
    "bilinear": (
        lambda a, b: F.bilinear(a, b, (a[:2, :, None] * b[1:, None, :]), b[0, :2]),
        X,
        UNIT[:, :3],
    ),
    "multi_margin": (
        lambda a, b: F.multi_margin_loss(a, BINS.to(a.device), weight=b[0].abs().detach()),
        X,
        AWAY,
    ),
    "multilabel_margin": (
        lambda a, b: F.multilabel_margin_loss(
            a + b, torch.tensor([[3, 0, -1, 1, 2, 5, 6]] * 3, device=a.device)
        ),
        X,
        UNIT,
    ),
    "soft_margin": (lambda a, b: F.soft_margin_loss(a, b.sign().detach()), X, AWAY),
    "embedding_bag_sum": (
        lambda a, b: F.embedding_bag(BINS.to(a.device)[None], a, mode="sum", per_sample_weights=b[:1, :3]),
        X,
        UNIT,
    ),
    "embedding_bag_mean": (
        lambda a, b: (
            F.embedding_bag(
                BINS.to(a.device), a, torch.tensor([0, 2], device=a.device), mode="mean", padding_idx=0
            )
            + b[:2]
        ),
        X,
        UNIT,
    ),
    "embedding_bag_max": (lambda a, b: F.embedding_bag(BINS.to(a.device)[None], a, mode="max") + b, X, UNIT),
    "ctc": (
        lambda a, b: F.ctc_loss(
            (a @ b.t()).log_softmax(-1)[:, None].expand(3, 2, 3),
            BINS.to(a.device)[:2].repeat(2, 1) * 0 + 1,
            torch.tensor([3, 2]),
            torch.tensor([1, 1]),
            reduction="sum",
        ),
        X,
        UNIT,
    ),
    "segment_mean": (
        lambda a, b: torch.segment_reduce(a * b, "mean", lengths=torch.tensor([1, 2], device=a.device)),
        X,
        UNIT,
    ),
    "segment_prod": (
        lambda a, b: torch.segment_reduce(
            a * b, "prod", lengths=torch.tensor([2, 1], device=a.device), initial=2
        ),
        X,
        AWAY,
    ),
    "rms_norm": (lambda a, b: F.rms_norm(a, (7,), b[0]), X, UNIT),
    "layer_norm": (lambda a, b: F.layer_norm(a, (7,), b[0], b[1]), X, UNIT),
    "batch_norm": (lambda a, b: F.batch_norm(a, None, None, b[0], b[1], training=True), X, UNIT),
    "logit": (lambda a, b: (a.sigmoid() * b.sigmoid()).logit(), X, UNIT),
}
_CASES = {
    **{f"unary-{n}": (lambda t, n=n: getattr(torch, n)(t), [x]) for n, x in _UNARY.items()},
    **{f"activation-{n}": (getattr(F, n), [AWAY]) for n in _ACTIVATION},
    **{f"reduce-{n}": (f, [X]) for n, f in _REDUCE.items()},
    **{f"move-{n}": (f, [X]) for n, f in _MOVE.items()},
    **{f"spectral-{n}": (f, [X]) for n, f in _SPECTRAL.items()},
    **{f"special-{n}": (f, [X]) for n, f in _SPECIAL.items()},
    **{f"image-{n}": (f, [IMAGE]) for n, f in _IMAGE.items()},
    **{f"pair-{n}": (f, [a, b]) for n, (f, a, b) in _PAIRS.items()},
}
# what float32 may lose in a chain of a few operators, of the largest gradient; rows bound each operator by itself
_TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11}


def _gradients(function, operands):
    leaves = [t.detach().requires_grad_() for t in operands]
    result = function(*leaves)
    # a cotangent that is not constant: sum() would hide a transposed gradient
    weight = torch.linspace(0.5, 1.5, max(result.numel(), 1), dtype=torch.float64)[: result.numel()]
    weight = weight.to(result.dtype).reshape(result.shape)
    weight = weight.to(result.device, memory_format=torch.preserve_format)
    return result, torch.autograd.grad(result, leaves, weight, allow_unused=True)


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in _CASES.items()])
def test_gradient(case, dtype, layout) -> None:
    function, operands = case
    if layout == "transposed":
        # for images this is NHWC, for matrices column-major
        order = [0, 2, 3, 1] if operands[0].dim() == 4 else [1, 0]
        back = [0, 3, 1, 2] if operands[0].dim() == 4 else [1, 0]
        operands = [operands[0].permute(order).contiguous().permute(back), *operands[1:]]
    # the same float32 values on both sides
    drawn = [t.detach().to(dtype) for t in operands]
    expected, wanted = _gradients(function, [t.double() for t in drawn])
    result, got = _gradients(function, [place(t) for t in drawn])
    assert torch.allclose(fetch(result.detach()).double(), expected.detach(), rtol=0,
                          atol=_TOLERANCE[dtype] * max(1.0, float(expected.detach().abs().max())))  # fmt: skip
    for have, want in zip(got, wanted):
        assert (have is None) == (want is None)
        if have is None:
            continue
        have = fetch(have).double()
        assert have.shape == want.shape
        limit = _TOLERANCE[dtype] * max(1.0, float(want.abs().max()))
        assert torch.allclose(have, want, rtol=0, atol=limit), (
            f"off by {float((have - want).abs().max()):.3g} > {limit:.3g}"
        )


@pytest.mark.parametrize("name", ["exp", "sin", "tanh", "sigmoid", "log", "sqrt", "reciprocal"])
def test_second_derivative(name) -> None:
    host = POSITIVE.clone().requires_grad_()
    ours = place(POSITIVE).requires_grad_()
    for x in (host, ours):
        (first,) = torch.autograd.grad(getattr(torch, name)(x).sum(), x, create_graph=True)
        first.square().sum().backward()
    assert torch.allclose(ours.grad.cpu(), host.grad, rtol=1e-10, atol=1e-10)


def test_complex_gradient() -> None:
    host = torch.complex(X, UNIT).requires_grad_()
    ours = host.detach().to("maca").requires_grad_()
    for x in (host, ours):
        (x.exp() * x.conj()).abs().sum().backward()
    assert torch.allclose(ours.grad.cpu(), host.grad, rtol=1e-10, atol=1e-10)


def test_writes_of_foreach_operators_are_counted() -> None:
    x = torch.ones(3, device="maca")
    weight = torch.ones(3, device="maca", requires_grad=True)
    product = (weight * x).sum()
    torch._foreach_add_([x[1:]], 1)
    assert x._version == 1
    torch._foreach_copy_([x, x], [x, x])
    assert x._version == 3
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.parametrize("device", ["cpu", "maca"])
def test_writes_into_lists_out_are_counted(device: str) -> None:
    x = torch.arange(6.0, device=device)
    parts = [torch.empty(3, device=device) for _ in range(2)]
    torch.split_copy(x, 3, out=parts)
    split = [t._version for t in parts]
    torch.ops.aten._foreach_add.List_out(parts, parts, out=parts)
    assert min(split) > 0 and all(t._version > before for t, before in zip(parts, split))


def test_foreach_operators_refuse_expanded_targets() -> None:
    x = torch.zeros(3, 1, device="maca").expand(3, 4)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch._foreach_add_([torch.ones(2, device="maca"), x], 1)
    torch._foreach_zero_([x])


@pytest.mark.parametrize(
    "dtype, other",
    [(torch.bool, torch.int64), (torch.int32, torch.float32), (torch.float32, torch.complex64)],
)
def test_foreach_writes_are_cast_as_pytorch_casts(dtype: torch.dtype, other: torch.dtype) -> None:
    x, y = torch.ones(2, dtype=dtype, device="maca"), torch.ones(2, dtype=other, device="maca")
    for given in ([y], [y[0].item()]):
        with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
            torch._foreach_mul_([x], given)
