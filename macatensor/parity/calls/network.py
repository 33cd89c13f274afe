"""Calls of the operators of networks: products, normalization, losses, recurrent cells, dropout's gradient."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from macatensor.parity.draw import Call, Draw, calls
from macatensor.parity.formulas import formula
from macatensor.parity.formulas_recurrent import mkldnn_rnn_layer
from macatensor.runtime.boxed import Arguments


def _factors(draw: Draw, *shape: int, varied: bool = False) -> torch.Tensor:
    """``varied``: not expanded. Of two factors one must be: equal terms round the same way, and the error of their
    sum grows with their number."""
    return draw.tensor(*shape, low=-2, high=2, written=varied)


_PRODUCTS = [(5, 7, 3), (1, 1, 1), (17, 33, 9), (4, 0, 3), (0, 4, 3), (1, 64, 5), (8, 129, 16)]


@calls("mm", "bmm", "addmm", "baddbmm", "_addmm_activation")
def _matrix(draw: Draw) -> Iterator[Call]:
    batch = (3,) if "bmm" in draw.row.operator else ()
    for turn, (m, k, n) in enumerate(_PRODUCTS if draw.plain else _PRODUCTS[:3]):
        a, b = _factors(draw, *batch, m, k), _factors(draw, *batch, k, n, varied=True)
        if draw.row.operator in ("mm", "bmm"):
            yield Call((a, b))
            continue
        scalars = {
            "beta": draw.number([1, 0.5, 0][turn % 3], turn % 3),
            "alpha": draw.number([1, 2, 1.5][turn % 3], 1),
        }
        for shape in ((*batch, m, n), (n,)):
            yield Call((_factors(draw, *shape), a, b), scalars)


@calls("addbmm")
def _addbmm(draw: Draw) -> Iterator[Call]:
    yield Call((_factors(draw, 5, 3), _factors(draw, 2, 5, 7), _factors(draw, 2, 7, 3)))


@calls("mv", "addmv")
def _matrix_vector(draw: Draw) -> Iterator[Call]:
    for m, k in ((5, 7), (33, 129), (4, 0), (0, 3), (1, 1)):
        args = (_factors(draw, m, k), _factors(draw, k, varied=True))
        if draw.row.operator == "mv":
            yield Call(args)
        else:
            yield Call(
                (_factors(draw, m), *args), {"beta": draw.number(0.5, 2), "alpha": draw.number(1.5, 2)}
            )


@calls("dot", "vdot")
def _dot(draw: Draw) -> Iterator[Call]:
    for n in (7, 1, 0, 1000):
        yield Call((_factors(draw, n), _factors(draw, n, varied=True)))


@calls("addr")
def _addr(draw: Draw) -> Iterator[Call]:
    scalars = (
        {"beta": True, "alpha": True}
        if draw.dtype is torch.bool
        else {"beta": draw.number(0.5, 2), "alpha": 2}
    )
    for m, n in ((5, 7), (1, 9), (0, 3)):
        yield Call((_factors(draw, m, n), _factors(draw, m), _factors(draw, n)), scalars)


def _batches(draw: Draw) -> list[tuple[int, ...]]:
    return [(4, 3, 5, 6), (6, 5), (3, 4, 7), (2, 3, 2, 3, 4)]


def _parameters(draw: Draw, channels: int, turn: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    kind = draw.dtype if turn % 2 == 0 or draw.dtype is torch.float64 else torch.float32
    if turn % 3 == 2:
        return None, None
    weight = draw.values((channels,), kind, 0.5, 2)
    return weight, draw.values((channels,), kind, -1, 1)


def _statistics(draw: Draw, channels: int, weight: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    kind = weight.dtype if weight is not None else draw.dtype
    return draw.values((channels,), kind, -1, 1), draw.values((channels,), kind, 0.5, 2)


@calls(
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training", "_batch_norm_with_update", "_batch_norm_with_update_functional",
    "_batch_norm_no_update",
)  # fmt: skip
def _batch_norm(draw: Draw) -> Iterator[Call]:
    operator, stats = draw.row.operator, not draw.row.name.endswith("no_stats")
    for turn, shape in enumerate(_batches(draw)):
        x = draw.tensor(*shape, written=True)  # expanded it would have no variance
        updating = operator.startswith("_batch_norm")  # PyTorch's meta kernel of these wants a weight
        weight, bias = _parameters(draw, shape[1], 0 if updating else turn)
        mean, variance = _statistics(draw, shape[1], weight)
        for training in (True, False):
            flags: Arguments = (0.125, 0.0009765625)
            if operator in (
                "native_batch_norm",
                "_native_batch_norm_legit",
                "_native_batch_norm_legit_functional",
            ):
                flags = (training, *flags)
            elif not training:
                continue
            if not stats:
                if training:
                    yield Call((x, weight, bias, *flags))
                continue
            yield Call((x, weight, bias, mean, variance, *flags))
            if operator == "native_batch_norm" and training:
                yield Call((x, weight, bias, None, None, *flags))


@calls("native_batch_norm_backward", "batch_norm_backward")
def _batch_norm_backward(draw: Draw) -> Iterator[Call]:
    fused = draw.row.operator == "batch_norm_backward"
    for turn, shape in enumerate(_batches(draw)):
        x, grad = draw.tensor(*shape, written=True), draw.tensor(*shape, written=True)
        weight, _ = _parameters(draw, shape[1], 0 if fused else turn)
        mean, variance = _statistics(draw, shape[1], weight)
        dims = [d for d in range(len(shape)) if d != 1]
        kind = (
            torch.float32
            if draw.dtype.itemsize == 2 and weight is not None and weight.dtype is torch.float32
            else draw.dtype
        )
        saved = x.double().mean(dims).to(kind)
        inverse = (x.double().var(dims, correction=0) + 0.0009765625).rsqrt().to(kind)
        for training in (True, False):
            for wanted in ([True, True, True], [True, False, False]):
                if fused:
                    reserve = torch.empty(0, dtype=torch.uint8)
                    args: Arguments = (
                        mean,
                        variance,
                        saved,
                        inverse,
                        training,
                        0.0009765625,
                        wanted,
                        reserve,
                    )
                else:
                    args = (mean, variance, saved, inverse, training, 0.0009765625, wanted)
                yield Call((grad, x, weight, *args))


@calls("native_layer_norm", "native_layer_norm_backward")
def _layer_norm(draw: Draw) -> Iterator[Call]:
    backward = draw.row.operator.endswith("backward")
    for turn, (shape, count) in enumerate(
        [((4, 7), 1), ((2, 3, 5), 2), ((2, 3, 4, 5), 1), ((3, 129), 1), ((0, 5), 1)]
    ):
        normalized = list(shape[-count:])
        x = draw.tensor(*shape, written=True)  # expanded it would have no variance
        weight = draw.values(tuple(normalized), draw.dtype, 0.5, 2) if turn != 1 else None
        bias = draw.values(tuple(normalized), draw.dtype, -1, 1) if turn not in (1, 3) else None
        if not backward:
            yield Call((x, normalized, weight, bias, 0.0009765625))
            continue
        if not x.numel():
            continue
        dims = list(range(len(shape) - count, len(shape)))
        mean = x.double().mean(dims, keepdim=True).to(draw.dtype)
        inverse = (x.double().var(dims, correction=0, keepdim=True) + 0.0009765625).rsqrt().to(draw.dtype)
        if draw.dtype.itemsize == 2:
            continue  # the forward gives float32 statistics or the dtype's own, by version; through autograd
        mask = [True, weight is not None, bias is not None]
        yield Call((draw.tensor(*shape), x, normalized, mean, inverse, weight, bias, mask))


@calls("_fused_rms_norm", "_fused_rms_norm_backward")
def _rms_norm(draw: Draw) -> Iterator[Call]:
    backward = draw.row.operator.endswith("backward")
    shapes = [((4, 7), 1), ((2, 3, 5), 2), ((2, 3, 4, 5), 1), ((3, 129), 1), ((0, 5), 1), ((6,), 1)]
    for turn, (shape, count) in enumerate(shapes):
        normalized = list(shape[-count:])
        x = draw.tensor(*shape)
        weight = draw.values(tuple(normalized), draw.dtype, 0.5, 2) if turn != 1 else None
        # the dtype's own epsilon, which is another one for the reference in float64
        eps = None if turn == 3 and draw.dtype is torch.float64 else 0.0009765625
        if not backward:
            yield Call((x, normalized, weight, eps))
            continue
        _, inverse = torch.ops.aten._fused_rms_norm.default(x, normalized, weight, 0.0009765625)
        for mask in ([True, weight is not None], [turn % 2 == 0, weight is not None]):
            yield Call((draw.tensor(*shape), x, normalized, inverse, weight, mask))


@formula
def _fused_rms_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    shape: list[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    mask: list[bool],
) -> tuple[torch.Tensor | None, ...]:
    dims, outer = list(range(x.dim() - len(shape), x.dim())), list(range(x.dim() - len(shape)))
    scaled, unit = grad if weight is None else grad * weight, x * rstd
    by_x = (scaled - unit * (scaled * unit).mean(dims, keepdim=True)) * rstd
    by_weight = (grad * unit).sum(outer) if outer else grad * unit
    return by_x.to(x.dtype) if mask[0] else None, by_weight.to(x.dtype) if mask[1] else None


@calls("native_group_norm", "native_group_norm_backward")
def _group_norm(draw: Draw) -> Iterator[Call]:
    if draw.layout not in ("contiguous", "channels_last"):
        return  # PyTorch refuses other layouts
    for turn, (shape, groups) in enumerate([((4, 6, 3, 5), 2), ((2, 4, 7), 4), ((3, 6), 1)]):
        n, c = shape[0], shape[1]
        area = torch.Size(shape[2:]).numel()
        x = draw.tensor(*shape)
        # PyTorch's backward on the CPU stops at an absent weight
        weighted = turn != 1 or draw.row.operator.endswith("backward")
        weight = draw.values((c,), draw.dtype, 0.5, 2) if weighted else None
        bias = draw.values((c,), draw.dtype, -1, 1) if turn != 1 else None
        if draw.row.operator == "native_group_norm":
            yield Call((x, weight, bias, n, c, area, groups, 0.0009765625))
            continue
        flat = x.double().reshape(n, groups, -1)
        mean = flat.mean(-1).to(draw.dtype)
        inverse = (flat.var(-1, correction=0) + 0.0009765625).rsqrt().to(draw.dtype)
        grad = draw.tensor(*shape)
        yield Call((grad, x, mean, inverse, weight, n, c, area, groups, [True, weight is not None, True]))


_REDUCTIONS = (0, 1, 2)


@calls("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy",
       "binary_cross_entropy_with_logits")  # fmt: skip
def _loss(draw: Draw) -> Iterator[Call]:
    operator = draw.row.operator
    probability = operator == "binary_cross_entropy"
    for reduction in _REDUCTIONS:
        for shape in ((5, 37), (2, 3, 4, 5), ()) if not draw.plain else ((5, 37), (2, 3, 4, 5), (), (20011,)):
            x = draw.tensor(*shape, low=0.0625 if probability else -4, high=0.9375 if probability else 4)
            low, high = (
                (0.0625, 0.9375) if probability else (0.0, 1.0) if "entropy" in operator else (-4.0, 4.0)
            )
            target = draw.tensor(*shape, low=low, high=high)
            if operator == "soft_margin_loss":
                target = draw.lay((draw.integers(shape, 0, 2) * 2 - 1).to(draw.dtype))
            if probability:
                weight = draw.tensor(*shape, low=0.5, high=2) if reduction == 1 else None
                yield Call((x, target, weight, reduction))
            elif operator == "binary_cross_entropy_with_logits":
                weight = draw.tensor(*shape, low=0.5, high=2) if reduction == 1 else None
                positive = draw.tensor(*shape[-1:], low=0.5, high=2) if reduction == 2 else None
                yield Call((x, target, weight, positive, reduction))
            elif operator in ("smooth_l1_loss", "huber_loss"):
                yield Call((x, target, reduction, 0.5))
            else:
                yield Call((x, target, reduction))


@calls("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "soft_margin_loss_backward",
       "binary_cross_entropy_backward")  # fmt: skip
def _loss_backward(draw: Draw) -> Iterator[Call]:
    operator = draw.row.operator
    probability = operator.startswith("binary")
    for reduction in _REDUCTIONS:
        for shape in ((5, 37), (2, 3, 4, 5)):
            x = draw.tensor(*shape, low=0.0625 if probability else -4, high=0.4375 if probability else 4)
            target = draw.tensor(*shape, low=0.5 if probability else -4, high=1 if probability else 4)
            if operator == "soft_margin_loss_backward":
                target = draw.lay((draw.integers(shape, 0, 2) * 2 - 1).to(draw.dtype))
            grad = draw.tensor(*(shape if reduction == 0 else ()))
            if probability:
                yield Call(
                    (grad, x, target, draw.tensor(*shape, low=0.5, high=2) if reduction else None, reduction)
                )
            elif operator in ("smooth_l1_loss_backward", "huber_loss_backward"):
                yield Call((grad, x, target, reduction, 0.5))
            else:
                yield Call((grad, x, target, reduction))


@calls("nll_loss_forward", "nll_loss2d_forward", "nll_loss_backward", "nll_loss2d_backward")
def _nll(draw: Draw) -> Iterator[Call]:
    image = "2d" in draw.row.operator
    backward = draw.row.operator.endswith("backward")
    for reduction in _REDUCTIONS:
        for weighted in (False, True):
            shape = (3, 5, 4, 6) if image else (9, 5)
            x = draw.tensor(*shape, low=-4, high=0)
            target = draw.index(*(shape[:1] + shape[2:]), below=5)
            if draw.plain and reduction:
                target.view(-1)[0] = 2
                target = torch.where(target == 3, -100, target)
            weight = draw.values((5,), draw.dtype, 0.5, 2) if weighted else None
            if not backward:
                yield Call((x, target, weight, reduction, -100))
                continue
            forward = torch.ops.aten.nll_loss2d_forward if image else torch.ops.aten.nll_loss_forward
            wide = weight.double() if weight is not None else None
            total = forward(x.double(), target, wide, reduction, -100)[1].to(draw.dtype)
            grad = draw.tensor(*(() if reduction else target.shape))
            yield Call((grad, x, target, weight, reduction, -100, total))
    if not image and draw.plain and not backward:
        yield Call((draw.tensor(5, low=-4, high=0), torch.tensor(3), None, 1, -100))


@calls("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell")
def _cell(draw: Draw) -> Iterator[Call]:
    gates = 4 if "lstm" in draw.row.operator else 3
    for n, hidden in ((3, 5), (4, 33)):
        for biased in (True, False):
            one, two = draw.tensor(n, gates * hidden), draw.tensor(n, gates * hidden)
            biases = [draw.values((gates * hidden,), draw.dtype, -1, 1) if biased else None for _ in range(2)]
            yield Call((one, two, draw.tensor(n, hidden), *biases))


@calls("_thnn_fused_lstm_cell_backward_impl")
def _lstm_backward(draw: Draw) -> Iterator[Call]:
    for n, hidden in ((3, 5), (4, 33)):
        cells = [draw.tensor(n, hidden, low=-1, high=1) for _ in range(4)]
        workspace = draw.values((n, 4 * hidden), draw.dtype, 0.0625, 0.9375)
        yield Call((*cells, workspace, True))
        yield Call((cells[0], None, cells[2], cells[3], workspace, False))


@calls("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward")
def _layer(draw: Draw) -> Iterator[Call]:
    # mode: PyTorch's number of ReLU, tanh, LSTM, GRU; missing: the gradient of output, h or c that nothing asked for
    sizes = (
        (1, 3, 4, 5, False, True, True, None),
        (4, 2, 5, 6, True, True, True, 0),
        (3, 4, 3, 17, False, False, False, 1),
    )
    for mode, (steps, batch, inputs, hidden, reverse, biased, train, missing) in itertools.product(
        (2, 0, 1, 3), sizes
    ):
        gates = {2: 4, 3: 3}.get(mode, 1) * hidden
        scale = hidden**-0.5
        operands = [
            draw.tensor(steps, batch, inputs),
            draw.tensor(gates, inputs, low=-scale, high=scale),
            draw.tensor(gates, hidden, low=-scale, high=scale),
            *(draw.values((gates,), draw.dtype, -1, 1) for _ in range(2)),
            draw.tensor(batch, hidden, low=-1, high=1),
            draw.tensor(batch, hidden, low=-1, high=1) if mode == 2 else torch.empty(0, dtype=draw.dtype),
        ]
        numbers = (mode, hidden, 1)
        if draw.row.operator == "mkldnn_rnn_layer":
            yield Call((*operands, reverse, [], *numbers, biased, False, False, train))
            continue
        x, w_ih, w_hh, b_ih, b_hh, h, c = (t.double() for t in operands)
        *exact, kept = mkldnn_rnn_layer(
            x, w_ih, w_hh, b_ih, b_hh, h, c, reverse, [], *numbers, True, False, False, True
        )
        results = [t.to(draw.dtype) for t in exact]
        grads = [None if i == missing else draw.tensor(*r.shape) for i, r in enumerate(results)]
        if mode != 2:
            grads[2] = None
        yield Call(
            (*operands, *results, *grads, reverse, *numbers, True, True, False, [], False, kept.float())
        )


@calls("_thnn_fused_gru_cell_backward")
def _gru_backward(draw: Draw) -> Iterator[Call]:
    for n, hidden in ((3, 5), (4, 33)):
        workspace = draw.values((n, 5 * hidden), draw.dtype, 0.0625, 0.9375)
        yield Call((draw.tensor(n, hidden), workspace, True))


@calls("native_dropout_backward")
def _dropout_backward(draw: Draw) -> Iterator[Call]:
    for shape in ((5, 37), (2, 3, 4, 5), ()):
        yield Call((draw.tensor(*shape), draw.mask(*shape), 1.25))


@calls("rrelu_with_noise_backward")
def _rrelu_backward(draw: Draw) -> Iterator[Call]:
    yield Call(
        (draw.tensor(5, 7), draw.tensor(5, 7), draw.tensor(5, 7, low=0.125, high=1), 0.125, 0.25, True, False)
    )


@calls("_weight_norm_interface", "_weight_norm_interface_backward")
def _weight_norm(draw: Draw) -> Iterator[Call]:
    if not draw.plain:
        return  # PyTorch takes contiguous weights
    v, g = draw.tensor(4, 6, low=0.5, high=2), draw.values((4, 1), draw.dtype, 0.5, 2)
    if draw.row.operator == "_weight_norm_interface":
        yield Call((v, g, 0))
    else:
        norms = v.double().norm(dim=1, keepdim=True).to(draw.dtype)
        yield Call((draw.tensor(4, 6), v, g, norms, 0))


@calls("scaled_dot_product_attention")
def _attention(draw: Draw) -> Iterator[Call]:
    for lead, queries, keys, width in (((2, 3), 7, 7, 8), ((1, 2), 5, 33, 16), ((2,), 70, 65, 4)):
        query = draw.tensor(*lead, queries, width, low=-1, high=1)
        key, value = (draw.tensor(*lead, keys, width, low=-1, high=1, written=True) for _ in range(2))
        yield Call((query, key, value))
        yield Call((query, key, value, None, 0.0, True))
        mask = draw.integers((queries, keys), 0, 4) > 0
        mask[:, 0] = True  # a row of nothing but False is NaN or 0, by version
        yield Call((query, key, value, mask), {"scale": 0.5})
        yield Call((query, key, value, draw.values((queries, keys), draw.dtype, -1, 1)))


def _projections(draw: Draw, width: int) -> tuple[torch.Tensor, ...]:
    """Weight and bias into query, key and value, weight and bias out of the heads."""
    return tuple(
        draw.values(size, draw.dtype, -0.5, 0.5)
        for size in ((3 * width, width), (3 * width,), (width, width), (width,))
    )


@calls("_native_multi_head_attention")
def _multi_head(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(2, 5, 8, low=-1, high=1)
    late = torch.zeros(2, 5, dtype=torch.bool)
    late[0, 3:] = True
    for mask, kind in ((None, None), (late, 1), (torch.ones(5, 5).triu(1).bool(), 0)):
        for need_weights, average in ((True, True), (True, False), (False, True)):
            yield Call((x, x, x, 8, 2, *_projections(draw, 8), mask, need_weights, average, kind))


@calls("_transform_bias_rescale_qkv")
def _projected(draw: Draw) -> Iterator[Call]:
    for size, heads in (((2, 5, 24), 2), ((1, 1, 9), 3), ((3, 0, 6), 1), ((2, 7, 48), 1)):
        yield Call((draw.tensor(*size, low=-1, high=1), draw.values(size[-1:], draw.dtype, -1, 1), heads))


@calls("_transformer_encoder_layer_fwd")
def _encoder_layer(draw: Draw) -> Iterator[Call]:
    x = draw.tensor(2, 5, 8, low=-1, high=1)
    for use_gelu, norm_first in ((False, False), (True, True)):
        norms = [draw.values((8,), draw.dtype, 0.5, 1) for _ in range(4)]
        feed = [draw.values(size, draw.dtype, -0.5, 0.5) for size in ((16, 8), (16,), (8, 16), (8,))]
        yield Call((x, 8, 2, *_projections(draw, 8), use_gelu, norm_first, 1e-5, *norms, *feed))
