"""Products and convolutions of the library that MACA_LIBRARY names, against float64 on the host; with a PyTorch for CUDA
beside it also the time of each against torch.cuda's.

A table, and JSON as the last line. ``--small`` leaves out what takes an emulator long. The status is 1 where an error
is over its bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from macatensor import maca
from macatensor.dispatch.host_fallback import fallback
from macatensor.runtime.launches import implementations, launches
from op_table import TABLE

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
HAS_CUDA = torch.cuda.is_available()


@dataclass
class Checked:
    """One call: what computed it, and its largest error over the bound of the row."""

    call: str
    dtype: str
    implementation: str
    error: float  # in units of the bound: above 1 is wrong


@dataclass
class Timed:
    """One call's time here and by torch.cuda, in microseconds."""

    call: str
    dtype: str
    implementation: str
    maca_us: float
    cuda_us: float
    speed: float = field(init=False)  # of here over there: 1 is as quick

    def __post_init__(self) -> None:
        self.speed = self.cuda_us / self.maca_us


def _limit(row: str, dtype: torch.dtype) -> float:
    bound = TABLE[row].bound
    assert bound is not None
    return bound.limit(str(dtype).removeprefix("torch.")) * torch.finfo(dtype).eps


def _error(got: Tensor, want: Tensor, terms: Tensor, limit: float) -> float:
    """``terms``: the sum of the absolute values of the terms of each element."""
    assert got.shape == want.shape, (got.shape, want.shape)
    if not want.numel():
        return 0.0
    tiny = torch.finfo(got.dtype).tiny
    off = (got.cpu().double() - want).abs() / (limit * terms + tiny)
    return float(off.nan_to_num(nan=float("inf")).max())


def _run(call: Callable[..., Tensor | tuple[Tensor, ...]], *operands: object) -> tuple[list[Tensor], str]:
    with launches() as made:
        result = call(*operands)
    ways = implementations(made)
    return [result] if isinstance(result, Tensor) else list(result), ways


