"""Asks kernels that work in vectors, slices and chunks for sizes around those, for addresses that are no multiple of
16 bytes and for layouts that lie otherwise, and compares with float64 on the host. Prints what differs, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from macatensor import maca

EPSILON = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10, torch.float64: 2.0**-52}
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
SIZES = (1, 3, 4, 7, 8, 9, 31, 64, 127, 1023, 1025, 2051)
wrong: list[str] = []
asked = 0


def _moved(x: Tensor) -> Tensor:
    """On the device, with the same strides and the same place within 16 bytes."""
    offset, extent = (
        x.storage_offset(),
        1 + sum((s - 1) * t for s, t in zip(x.shape, x.stride(), strict=True)),
    )
    if x.numel() == 0:
        empty: Tensor = maca(x)
        return empty
    whole = x.as_strided((offset + extent,), (1,), 0).clone()
    moved: Tensor = maca(whole)
    return moved.as_strided(x.shape, x.stride(), offset)


def _random(*shape: int, dtype: torch.dtype = torch.float32, offset: int = 0) -> Tensor:
    """Of a layout that begins `offset` elements behind an allocation."""
    count = 1
    for s in shape:
        count *= s
    return torch.randn(count + offset).to(dtype)[offset:].view(shape)


def ask(
    what: str, call: Callable[..., Tensor], *xs: Tensor, terms: Callable[..., Tensor] | None = None
) -> None:
    """One call on the device beside the same in float64."""
    global asked
    asked += 1
    try:
        got = call(*[_moved(x) for x in xs])
        got.cpu()
    except RuntimeError as error:
        sys.exit(f"{what}: {error}")
    exact = [x.double() if x.is_floating_point() else x for x in xs]
    want = call(*exact).double()
    if got.dtype not in EPSILON:
        if not torch.equal(got.cpu().double(), want):
            wrong.append(what)
        return
    size = (terms(*exact) if terms else want).abs().double()
    distance = (got.cpu().double() - want).abs()
    epsilon = max([EPSILON[got.dtype], *(EPSILON[x.dtype] for x in xs if x.is_floating_point())])
    same = (got.cpu().double() == want) | (distance <= 4 * epsilon * size + 1e-300)
    if got.shape != want.shape or not bool((same | (want.isnan() & got.cpu().isnan())).all()):
        wrong.append(f"{what}: {float((distance / size.clamp(min=1e-300)).max()) / epsilon:.1f} eps")


def _layouts(dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    for n in SIZES:
        for offset in (0, 1):
            yield f"{n} from {offset}", _random(n, dtype=dtype, offset=offset)
    for rows, columns in ((5, 8), (3, 16), (4, 7), (9, 1)):
        yield f"{rows} x {columns}", _random(rows, columns, dtype=dtype)
        yield f"{rows} x {columns} of wider rows", _random(rows, columns + 8, dtype=dtype)[:, :columns]
        yield f"{rows} x {columns} of odd rows", _random(rows, columns + 3, dtype=dtype)[:, 1 : columns + 1]
        yield f"{rows} x {columns} transposed", _random(columns, rows, dtype=dtype).t()
    yield "channels last", _random(2, 8, 3, 5, dtype=dtype).contiguous(memory_format=torch.channels_last)
    yield "every second", _random(40, dtype=dtype)[::2]
    yield "repeated", _random(1, dtype=dtype).expand(37)


def pointwise() -> None:
    """One to three operands, numbers, masks, truths, biases over rows and over columns, results in place."""
    for dtype in FLOATS:
        for name, x in _layouts(dtype):
            here = f"{dtype} {name}"
            other = torch.randn(x.shape).to(dtype)
            ask(f"copy {here}", torch.clone, x)
            ask(f"relu {here}", torch.relu, x)
            ask(f"add {here}", torch.add, x, other, terms=lambda a, b: a.abs() + b.abs())
            ask(f"number {here}", lambda a: a * 3, x)
            ask(f"order {here}", torch.lt, x, other)
            ask(f"where {here}", torch.where, other > 0, x, other)
            ask(f"fill {here}", lambda a: a.masked_fill(a > 0, 2.0), x)
            ask(f"in place {here}", lambda a: a.clone().mul_(2), x)
            to = torch.bfloat16 if dtype == torch.float32 else torch.float32
            ask(f"cast {here}", lambda a, to=to: a.to(to) if a.dtype != torch.float64 else a, x)
            if x.dim() == 2:
                sums = lambda a, b: a.abs() + b.abs()  # noqa: E731
                ask(f"bias {here}", torch.add, x, torch.randn(x.shape[1]).to(dtype), terms=sums)
                ask(f"column {here}", torch.add, x, torch.randn(x.shape[0], 1).to(dtype), terms=sums)
                ask(f"0-dim {here}", torch.add, x, torch.randn(()).to(dtype), terms=sums)
                ask(f"contiguous {here}", lambda a: a.t().contiguous(), x)
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool, torch.float64):
        for n in SIZES:
            x = (torch.randn(n) * 3).abs().to(dtype)
            ask(f"copy {dtype} {n}", torch.clone, x)
            ask(f"fill {dtype} {n}", lambda a: torch.full_like(a, 1), x)
            ask(f"to float {dtype} {n}", lambda a: a.to(torch.float32), x)


def across() -> None:
    """Copies of what lies across its result, in squares and parts of them, of elements of each size."""
    last = torch.channels_last
    for dtype in (torch.int8, torch.bfloat16, torch.float32, torch.int64):
        for shape in ((16, 16), (15, 70), (17, 40), (63, 65), (64, 128), (200, 19)):
            for offset in (0, 1):
                rows, columns = shape
                x = (torch.randn(rows * columns + offset) * 9).to(dtype)[offset:].view(shape)
                here = f"{dtype} {shape} from {offset}"
                ask(f"contiguous {here}", lambda a: a.t().contiguous(), x)
                ask(f"written {here}", lambda a: torch.zeros_like(a).copy_(a.t().clone().t()), x)
                ask(f"part {here}", lambda a: a[1:, 2:].t().contiguous(), x)
                ask(f"reversed {here}", lambda a: a.t().flip(0).contiguous(), x)
                ask(f"repeated {here}", lambda a: a.t().expand(3, *a.t().shape).contiguous(), x)
        for image in ((2, 24, 5, 7), (3, 65, 8, 8), (1, 16, 4, 4)):
            x = (_random(*image) * 9).to(dtype)
            ask(f"to channels last {dtype} {image}", lambda a: a.contiguous(memory_format=last), x)
            ask(
                f"to channels first {dtype} {image}",
                lambda a: a.contiguous(),
                x.contiguous(memory_format=last),
            )


def reductions() -> None:
    """Lines, columns and all, whole and cut into slices."""
    for dtype in FLOATS:
        shapes: list[tuple[int, ...]] = [(n,) for n in (*SIZES, 70000)] + [
            (3, 5), (3, 17), (300, 33), (300, 40), (5, 2051), (2051, 5), (2051, 8), (70, 300), (2, 9000), (9000, 3), (3, 33, 8), (3, 8, 33),
        ]  # fmt: skip
        for shape in shapes:
            for offset in (0, 1):
                x = _random(*shape, dtype=dtype, offset=offset)
                dims: list[int | list[int]] = [*range(len(shape)), list(range(len(shape)))]
                for dim in dims:
                    here = f"{dtype} {shape} from {offset} over {dim}"
                    terms = lambda a, dim=dim: a.abs().sum(dim)  # noqa: E731
                    ask(f"sum {here}", lambda a, dim=dim: a.sum(dim), x, terms=terms)
                    ask(f"amax {here}", lambda a, dim=dim: a.amax(dim), x)
                    if isinstance(dim, int):
                        ask(f"argmax {here}", lambda a, dim=dim: a.argmax(dim), x)
        image = _random(2, 12, 5, 7, dtype=dtype).contiguous(memory_format=torch.channels_last)
        ask(f"channels {dtype}", lambda a: a.mean((0, 2, 3)), image, terms=lambda a: a.abs().mean((0, 2, 3)))
        ask(f"image {dtype}", lambda a: a.sum((1, 2, 3)), image, terms=lambda a: a.abs().sum((1, 2, 3)))
    whole = (torch.randn(20000) * 9).to(torch.int64)
    ask("sum int64", torch.sum, whole)
    ask("any", torch.any, whole > 30)
    ask("all", torch.all, whole < 70)
    ask("mean float64", torch.mean, torch.randn(20000).double(), terms=lambda a: a.abs().mean())
    special = torch.randn(5000)
    special[4321] = float("nan")
    ask("amax of NaN", torch.amax, special)
    ask("sum of inf", torch.sum, torch.full((5000,), float("inf")))


def lines() -> None:
    """Softmax, its logarithm and layer norm, with their gradients."""
    for dtype in FLOATS:
        for rows, columns in (
            (1, 1),
            (3, 7),
            (5, 8),
            (2, 64),
            (3, 1000),
            (2, 1024),
            (2, 1027),
            (2, 5000),
            (40, 24),
        ):
            for offset in (0, 1):
                x, grad = (
                    _random(rows, columns, dtype=dtype, offset=offset),
                    _random(rows, columns, dtype=dtype),
                )
                here = f"{dtype} {rows} x {columns} from {offset}"
                least = 6e-5 if dtype == torch.float16 else 0.0  # below it halves lose digits
                ask(
                    f"softmax {here}",
                    lambda a: a.softmax(1),
                    x,
                    terms=lambda a, e=least: 2 * a.softmax(1) + e,
                )
                ask(f"softmax of columns {here}", lambda a: a.softmax(0), x)
                ask(
                    f"log_softmax {here}",
                    lambda a: a.log_softmax(1),
                    x,
                    terms=lambda a: a.log_softmax(1).abs() + 1,
                )
                for name, log in (("softmax", False), ("log_softmax", True)):
                    ask(
                        f"gradient of {name} {here}",
                        lambda a, g, log=log: (
                            torch.ops.aten._log_softmax_backward_data(g, (a / 9 - 5), 1, a.dtype)
                            if log
                            else torch.ops.aten._softmax_backward_data(g, a / 9, 1, a.dtype)
                        ),
                        x, grad,
                        terms=lambda a, g: g.abs() + (g * a).abs().sum(1, keepdim=True) + g.abs().sum(1, keepdim=True),
                    )  # fmt: skip
                if columns == 1:
                    continue
                weight, bias = _random(columns, dtype=dtype), _random(columns, dtype=dtype)
                bound = lambda *xs: torch.full_like(xs[0], 1.0) * (40 + 8 * xs[0].abs())  # noqa: E731
                ask(
                    f"layer_norm {here}",
                    lambda a, w, b: F.layer_norm(a, a.shape[1:], w, b), x, weight, bias, terms=bound,
                )  # fmt: skip
                for i in range(3):
                    ask(
                        f"gradient {i} of layer_norm {here}",
                        lambda g, a, w, i=i: torch.ops.aten.native_layer_norm_backward(
                            g, a, a.shape[1:], *_statistics(a), w, w, [True, True, True]
                        )[i],
                        grad, x, weight,
                        terms=lambda g, a, w, i=i: (
                            (g * w).abs() * 40 + 40 if i == 0 else (g.abs() * (a.abs() + 9)).sum(0)
                        ),
                    )  # fmt: skip


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """A mean and a reciprocal deviation for each line, which are round numbers: as exact in each dtype."""
    mean = torch.full(
        (x.shape[0], 1), 0.125, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32
    )
    on = (mean, torch.full_like(mean, 1.5))
    return on if x.device.type == "cpu" else (maca(on[0]), maca(on[1]))


def channels() -> None:
    """Batch norm over images of both layouts, trained and evaluated, with its gradients."""
    for dtype in (torch.float32, torch.bfloat16):
        for shape in ((2, 3, 4, 5), (3, 8, 4, 4), (2, 64, 9, 3), (40, 16, 3, 3), (700, 5), (2, 7, 500)):
            for last in (False, True):
                if last and len(shape) != 4:
                    continue
                x, grad = _random(*shape, dtype=dtype), _random(*shape, dtype=dtype)
                if last:
                    x, grad = (t.contiguous(memory_format=torch.channels_last) for t in (x, grad))
                count, here = shape[1], f"{dtype} {shape} {'channels last' if last else ''}"
                weight, bias, mean, var = (_random(count) for _ in range(4))
                var = var.abs() + 0.5
                bound = lambda a, *xs: torch.full_like(a, 40.0)  # noqa: E731
                for training in (False, True):
                    ask(
                        f"batch_norm {training} {here}",
                        lambda a, w, b, m, v, t=training: F.batch_norm(a, m.clone(), v.clone(), w, b, t),
                        x, weight, bias, mean, var, terms=bound,
                    )  # fmt: skip
                    ask(
                        f"running variance {training} {here}",
                        lambda a, m, v, t=training: _running(a, m, v, t), x, mean, var,
                    )  # fmt: skip
                    for i in range(3):
                        ask(
                            f"gradient {i} of batch_norm {training} {here}",
                            lambda a, g, w, m, v, t=training, i=i: torch.ops.aten.native_batch_norm_backward(
                                g, a, w, m, v, m, v, t, 1e-5, [True, True, True]
                            )[i],
                            x, grad, weight, mean, var,
                            terms=lambda a, g, w, m, v, i=i: (
                                torch.full_like(a, 200.0) if i == 0 else _over_channels(g.abs() * (a.abs() + 9))
                            ),
                        )  # fmt: skip


def _over_channels(x: Tensor) -> Tensor:
    return x.sum([d for d in range(x.dim()) if d != 1])


def _running(x: Tensor, mean: Tensor, var: Tensor, training: bool) -> Tensor:
    mean, var = mean.clone(), var.clone()
    F.batch_norm(x, mean, var, training=training)
    return var


def lists() -> None:
    """Optimizers' steps and operators on lists, of many tensors of odd sizes."""
    sizes = [1, 3, 4, 8, 1023, 5000, 0, 70000, *range(1, 60)]
    for dtype in (torch.float32, torch.bfloat16):
        whole = [_random(s, dtype=dtype) for s in sizes]
        for name, call in {
            "add": lambda xs: torch._foreach_add(xs, 2.0),
            "mul list": lambda xs: torch._foreach_mul(xs, xs),
            "sqrt": lambda xs: torch._foreach_sqrt(torch._foreach_abs(xs)),
            "addcmul": lambda xs: torch._foreach_addcmul(xs, xs, xs, 0.5),
            "lerp": lambda xs: torch._foreach_lerp(xs, xs[:0] + [x * 2 for x in xs], 0.25),
            "norm": lambda xs: torch._foreach_norm(xs),
            "largest": lambda xs: torch._foreach_norm([x for x in xs if x.numel()], float("inf")),
        }.items():
            got = call([_moved(x) for x in whole])  # type: ignore[no-untyped-call]
            want = call([x.double() for x in whole])  # type: ignore[no-untyped-call]
            for a, b in zip(got, want, strict=True):
                global asked
                asked += 1
                if not torch.allclose(a.cpu().double(), b, rtol=8 * EPSILON[dtype], atol=8 * EPSILON[dtype]):
                    wrong.append(f"foreach {name} {dtype} {tuple(b.shape)}")
    for name, make in {
        "adam": lambda ps: torch.optim.Adam(ps, lr=0.1, fused=True, weight_decay=0.1),
        "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.1, fused=True, amsgrad=True),
        "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1, fused=True, momentum=0.9),
        "adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.1, foreach=True),
    }.items():
        ours, exact = ([_moved(_seeded(s)) for s in sizes], [_seeded(s).double() for s in sizes])
        for params in (ours, exact):
            for p in params:
                p.requires_grad_()
            optimizer = make(params)  # type: ignore[no-untyped-call]
            for step in range(3):
                for p in params:
                    p.grad = (p.detach() * 0.5 + step).contiguous()
                optimizer.step()
        for a, b in zip(ours, exact, strict=True):
            asked += 1
            if not torch.allclose(a.detach().cpu().double(), b.detach(), rtol=1e-5, atol=1e-5):
                wrong.append(f"{name} {tuple(b.shape)}")


