"""Single kernels against native PyTorch on the same operands, and against what the machine can do at most."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from macatensor.bench import convolutions, factorizations, sparse
from macatensor.bench.case import Case, Function, Operands, nhwc, rand
from macatensor.bench.ceilings import ceilings
from macatensor.bench.measure import interleave, interleave_short
from macatensor.bench.result import Rate, Result

NEAR_CEILING = 0.9  # of the ceiling: as good as a ratio within the bar
STREAMING = 1.05  # bar of what is bound by memory
STRIDED = 1.1  # transposed and broadcast operands
SMALL = 4.0  # a thousand elements, most of it the way through Python


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
    """float32: 4M and 16M contiguous elements, a thousand, 2048 x 2048 transposed and broadcast, NHWC."""
    for name, (count, function) in POINTWISE.items():
        for label, n in (("4M", 4 << 20), ("16M", 16 << 20)):
            n = n >> 10 if quick else n
            written = 2 if name == "to_bfloat16" else 4
            yield Case(
                f"pointwise.{name}.{label}", function, rand(count, n), STREAMING, (4 * count + written) * n
            )
        yield Case(f"pointwise.{name}.1k", function, rand(count, 1000), SMALL, is_small=True)
    side = 64 if quick else 2048
    nbytes = 4 * side * side

    def pair(of: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], Operands]:
        return lambda: (torch.rand(side, side), of(torch.rand(side, side)))

    yield Case("pointwise.add.transposed", torch.add, pair(lambda t: t.t()), STRIDED, 3 * nbytes)
    yield Case("pointwise.add.row", torch.add, pair(lambda t: t[0]), STRIDED, 2 * nbytes)
    yield Case("pointwise.add.column", torch.add, pair(lambda t: t[:, :1]), STRIDED, 2 * nbytes)
    yield Case(
        "pointwise.copy.transposed", lambda t: t.t().contiguous(), rand(1, side, side), STRIDED, 2 * nbytes
    )
    image = (1, 16, 14, 14) if quick else (8, 64, 56, 56)
    nbytes = 4 * math.prod(image)
    yield Case("pointwise.add.nhwc", torch.add, nhwc(2, *image), STRIDED, 3 * nbytes)
    # in three dimensions: four would become NHWC on their way to maca
    yield Case("pointwise.copy.nchw_to_nhwc", lambda t: t.transpose(1, 2).contiguous(),
               rand(1, image[0], image[1], image[2] * image[3]), STRIDED, 2 * nbytes)  # fmt: skip


REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "amax": torch.amax,
    "argmax": torch.argmax,
    "var": torch.var,
    "softmax": torch.softmax,
    "cumsum": torch.cumsum,
}
_WRITES_ALL = ("softmax", "cumsum")


def reduction(quick: bool) -> Iterator[Case]:
    """4096 x 4096 along either dimension; NHWC images along their pixels, and channels where one dimension is taken."""
    side = 64 if quick else 4096
    size = (2, 16, 14, 14) if quick else (16, 256, 56, 56)
    for name, function in REDUCTIONS.items():
        writes = name in _WRITES_ALL
        moved = 2 if writes else 1
        for dim in (0, 1):
            yield Case(
                f"reduction.{name}.dim{dim}", lambda t, f=function, d=dim: f(t, d), rand(1, side, side), STREAMING,
                4 * moved * side * side, reads_only=not writes,
            )  # fmt: skip
        along: int | tuple[int, ...] = 1 if writes or name == "argmax" else (2, 3)
        yield Case(
            f"reduction.{name}.nhwc", lambda t, f=function, d=along: f(t, d), nhwc(1, *size), STREAMING,
            4 * moved * math.prod(size), reads_only=not writes,
        )  # fmt: skip
    for name in ("sum", "amax"):
        function = REDUCTIONS[name]
        yield Case(
            f"reduction.{name}.nhwc_channels", lambda t, f=function: f(t, 1), nhwc(1, *size), STREAMING,
            4 * math.prod(size), reads_only=True,
        )  # fmt: skip


def gemm(quick: bool) -> Iterator[Case]:
    """Square products in float32 and bfloat16, and a batch of small ones."""
    for n in (256, 512, 1024, 2048):
        m = n // 16 if quick else n
        yield Case(f"gemm.float32.{n}", torch.mm, rand(2, m, m), 0.95, flops=2 * m**3)
    for n in (256, 512, 1024, 2048):
        m = n // 16 if quick else n
        yield Case(f"gemm.bfloat16.{n}", torch.mm, rand(2, m, m, dtype=torch.bfloat16), 1.05, flops=2 * m**3)
    batch = 2 if quick else 64
    yield Case("gemm.batched", torch.bmm, lambda: (torch.rand(batch, 128, 64), torch.rand(batch, 64, 128)), 1.05,
               flops=2 * batch * 128 * 64 * 128)  # fmt: skip


def norm(quick: bool) -> Iterator[Case]:
    """Layer norm of 4096 x 4096 and of each pixel's channels, batch norm in training and group norm of NHWC images."""
    side = 64 if quick else 4096
    size = (2, 16, 14, 14) if quick else (16, 64, 56, 56)
    nbytes = 4 * math.prod(size)

    def layer_norm(t: torch.Tensor, gain: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(t, gain.shape, gain, shift)

    def with_affine(t: torch.Tensor, width: int) -> Operands:
        return t, torch.rand(width), torch.rand(width)

    def images() -> Operands:
        return with_affine(torch.rand(size), size[1])

    def pixels() -> Operands:
        return with_affine(nhwc(1, *size)()[0].permute(0, 2, 3, 1), size[1])

    def rows() -> Operands:
        return with_affine(torch.rand(side, side), side)

    yield Case("norm.layer_norm", layer_norm, rows, STREAMING, 2 * 4 * side * side)
    yield Case("norm.layer_norm.nhwc", layer_norm, pixels, STREAMING, 2 * nbytes, is_contiguous=True)
    yield Case("norm.batch_norm", lambda t, u, v: F.batch_norm(t, None, None, u, v, True), images, STREAMING,
               3 * nbytes)  # fmt: skip
    yield Case("norm.group_norm", lambda t, u, v: F.group_norm(t, 8, u, v), images, STREAMING, 3 * nbytes)


def attention(quick: bool) -> Iterator[Case]:
    """``scaled_dot_product_attention``, causal, 8 heads of 64: forward, and the gradients of all three operands."""

    def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    for is_backward in (False, True):
        way = "backward" if is_backward else "forward"
        products = 5 if is_backward else 2  # the backward computes the scores again
        for length in (512, 1024, 2048, 4096):
            t = length // 32 if quick else length
            yield Case(f"attention.{way}.{length}", causal, rand(3, 1, 8, t, 64), 1.0,
                       flops=products * 2 * 8 * t * t * 64 // 2, is_backward=is_backward, is_contiguous=True)  # fmt: skip


def index(quick: bool) -> Iterator[Case]:
    """Gathers, scatters, and what sorts, counts or selects of a thousand, 64 thousand and a million elements."""
    n = 1 << (12 if quick else 20)
    nbytes = 4 * n

    def table(width: int) -> Callable[[], Operands]:
        return lambda: (torch.rand(n // width, width), torch.randint(n // width, (n // width,)))

    def permuted() -> Operands:
        return torch.rand(n), torch.randperm(n)

    def scattered_rows(t: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(t).index_add(0, i, t)

    for width in (8, 64):
        yield Case(
            f"index.select_rows.{width}", lambda t, i: t.index_select(0, i), table(width), 1.0, 2 * nbytes
        )
        yield Case(f"index.embedding.{width}", lambda t, i: F.embedding(i, t), table(width), 1.0, 2 * nbytes)
        yield Case(f"index.add_rows.{width}", scattered_rows, table(width), 1.0, 4 * nbytes)
    yield Case("index.gather", lambda t, i: t.gather(0, i), permuted, 1.0, 4 * nbytes)
    yield Case(
        "index.scatter_add", lambda t, i: torch.zeros_like(t).scatter_add(0, i, t), permuted, 1.0, 4 * nbytes
    )
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        yield Case(f"index.scatter_reduce.{reduce}", _reducing(reduce), lambda: _tenfold(n), 1.0)
    for label, count in (("1k", 1 << 10), ("64k", 1 << 16), ("1M", 1 << 20)):
        count = min(count, n)
        for name, function in SELECTIONS.items():
            yield Case(f"index.{name}.{label}", function, rand(1, count), 1.0)
        yield Case(
            f"index.unique.{label}", lambda t: torch.unique(t, return_inverse=True), _counts(count), 1.0
        )
        yield Case(f"index.bincount.{label}", torch.bincount, _counts(count), 1.0)


SELECTIONS: dict[str, Function] = {
    "sort": torch.sort,
    "topk": lambda t: torch.topk(t, 100),
    "cumsum": lambda t: torch.cumsum(t, 0),
    "histc": lambda t: torch.histc(t, 100, 0, 1),
}


def _reducing(reduce: str) -> Function:
    return lambda t, i, terms: t.scatter_reduce(0, i, terms, reduce)


def _tenfold(n: int) -> Operands:
    """A tenth of ``n`` numbers, and ``n`` that go there."""
    places = n // 10
    return torch.rand(places), torch.randint(places, (n,)), torch.rand(n)


def _counts(count: int) -> Callable[[], Operands]:
    """Whole numbers of which each occurs some sixteen times."""
    return lambda: (torch.randint(max(count // 16, 1), (count,)),)


SUITES: dict[str, Callable[[bool], Iterator[Case]]] = {
    "pointwise": pointwise,
    "reduction": reduction,
    "gemm": gemm,
    "conv": convolutions.conv,
    "norm": norm,
    "attention": attention,
    "index": index,
    "linalg": factorizations.linalg,
    "fft": factorizations.fft,
    "sparse": sparse.sparse,
}


def names() -> list[str]:
    """Of all cases, in the order of the suites."""
    return [case.name for suite in SUITES.values() for case in suite(False)]


def benchmark(name: str) -> Callable[[int, bool], list[Result]]:
    """What measures the case of that name."""

    def run(rounds: int, quick: bool) -> list[Result]:
        cases = {case.name: case for case in SUITES[name.partition(".")[0]](quick)}
        return [measured(cases[name], rounds, quick)]

    return run


def measured(case: Case, rounds: int, quick: bool) -> Result:
    """The case on maca and on PyTorch's CPU, NHWC too where operands have four dimensions."""
    operands = case.make()
    call = _gradient if case.is_backward else _call
    contenders: dict[str, Callable[[], object]] = {
        "maca": call(case.function, tuple(_moved(t, case.is_contiguous) for t in operands)),
        "native": call(case.function, operands),
    }
    if any(_has_pixels(t) for t in operands) and not case.is_contiguous:
        in_pixels = tuple(
            t.contiguous(memory_format=torch.channels_last) if _has_pixels(t) else t for t in operands
        )
        contenders["native NHWC"] = call(case.function, in_pixels)
    if case.is_small:
        timing = interleave_short(contenders, rounds, 4 if quick else 20)
    else:
        timing = interleave(contenders, rounds, 0.001 if quick else 0.1, settle=0.0 if quick else 0.02)
    better = min((c for c in contenders if c != "maca"), key=timing.seconds)
    seconds = timing.seconds("maca")
    rate = _rate(case, seconds, quick)
    return Result(
        case.name, better, timing.ratio("maca", better), case.bar, timing.seconds(better), seconds,
        spread=timing.spread("maca", better), middle=timing.middle("maca", better), rate=rate,
        is_at_ceiling=rate is not None and case.nbytes > 0 and rate.share >= NEAR_CEILING,
    )  # fmt: skip


def _moved(t: torch.Tensor, is_contiguous: bool) -> torch.Tensor:
    return t.to("maca", memory_format=torch.contiguous_format) if is_contiguous else t.to("maca")


def _call(function: Function, operands: Operands) -> Callable[[], object]:
    def call() -> object:
        with torch.inference_mode():
            return function(*operands)

    return call


def _gradient(function: Function, operands: Operands) -> Callable[[], object]:
    leaves = tuple(t.detach().requires_grad_() for t in operands)
    result = function(*leaves)
    assert isinstance(result, torch.Tensor)
    gradient = torch.ones_like(result)
    return lambda: torch.autograd.grad(result, leaves, gradient, retain_graph=True)


def _rate(case: Case, seconds: float, quick: bool) -> Rate | None:
    if not (case.nbytes or case.flops):
        return None
    top = ceilings(torch.get_num_threads(), quick)
    if case.flops:
        return Rate(case.flops / seconds, *top.arithmetic)
    ceiling, of = (top.read, "read") if case.reads_only else (top.copy, "copy")
    return Rate(case.nbytes / seconds, ceiling, of)


def _has_pixels(t: torch.Tensor) -> bool:
    return t.dim() == 4 and t.shape[2:] != (1, 1)