def _products(sizes: list[tuple[int, int, int]]) -> Iterator[Checked]:
    make = torch.Generator().manual_seed(0)

    def draw(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(*shape, generator=make, dtype=torch.float64).to(dtype)

    def laid(t: Tensor, how: str) -> Tensor:
        """The same elements: by rows, by columns, as part of rows that are longer, or with gaps everywhere."""
        if how == "N":
            return t.to("maca")
        if how == "T":
            return t.mT.contiguous().to("maca").mT
        more = 3 if how == "part" else 0
        gap = 2 if how == "gaps" else 1
        wide = torch.zeros(*t.shape[:-1], t.shape[-1] * gap + more, dtype=t.dtype)
        wide[..., more::gap] = t
        return wide.to("maca")[..., more::gap]

    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        for m, k, n in sizes:
            for how in ("N N", "N T", "T N", "T T", "part N", "N part", "gaps N"):
                a, b = draw(m, k, dtype=dtype), draw(k, n, dtype=dtype)
                left, right = how.split()
                wide, terms = a.double() @ b.double(), a.double().abs() @ b.double().abs()
                (got,), way = _run(torch.mm, laid(a, left), laid(b, right))
                yield Checked(
                    f"mm {m}x{k}x{n} {how}", name, way, _error(got, wide, terms, _limit("mm", dtype))
                )
            a, b = draw(3, m, k, dtype=dtype), draw(3, k, n, dtype=dtype)
            for left, right in (("N", "N"), ("T", "N"), ("N", "T"), ("part", "T")):
                wide, terms = a.double() @ b.double(), a.double().abs() @ b.double().abs()
                (got,), way = _run(torch.bmm, laid(a, left), laid(b, right))
                yield Checked(
                    f"bmm 3x{m}x{k}x{n} {left} {right}",
                    name,
                    way,
                    _error(got, wide, terms, _limit("bmm", dtype)),
                )
            wide = a.double() @ b[:1].double().expand_as(b)
            terms = a.double().abs() @ b[:1].double().abs().expand_as(b)
            (got,), way = _run(torch.bmm, maca(a), maca(b[:1]).expand(3, k, n))
            yield Checked(
                f"bmm 3x{m}x{k}x{n} expanded", name, way, _error(got, wide, terms, _limit("bmm", dtype))
            )
            c = draw(3, m, n, dtype=dtype)
            wide = 0.5 * c.double() + 2 * (a.double() @ b.double())
            terms = 0.5 * c.double().abs() + 2 * (a.double().abs() @ b.double().abs())
            (got,), way = _run(lambda *o: torch.baddbmm(*o, beta=0.5, alpha=2), maca(c), maca(a), maca(b))
            yield Checked(
                f"baddbmm 3x{m}x{k}x{n}", name, way, _error(got, wide, terms, _limit("baddbmm", dtype))
            )
            x, w = a[0], b[0]
            for added, what in (
                (draw(n, dtype=dtype), "row"),
                (draw(m, 1, dtype=dtype), "column"),
                (draw(m, n, dtype=dtype), "matrix"),
            ):
                for beta, alpha in ((1.0, 1.0), (1.0, 0.5), (-2.0, 1.5), (0.0, 1.0)):
                    held = torch.full_like(added, torch.nan) if beta == 0 else added
                    here = added.double().expand(m, n)
                    wide = beta * here + alpha * (x.double() @ w.double())
                    terms = abs(beta) * here.abs() + abs(alpha) * (x.double().abs() @ w.double().abs())
                    (got,), way = _run(
                        lambda *o, beta=beta, alpha=alpha: torch.addmm(*o, beta=beta, alpha=alpha),
                        maca(held), maca(x), laid(w, "T"),
                    )  # fmt: skip
                    call = f"addmm {what} {m}x{k}x{n} beta {beta} alpha {alpha}"
                    yield Checked(call, name, way, _error(got, wide, terms, _limit("addmm", dtype)))
            v = draw(k, dtype=dtype)
            for how in ("N", "T"):
                (got,), way = _run(torch.mv, laid(x, how), maca(v))
                error = _error(
                    got, x.double() @ v.double(), x.double().abs() @ v.double().abs(), _limit("mv", dtype)
                )
                yield Checked(f"mv {m}x{k} {how}", name, way, error)
            (got,), way = _run(torch.dot, maca(x[0]), maca(v))
            error = _error(
                got, x[0].double() @ v.double(), x[0].double().abs() @ v.double().abs(), _limit("dot", dtype)
            )
            yield Checked(f"dot {k}", name, way, error)


# images, weight, stride, padding, dilation, transposed, groups
CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], int, int, int, bool, int]] = [
    ((2, 3, 11, 13), (8, 3, 3, 3), 1, 1, 1, False, 1),
    ((2, 16, 9, 9), (32, 16, 1, 1), 1, 0, 1, False, 1),
    ((2, 16, 9, 8), (32, 16, 3, 3), 2, 1, 1, False, 1),
    ((2, 8, 15, 15), (16, 8, 3, 3), 1, 2, 2, False, 1),
    ((2, 16, 9, 9), (16, 4, 3, 3), 1, 1, 1, False, 4),
    ((2, 16, 9, 9), (16, 1, 3, 3), 1, 1, 1, False, 16),
    ((2, 8, 5, 6), (8, 4, 3, 3), 2, 1, 1, True, 1),
    ((2, 8, 5, 6), (8, 4, 3, 3), 2, 1, 1, True, 2),
    ((2, 8, 20), (16, 8, 5), 2, 2, 1, False, 1),
    ((1, 4, 5, 6, 7), (8, 4, 3, 3, 3), 1, 1, 1, False, 1),
    ((1, 3, 32, 32), (16, 3, 7, 7), 2, 3, 1, False, 1),
]