def windows() -> None:
    """Pooling over images of both layouts, with gradients; gradients of embeddings."""
    for dtype in (torch.float32, torch.bfloat16):
        for shape in ((2, 3, 9, 8), (1, 16, 7, 7), (3, 1, 6, 5)):
            for last in (False, True):
                x = _random(*shape, dtype=dtype)
                x = x.contiguous(memory_format=torch.channels_last) if last else x
                here = f"{dtype} {shape} {'channels last' if last else ''}"
                index = F.max_pool2d(x.double(), 3, 2, 1, return_indices=True)[1]
                grad = _random(*index.shape, dtype=dtype).contiguous(
                    memory_format=torch.channels_last if last else torch.contiguous_format
                )
                ask(f"max_pool {here}", lambda a: F.max_pool2d(a, 3, 2, 1), x)
                ask(
                    f"places of max_pool {here}",
                    lambda a: F.max_pool2d(a, 3, 2, 1, return_indices=True)[1],
                    x,
                )
                ask(
                    f"gradient of max_pool {here}",
                    lambda g, a, i: torch.ops.aten.max_pool2d_with_indices_backward(
                        g, a, [3, 3], [2, 2], [1, 1], [1, 1], False, i
                    ),
                    grad, x, index, terms=lambda g, a, i: torch.full_like(a, 9.0),
                )  # fmt: skip
                ask(f"avg_pool {here}", lambda a: F.avg_pool2d(a, 3, 2, 1), x, terms=_largest)
                ask(f"adaptive {here}", lambda a: F.adaptive_avg_pool2d(a, 1), x, terms=_largest)
    for count, lines, columns in ((5, 7, 3), (300, 11, 9), (1000, 40, 300), (64, 1000, 2100), (900, 3, 5)):
        for scales in (False, True):
            index, grad = torch.randint(0, lines, (count,)), _random(count, columns)
            call = lambda g, i, n=lines, s=scales: torch.ops.aten.embedding_dense_backward(g, i, n, 1, s)  # noqa: E731
            ask(
                f"embedding {count} {lines} {columns} {scales}", call, grad, index,
                terms=lambda g, i, call=call: call(g.abs(), i),
            )  # fmt: skip


def _largest(x: Tensor) -> Tensor:
    """Of means of windows, whose terms cancel."""
    return torch.full((), float(x.abs().max()), dtype=torch.float64)


def _seeded(size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(size + 1))


PARTS = {part.__name__: part for part in (pointwise, across, reductions, lines, channels, windows, lists)}


def main() -> None:
    """Runs the parts that are named, or all."""
    torch.manual_seed(0)
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()
    print(json.dumps({"asked": asked, "wrong": wrong}))


if __name__ == "__main__":
    main()
