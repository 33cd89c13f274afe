"""Measures how near kernels that move memory come to a copy's speed, beside PyTorch's own on the same GPU, and checks
each result against float64. The last line is JSON.

    MACA_LIBRARY=libmaca_cuda.so python bandwidth.py [--elements 67108864] [--only softmax]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import macatensor  # noqa: F401  (the device)

HAS_CUDA = torch.cuda.is_available()
REFERENCE = "cuda" if HAS_CUDA else "cpu"
EPSILON = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8}
OTHER = {torch.float32: torch.bfloat16, torch.bfloat16: torch.float32}
Call = Callable[[list[Tensor]], Tensor]


@dataclass(frozen=True)
class Case:
    """A call on operands of a shape, and how many bytes it moves at least."""

    name: str
    call: Call
    shape: Callable[[int], tuple[int, ...]]
    operands: int = 1
    moves: float = 2.0  # elements of the operands' dtype, as multiples of the first operand's
    terms: Call | None = None  # the size of what is added up, where results cancel
    prepare: Call | None = None  # the first operand's layout


def _flat(n: int) -> tuple[int, ...]:
    return (n,)


def _rows(n: int) -> tuple[int, ...]:
    width = 1 << (int(math.log2(n)) // 2)
    return (n // width, width)


def _wide(n: int) -> tuple[int, ...]:
    return (max(n // 4096, 1), min(n, 4096))


def _images(n: int) -> tuple[int, ...]:
    return (max(n >> 20, 1), 256, 64, 64) if n >= 1 << 20 else (2, max(n >> 7, 1), 8, 8)


def _bias(xs: list[Tensor]) -> Tensor:
    return xs[0] + xs[1][0]


def _where(xs: list[Tensor]) -> Tensor:
    return torch.where(xs[0], xs[1], xs[2])


def _layer_norm(xs: list[Tensor]) -> Tensor:
    return F.layer_norm(xs[0], xs[0].shape[1:], xs[1][0], xs[2][0])


def _batch_norm(xs: list[Tensor]) -> Tensor:
    return F.batch_norm(xs[0], None, None, training=True)


def _layer_norm_backward(xs: list[Tensor]) -> Tensor:
    x, grad, mean, rstd = xs
    got: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_layer_norm_backward(
        grad, x, [x.shape[1]], mean, rstd, x[0], x[0], [True, True, True]
    )
    return got[0]


def _channels_last(xs: list[Tensor]) -> Tensor:
    return xs[0].contiguous(memory_format=torch.channels_last)


def _adds(call: Call) -> Call:
    return lambda xs: call([x.abs() for x in xs])


def _sum(xs: list[Tensor]) -> Tensor:
    return xs[0].sum()


def _sum_rows(xs: list[Tensor]) -> Tensor:
    return xs[0].sum(1)


def _sum_columns(xs: list[Tensor]) -> Tensor:
    return xs[0].sum(0)


def _mean(xs: list[Tensor]) -> Tensor:
    return xs[0].mean(1)


CASES = [
    Case("copy", lambda xs: xs[0].clone(), _flat),
    Case("copy of what is misaligned", lambda xs: xs[0][1:].clone(), _flat),
    Case("add", lambda xs: xs[0] + xs[1], _flat, 2, 3, _adds(lambda xs: xs[0] + xs[1])),
    Case("multiply by a number", lambda xs: xs[0] * 1.5, _flat),
    Case("relu", lambda xs: xs[0].relu(), _flat),
    Case("gelu", lambda xs: F.gelu(xs[0]), _flat),
    Case("add a bias", _bias, _wide, 2, 2, _adds(_bias)),
    Case("where", _where, _flat, 3, 3.25),
    Case("sum of all", _sum, _flat, 1, 1, _adds(_sum)),
    Case("sum of rows", _sum_rows, _rows, 1, 1, _adds(_sum_rows)),
    Case("sum of columns", _sum_columns, _rows, 1, 1, _adds(_sum_columns)),
    Case("mean of rows", _mean, _rows, 1, 1, _adds(_mean)),
    Case("largest of all", lambda xs: xs[0].amax(), _flat, 1, 1),
    Case("largest of rows", lambda xs: xs[0].amax(1), _rows, 1, 1),
    Case("softmax", lambda xs: xs[0].softmax(1), _wide),
    Case("log_softmax", lambda xs: xs[0].log_softmax(1), _wide, terms=lambda xs: xs[0].abs() + 10),
    Case("layer_norm", _layer_norm, _wide, 3, 2, lambda xs: torch.ones_like(xs[0]) * 10),
    Case("layer_norm backward", _layer_norm_backward, _wide, 4, 3, lambda xs: torch.ones_like(xs[0]) * 40),
    Case("batch_norm", _batch_norm, _images, 1, 3, lambda xs: torch.ones_like(xs[0]) * 10),
    Case("batch_norm, channels last", _batch_norm, _images, 1, 3, lambda xs: torch.ones_like(xs[0]) * 10,
         _channels_last),
    Case("max_pool, channels last", lambda xs: F.max_pool2d(xs[0], 3, 2, 1), _images, 1, 1.25, None, _channels_last),
    Case("cast", lambda xs: xs[0].to(OTHER.get(xs[0].dtype, torch.float64)), _flat),
    Case("transposing copy", lambda xs: xs[0].t().contiguous(), _rows),
    Case("to channels last", _channels_last, _images),
]  # fmt: skip


def _wait() -> None:
    torch.maca.synchronize()  # type: ignore[attr-defined]
    if HAS_CUDA:
        torch.cuda.synchronize()


def _seconds(call: Callable[[], object], seconds: float) -> float:
    """The median of a call's time, of rounds that are queued whole; `seconds` is what all may take."""
    call()
    _wait()
    begin = time.perf_counter()
    call()
    _wait()
    once = max(time.perf_counter() - begin, 1e-6)
    calls = max(min(int(seconds / 5 / once), 50), 1)
    rounds = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        _wait()
        rounds.append((time.perf_counter() - begin) / calls)
    return statistics.median(rounds)