def _convolutions() -> Iterator[Checked]:
    make = torch.Generator().manual_seed(1)
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        for sizes, of_weight, stride, padding, dilation, is_transposed, groups in CONVOLUTIONS:
            spatial = len(sizes) - 2
            how = (
                [stride] * spatial,
                [padding] * spatial,
                [dilation] * spatial,
                is_transposed,
                [0] * spatial,
                groups,
            )
            x = torch.randn(sizes, generator=make, dtype=torch.float64).to(dtype)
            w = torch.randn(of_weight, generator=make, dtype=torch.float64).to(dtype)
            channels = of_weight[1] * groups if is_transposed else of_weight[0]
            bias = torch.randn(channels, generator=make, dtype=torch.float64).to(dtype)
            parts = [t.double() for t in (x, w, bias)]
            want = aten.convolution(*parts, *how)
            terms = aten.convolution(*(t.abs() for t in parts), *how)
            grad = torch.randn(want.shape, generator=make, dtype=torch.float64).to(dtype)
            mask = [True, True, True]
            want_back = aten.convolution_backward(grad.double(), *parts[:2], [channels], *how, mask)
            terms_back = aten.convolution_backward(
                grad.double().abs(), *(t.abs() for t in parts[:2]), [channels], *how, mask
            )
            for layout in ("first", "last", "last, weight first"):
                if layout != "first" and spatial == 1:
                    continue
                last = torch.channels_last if spatial == 2 else torch.channels_last_3d
                form = last if layout != "first" else torch.contiguous_format
                xs, gs = (
                    maca(t).contiguous(memory_format=form) for t in (x, grad)
                )  # maca() alone says channels last
                ws = maca(w.contiguous(memory_format=last if layout == "last" else torch.contiguous_format))
                call = f"{'transposed ' if is_transposed else ''}{sizes} {of_weight} /{stride} +{padding} *{dilation} g{groups}, channels {layout}"
                (got,), way = _run(aten.convolution, xs, ws, maca(bias), *how)
                yield Checked(
                    f"convolution {call}", name, way, _error(got, want, terms, _limit("convolution", dtype))
                )
                back, way = _run(aten.convolution_backward, gs, xs, ws, [channels], *how, mask)
                for what, one, right, of in zip(
                    ("image", "weight", "bias"), back, want_back, terms_back, strict=True
                ):
                    error = _error(one, right, of, _limit("convolution_backward", dtype))
                    yield Checked(f"gradient of {what}, {call}", name, way, error)


def _times_in_turn(
    calls: list[tuple[Callable[[], object], Callable[[], None]]], seconds: float = 0.06
) -> list[float]:
    """Microseconds of each call, queued many times behind itself: the best of rounds in which all take turns, since a GPU
    that is warm has a slower clock than one that has rested. The second of a pair waits for the device."""
    counts = []
    for call, wait in calls:
        call()
        wait()
        start = time.perf_counter()
        call()
        wait()
        counts.append(max(3, min(200, int(seconds / max(time.perf_counter() - start, 1e-6)))))
    best = [float("inf")] * len(calls)
    for _ in range(4):
        for i, (call, wait) in enumerate(calls):
            start = time.perf_counter()
            for _ in range(counts[i]):
                call()
            wait()
            best[i] = min(best[i], (time.perf_counter() - start) / counts[i])
    return [b * 1e6 for b in best]


def _compared(name: str, call: Callable[..., object], *operands: Tensor, **more: object) -> Timed:
    here, there = [maca(t) for t in operands], [t.cuda() for t in operands]
    with launches() as made:
        call(*here, **more)
    ways = implementations(made)
    cuda, mine = _times_in_turn(
        [
            (lambda: call(*there, **more), torch.cuda.synchronize),
            (lambda: call(*here, **more), lambda: torch.maca.synchronize()),  # type: ignore[attr-defined]
        ]
    )
    return Timed(name, str(operands[0].dtype).removeprefix("torch."), ways, mine, cuda)


# of ResNet-50, 224 x 224: channels in, channels out, kernel, stride, size of the image
RESNET = [
    (3, 64, 7, 2, 224), (64, 64, 1, 1, 56), (64, 64, 3, 1, 56), (64, 256, 1, 1, 56), (256, 64, 1, 1, 56),
    (256, 128, 1, 1, 56), (128, 128, 3, 2, 56), (128, 512, 1, 1, 28), (256, 512, 1, 2, 56), (128, 128, 3, 1, 28),
    (512, 256, 1, 1, 28), (256, 256, 3, 2, 28), (256, 1024, 1, 1, 14), (256, 256, 3, 1, 14), (1024, 512, 1, 1, 14),
    (512, 512, 3, 2, 14), (512, 2048, 1, 1, 7), (512, 512, 3, 1, 7), (2048, 512, 1, 1, 7),
]  # fmt: skip


