"""Single kernels against native PyTorch on the same operands, and against what the machine can do at most.

A case has operands on the host; maca gets copies of them. ``nbytes`` and ``flops`` say what a call must move and
compute at least, so its rate can be held against the ceilings that are measured in the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from macatensor.bench.ceilings import ceilings
from macatensor.bench.measure import interleave, interleave_short
from macatensor.bench.result import Result

Function = Callable[..., object]
NEAR_CEILING = 0.9  # of the ceiling: as good as a ratio within the bar


@dataclass(frozen=True)
class Case:
    """``function`` of ``operands``; ``bar`` is a ratio to native PyTorch's time."""

    name: str
    function: Function
    operands: tuple[torch.Tensor, ...]
    bar: float | None
    nbytes: int = 0
    flops: int = 0


def _moved(*tensors: torch.Tensor) -> int:
    return sum(t.nbytes for t in tensors)


POINTWISE: dict[str, tuple[int, Function]] = {
    "add": (2, torch.add),
    "mul": (2, torch.mul),
    "exp": (1, torch.exp),
    "tanh": (1, torch.tanh),
    "sigmoid": (1, torch.sigmoid),
    "gelu": (1, F.gelu),
    "silu": (1, F.silu),
    "where": (2, lambda a, b: torch.where(a > 0.5, a, b)),
    "to_bfloat16": (1, lambda a: a.to(torch.bfloat16)),
}


def pointwise(quick: bool) -> Iterator[Case]:
    """4M and 16M contiguous elements, 2k x 2k transposed and broadcast, and a thousand elements."""
    large = (1 << 16,) if quick else (4 << 20, 16 << 20)
    for name, (count, function) in POINTWISE.items():
        for n in large:
            operands = tuple(torch.rand(n) for _ in range(count))
            yield Case(f"pointwise.{name}.{n >> 20}M", function, operands, 1.05, (count + 1) * 4 * n)
        yield Case(f"pointwise.{name}.1k", function, tuple(torch.rand(1000) for _ in range(count)), 4.0)
    side = 256 if quick else 2048
    a, b = torch.rand(side, side), torch.rand(side, side)
    yield Case("pointwise.add.transposed", torch.add, (a, b.t()), 1.1, 3 * a.nbytes)
    yield Case("pointwise.add.row", torch.add, (a, b[0]), 1.1, 2 * a.nbytes)
    yield Case("pointwise.add.column", torch.add, (a, b[:, :1]), 1.1, 2 * a.nbytes)
    yield Case("pointwise.copy.transposed", lambda t: t.t().contiguous(), (a,), 1.1, 2 * a.nbytes)
    image = torch.rand(8, 64, 56, 56).contiguous(memory_format=torch.channels_last)
    yield Case("pointwise.add.nhwc", torch.add, (image, image), 1.1, 3 * image.nbytes)
    yield Case("pointwise.copy.nchw_to_nhwc", lambda t: t.contiguous(memory_format=torch.channels_last),
               (image.contiguous(),), 1.1, 2 * image.nbytes)  # fmt: skip


REDUCTIONS: dict[str, Callable[[torch.Tensor, int], object]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "amax": torch.amax,
    "argmax": torch.argmax,
    "var": torch.var,
    "softmax": torch.softmax,
    "cumsum": torch.cumsum,
}


def reduction(quick: bool) -> Iterator[Case]:
    """4096 x 4096 along either dimension, and the spatial dimensions of an NHWC image."""
    side = 256 if quick else 4096
    x = torch.rand(side, side)
    for name, function in REDUCTIONS.items():
        writes = x.nbytes if name in ("softmax", "cumsum") else 0
        for dim in (0, 1):
            yield Case(
                f"reduction.{name}.dim{dim}",
                lambda t, f=function, d=dim: f(t, d),
                (x,),
                1.05,
                x.nbytes + writes,
            )
    image = torch.rand(8, 256, 28, 28).contiguous(memory_format=torch.channels_last)
    for name, along in {"sum": torch.sum, "amax": torch.amax, "var": torch.var}.items():
        yield Case(f"reduction.{name}.nhwc", lambda t, f=along: f(t, (2, 3)), (image,), 1.05, image.nbytes)


def gemm(quick: bool) -> Iterator[Case]:
    """Square products in float32 and bfloat16, and a batch of small ones."""
    for n in (128,) if quick else (256, 512, 1024, 2048):
        a, b = torch.rand(n, n), torch.rand(n, n)
        yield Case(f"gemm.float32.{n}", torch.mm, (a, b), 0.95, flops=2 * n**3)
        yield Case(f"gemm.bfloat16.{n}", torch.mm, (a.bfloat16(), b.bfloat16()), 1.05, flops=2 * n**3)
    a, b = torch.rand(64, 128, 64), torch.rand(64, 64, 128)
    yield Case("gemm.batched", torch.bmm, (a, b), 1.05, flops=2 * 64 * 128 * 64 * 128)


def conv(quick: bool) -> Iterator[Case]:
    """The convolutions of a ResNet, weights unchanged, NHWC on maca and on both sides of native PyTorch."""
    for channels, size in ((64, 16),) if quick else ((64, 56), (128, 28), (256, 14), (512, 7)):
        x = torch.rand(8, channels, size, size)
        for kernel in (1, 3):
            w = torch.rand(channels, channels, kernel, kernel)
            work = 2 * 8 * channels * channels * size * size * kernel * kernel
            yield Case(f"conv.{channels}x{kernel}x{kernel}", lambda a, b, p=kernel // 2: F.conv2d(a, b, padding=p),
                       (x, w), 1.0, flops=work)  # fmt: skip