def _worst(got: Tensor, want: Tensor, size: Tensor, epsilon: float) -> float:
    """The largest distance, in epsilons of `size`."""
    distance = (got.to(REFERENCE).double() - want).abs() / size.clamp(min=1e-30)
    return float(distance.max()) / epsilon


def _operands(case: Case, n: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator(REFERENCE).manual_seed(0)
    xs = [
        torch.randn(case.shape(n), device=REFERENCE, generator=generator).to(dtype)
        for _ in range(case.operands)
    ]
    if case.name == "where":
        xs[0] = xs[0] > 0
    if case.name == "layer_norm backward":
        wide = torch.float32 if HAS_CUDA else dtype
        xs[2:] = [xs[2].mean(1, keepdim=True).to(wide), torch.ones_like(xs[3][:, :1], dtype=wide)]
    if case.prepare:
        xs[0] = case.prepare(xs)
    return xs


def _measured(case: Case, n: int, dtype: torch.dtype, seconds: float) -> dict[str, object]:
    theirs = _operands(case, n, dtype)
    ours = [x.cpu().to("maca") for x in theirs]
    got = case.call(ours).cpu()
    exact = [x if x.dtype == torch.bool else x.double() for x in theirs]
    want = case.call(exact).double()
    size = (case.terms(exact) if case.terms else want).abs().double()
    if case.name == "cast":
        want, size = exact[0], exact[0].abs()
    epsilons = _worst(got, want, size, max(EPSILON[dtype], EPSILON.get(got.dtype, 0)))
    del exact, want, size
    moved = case.moves * theirs[0].numel() * got.element_size()
    if case.name == "cast":
        moved = theirs[0].numel() * 6.0
    mine, reference = (_seconds(lambda xs=xs: case.call(xs), seconds) for xs in (ours, theirs))  # type: ignore[misc]
    return {
        "case": case.name, "dtype": str(dtype).removeprefix("torch."), "microseconds": mine * 1e6,
        "bytes_a_second": moved / mine, "to_torch": mine / reference, "epsilons": epsilons,
    }  # fmt: skip


def _adam(n: int, seconds: float) -> dict[str, object]:
    """Fused Adam on a hundred tensors of float32: four are read and three written."""
    generator = torch.Generator(REFERENCE).manual_seed(0)
    sizes = [max(n // 100 + i - 50, 1) for i in range(100)]

    def steps(device: str, dtype: torch.dtype) -> torch.optim.Adam:
        params = [torch.randn(s, generator=generator.manual_seed(s), device=REFERENCE) for s in sizes]
        grads = [torch.randn(s, generator=generator.manual_seed(-s), device=REFERENCE) for s in sizes]
        if device != REFERENCE:
            params, grads = ([x.cpu().to(device) for x in xs] for xs in (params, grads))
        params, grads = ([x.to(dtype) for x in xs] for xs in (params, grads))
        for p, g in zip(params, grads, strict=True):
            p.requires_grad_().grad = g
        return torch.optim.Adam(params, lr=1e-2, fused=True)

    ours, theirs, exact = (
        steps("maca", torch.float32),
        steps(REFERENCE, torch.float32),
        steps(REFERENCE, torch.float64),
    )
    for optimizer in (ours, exact):
        optimizer.step()
        optimizer.step()
    got, want = ([p.detach() for p in o.param_groups[0]["params"]] for o in (ours, exact))
    epsilons = max(
        _worst(a.cpu(), b, b.abs() + 1, EPSILON[torch.float32]) for a, b in zip(got, want, strict=True)
    )
    mine, reference = _seconds(ours.step, seconds), _seconds(theirs.step, seconds)
    return {
        "case": "fused Adam, 100 tensors", "dtype": "float32", "microseconds": mine * 1e6,
        "bytes_a_second": 28.0 * sum(sizes) / mine, "to_torch": mine / reference, "epsilons": epsilons,
    }  # fmt: skip


def _copy_bytes_a_second(n: int, seconds: float) -> float:
    """The ceiling: a copy of float32 by PyTorch, read and written."""
    from_memory = torch.ones(n, device=REFERENCE)
    into = torch.empty_like(from_memory)
    return 8.0 * n / _seconds(lambda: into.copy_(from_memory), seconds)


def main() -> None:
    """Measures, prints a table, and JSON behind it; ends with 1 where a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 26)
    parser.add_argument("--seconds", type=float, default=0.15, help="for each measurement")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    begin = time.perf_counter()
    copy = _copy_bytes_a_second(options.elements, options.seconds)
    results: list[dict[str, object]] = []

    def tell(line: dict[str, object]) -> None:
        line["share_of_copy"] = float(str(line["bytes_a_second"])) / copy
        results.append(line)
        print(
            f"{line['case']:28} {line['dtype']:9} {line['microseconds']:9.1f} us  {line['share_of_copy']:6.1%} of a copy"
            f"  {line['to_torch']:6.2f} of torch's time  {line['epsilons']:8.2f} eps",
            flush=True,
        )

    for case in CASES:
        for dtype in (torch.float32, torch.bfloat16):
            if options.only in case.name:
                tell(_measured(case, options.elements, dtype, options.seconds))
    if options.only in "fused Adam, 100 tensors":
        tell(_adam(options.elements, options.seconds))
    wrong = [line for line in results if not float(str(line["epsilons"])) <= 16]
    print(
        json.dumps(
            {
                "elements": options.elements, "copy_bytes_a_second": copy, "results": results,
                "wrong": [f"{line['case']} {line['dtype']}" for line in wrong],
                "seconds": time.perf_counter() - begin,
            }
        )
    )  # fmt: skip
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