def _times(batch: int) -> Iterator[Timed]:
    for dtype in (torch.bfloat16, torch.float32, torch.float16):
        a, b = torch.randn(4096, 4096).to(dtype), torch.randn(4096, 4096).to(dtype)
        yield _compared("mm 4096", torch.mm, a, b)
        yield _compared(
            "linear 4096 with bias", torch.nn.functional.linear, a, b, torch.randn(4096).to(dtype)
        )
    small = torch.randn(64, 128, 64).bfloat16()
    yield _compared("bmm 64x128x64x128", torch.bmm, small, small.mT.contiguous())
    for dtype in (torch.bfloat16, torch.float32):
        for channels, out, kernel, stride, size in RESNET:
            x = (
                torch.randn(batch, channels, size, size)
                .to(dtype)
                .contiguous(memory_format=torch.channels_last)
            )
            w = (
                torch.randn(out, channels, kernel, kernel)
                .to(dtype)
                .contiguous(memory_format=torch.channels_last)
            )
            how = ([stride] * 2, [kernel // 2] * 2, [1, 1], False, [0, 0], 1)

            def forward(x: Tensor, w: Tensor, how: tuple[object, ...] = how) -> object:
                return aten.convolution(x, w, None, *how)

            def backward(g: Tensor, x: Tensor, w: Tensor, how: tuple[object, ...] = how) -> object:
                return aten.convolution_backward(g, x, w, None, *how, [True, True, False])

            name = f"convolution {channels} to {out}, {kernel}x{kernel} /{stride}, {size}"
            yield _compared(name, forward, x, w)
            side = (size + 2 * (kernel // 2) - kernel) // stride + 1
            g = torch.randn(batch, out, side, side).to(dtype).contiguous(memory_format=torch.channels_last)
            yield _compared(f"backward of {name}", backward, g, x, w)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, default=50.0, help="nothing is timed after so many")
    parser.add_argument("--batch", type=int, default=64, help="images of ResNet-50's convolutions")
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False  # float32 is IEEE's on both sides
    begun = time.perf_counter()
    sizes = (
        [(5, 7, 9), (70, 33, 50)]
        if options.small
        else [(5, 7, 9), (64, 48, 80), (1, 96, 33), (130, 257, 65), (256, 512, 384)]
    )
    checked: list[Checked] = []
    with fallback("error"):
        for found in (_products(sizes), _convolutions()):
            checked.extend(found)
    worst: dict[tuple[str, str, str], Checked] = {}
    for c in checked:
        key = (c.call.split()[0], c.dtype, c.implementation)
        if key not in worst or c.error > worst[key].error:
            worst[key] = c
    print(f"{'calls':>5} {'error':>8}  of the bound")
    for key, c in sorted(worst.items()):
        count = sum((o.call.split()[0], o.dtype, o.implementation) == key for o in checked)
        print(f"{count:5} {c.error:8.3f}  {key[0]}, {key[1]}, by {key[2]}; the worst: {c.call}")
    wrong = [c for c in checked if not c.error <= 1]
    for c in wrong:
        print(f"WRONG {c.error:8.3f}  {c.call}, {c.dtype}, by {c.implementation}")
    print(
        f"{len(checked)} results, {len(wrong)} over the bound, {time.perf_counter() - begun:.1f} s",
        flush=True,
    )
    timed: list[Timed] = []
    if HAS_CUDA and not options.small:
        for t in _times(options.batch):
            timed.append(t)
            print(f"{t.speed:6.2f} of torch.cuda  {t.maca_us:9.1f} us, {t.cuda_us:9.1f} us  {t.call}, {t.dtype}, by {t.implementation}",
                  flush=True)  # fmt: skip
            if time.perf_counter() - begun > options.seconds:
                print("no time for more")
                break
    libraries = torch.get_device_module("maca").library_info()["libraries"]
    print(json.dumps({
        "libraries": libraries, "results": len(checked), "wrong": [asdict(c) for c in wrong],
        "worst": [asdict(c) for c in worst.values()], "times": [asdict(t) for t in timed],
        "seconds": time.perf_counter() - begun,
    }))  # fmt: skip
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