def norm(quick: bool) -> Iterator[Case]:
    """Layer norm of 4096 x 4096, batch norm in training and group norm of NHWC images."""
    side = 256 if quick else 4096
    x = torch.rand(side, side)
    w, b = torch.rand(side), torch.rand(side)
    yield Case(
        "norm.layer_norm",
        lambda t, u, v: F.layer_norm(t, (t.shape[-1],), u, v),
        (x, w, b),
        1.05,
        2 * x.nbytes,
    )
    image, gain, shift = torch.rand(16, 64, 56, 56), torch.rand(64), torch.rand(64)
    yield Case("norm.batch_norm", lambda t, u, v: F.batch_norm(t, None, None, u, v, True), (image, gain, shift), 1.05,
               3 * image.nbytes)  # fmt: skip
    yield Case(
        "norm.group_norm",
        lambda t, u, v: F.group_norm(t, 8, u, v),
        (image, gain, shift),
        1.05,
        3 * image.nbytes,
    )


def attention(quick: bool) -> Iterator[Case]:
    """``scaled_dot_product_attention``, causal, 8 heads of 64."""
    for t in (64,) if quick else (512, 1024, 2048, 4096):
        q, k, v = (torch.rand(1, 8, t, 64) for _ in range(3))
        yield Case(f"attention.{t}", lambda a, b, c: F.scaled_dot_product_attention(a, b, c, is_causal=True), (q, k, v),
                   1.0, flops=2 * 2 * 8 * t * t * 64 // 2)  # fmt: skip


def index(quick: bool) -> Iterator[Case]:
    """Gathers, scatters, sorting and selection of a million elements."""
    n = 1 << (14 if quick else 20)
    x, rows = torch.rand(n // 64, 64), torch.randint(n // 64, (n // 64,))
    flat, places = torch.rand(n), torch.randperm(n)
    yield Case("index.select_rows", lambda t, i: t.index_select(0, i), (x, rows), None, 2 * x.nbytes)
    yield Case("index.gather", lambda t, i: t.gather(0, i), (flat, places), None, _moved(flat, flat, places))
    yield Case("index.scatter_add", lambda t, i: torch.zeros_like(t).scatter_add(0, i, t), (flat, places), None,
               _moved(flat, flat, places))  # fmt: skip
    yield Case("index.sort", torch.sort, (flat,), None)
    yield Case("index.topk", lambda t: torch.topk(t, 100), (flat,), None)
    yield Case("index.embedding", lambda i, t: F.embedding(i, t), (rows, x), None, 2 * x.nbytes)


SUITES: dict[str, Callable[[bool], Iterator[Case]]] = {
    "pointwise": pointwise,
    "reduction": reduction,
    "gemm": gemm,
    "conv": conv,
    "norm": norm,
    "attention": attention,
    "index": index,
}


def suite(name: str) -> Callable[[int, bool], list[Result]]:
    """A benchmark that runs the cases of a suite."""

    def run(rounds: int, quick: bool) -> list[Result]:
        return [_measured(case, rounds, quick) for case in SUITES[name](quick)]

    run.__doc__ = SUITES[name].__doc__
    return run


def _call(function: Function, operands: tuple[torch.Tensor, ...]) -> Callable[[], object]:
    def call() -> object:
        with torch.inference_mode():
            return function(*operands)

    return call


def _measured(case: Case, rounds: int, quick: bool) -> Result:
    contenders: dict[str, Callable[[], Any]] = {
        "maca": _call(case.function, tuple(t.to("maca") for t in case.operands)),
        "native": _call(case.function, case.operands),
    }
    if any(t.dim() == 4 for t in case.operands):
        nhwc = tuple(
            t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t for t in case.operands
        )
        contenders["native channels_last"] = _call(case.function, nhwc)
    if max(t.numel() for t in case.operands) <= 1000:
        timing = interleave_short(contenders, rounds, 4 if quick else 20)
    else:
        timing = interleave(contenders, rounds, 0.005 if quick else 0.1, settle=0.0 if quick else 0.02)
    better = min((c for c in contenders if c != "maca"), key=timing.seconds)
    seconds = timing.seconds("maca")
    note, is_at_ceiling = _rate(case, seconds)
    return Result(
        case.name, better, timing.ratio("maca", better), case.bar, timing.seconds(better), seconds,
        spread=timing.spread("maca", better), note=note, is_at_ceiling=is_at_ceiling,
    )  # fmt: skip


def _rate(case: Case, seconds: float) -> tuple[str, bool]:
    """The rate that was reached in words, and whether it is the machine's own."""
    if not (case.nbytes or case.flops):
        return "", False
    top = ceilings(torch.get_num_threads())
    rate, ceiling, unit = (
        (case.nbytes / seconds, top.bytes_per_second, "GB/s")
        if case.nbytes
        else (case.flops / seconds, top.flops_per_second, "GFLOP/s")
    )
    share = rate / ceiling
    met = bool(case.nbytes) and share >= NEAR_CEILING
    return f"{rate / 1e9:.3g} {unit}, {share:.0%} of the ceiling" + (": at it" if met else ""), met
