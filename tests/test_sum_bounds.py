"""The bounds of sums: what clean kernels give lies inside on all data, products of fewer bits lie outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from macatensor.parity.chains import rounding
from macatensor.parity.measure import Distance
from macatensor.parity.reference import expected, judge
from macatensor.parity.transport import fetch, place, replace, tensors
from macatensor.parity.watch import ELSEWHERE
from op_table import TABLE

aten = torch.ops.aten
_EPS = 2.0**-23
Draw = Callable[..., torch.Tensor]
DRAWS: dict[str, Draw] = {
    "positive": torch.rand,
    "normal": torch.randn,
    "constant": lambda *sizes: torch.full(sizes, 0.1),
    "steep": lambda *sizes: torch.exp(3 * torch.randn(sizes)),
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _share(row: str, args: tuple[Any, ...], got: list[Any], elsewhere: bool = False) -> float:
    """Of what the row's bound allows."""
    func = getattr(getattr(aten, row.partition(".")[0]), row.partition(".")[2] or "default")
    with torch.no_grad():
        measured: tuple[Distance, list[str]] = judge(
            TABLE[row], expected(func, TABLE[row], args, {}, elsewhere), got, args
        )
    assert bool(measured[1]) == (not measured[0].share <= 1), measured
    return measured[0].share


def _results(row: str, args: Any) -> list[Any]:
    func = getattr(getattr(aten, row.partition(".")[0]), row.partition(".")[2] or "default")
    with torch.no_grad():
        return tensors(func(*args))


def _clean(row: str, args: tuple[Any, ...]) -> None:
    ours = [None if t is None else fetch(t) for t in _results(row, replace(args, place))]
    assert _share(row, args, ours) <= 1
    assert _share(row, args, _results(row, args), True) <= ELSEWHERE, "PyTorch's own"


def _with_bits(args: Any, bits: int) -> Any:
    """The call's floats rounded to ``bits`` binary digits, half away from zero, in float64."""

    def rounded(t: torch.Tensor) -> torch.Tensor:
        if t.dtype is not torch.float32:
            return t
        last = 1 << (24 - bits)
        return ((t.contiguous().view(torch.int32) + last // 2) & -last).view(torch.float32).double()

    return replace(args, rounded)


def _of_fewer_bits(row: str, args: tuple[Any, ...], bits: int) -> float:
    """Share of the bound of the call with operands of fewer bits, its sum exact."""
    faulty = [None if t is None else t.float() for t in _results(row, _with_bits(args, bits))]
    return _share(row, args, faulty)


def _products(draw: Draw, depth: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    a, b = draw(64, depth), draw(depth, 64)
    yield "mm", (a, b)
    if depth > 2048:
        return
    yield "bmm", (a[None], b[None])
    yield "addmm", (draw(64), a, b)
    yield "mv", (draw(512, depth), draw(depth))


def _convolution(
    draw: Draw, c: int, size: int, k: int, out: int = 64, batch: int = 4
) -> Iterator[tuple[str, Any]]:
    x, w = draw(batch, c, size, size), draw(out, c, k, k)
    shape: tuple[Any, ...] = ([1, 1], [k // 2, k // 2], [1, 1], False, [0, 0], 1)
    yield "convolution", (x, w, None, *shape)
    grad = draw(batch, out, size, size)
    for mask in ([True, False, False], [False, True, False]):
        yield "convolution_backward", (grad, x, w, [out], *shape, mask)


def _convolutions(draw: Draw) -> Iterator[tuple[str, Any]]:
    yield from _convolution(draw, 512, 7, 1)
    yield from _convolution(draw, 16, 32, 3)  # by minimal filtering
    yield from _convolution(draw, 8, 16, 3)
    yield from _convolution(draw, 3, 32, 7)


def _reductions(draw: Draw) -> Iterator[tuple[str, tuple[Any, ...]]]:
    x = draw(16, 16384)
    yield "sum", (x,)
    yield "sum.dim_IntList", (x, [1])
    yield "mean.dim", (x, [1])
    yield "var.correction", (x, [1])
    yield "linalg_vector_norm", (x, 2, [1])
    yield "cumsum", (x, 1)
    yield "_softmax", (x.clamp(max=80), 1, False)
    yield "native_layer_norm", (x, [16384], draw(16384), draw(16384), 1e-5)
    images = x.reshape(16, 16, 32, 32)
    yield "native_batch_norm", (images, draw(16), draw(16), None, None, True, 0.1, 1e-5)
    yield "index_add", (draw(4, 8), 0, torch.zeros(16384, dtype=torch.int64), draw(16384, 8))
    yield "embedding_dense_backward", (draw(16384, 8), torch.zeros(16384, dtype=torch.int64), 4, -1, False)
    yield "avg_pool2d", (draw(2, 3, 128, 128), [128, 128])


@pytest.mark.parametrize("data", DRAWS)
@pytest.mark.parametrize("depth", [1, 16, 64, 512, 2048, 16384])
def test_products(data: str, depth: int) -> None:
    for row, args in _products(DRAWS[data], depth):
        _clean(row, args)
        assert _of_fewer_bits(row, args, 8) > ELSEWHERE, f"{row}: bfloat16's bits"
        assert _of_fewer_bits(row, args, 11) > 1, f"{row}: TF32's bits"


@pytest.mark.parametrize("data", DRAWS)
def test_convolutions(data: str) -> None:
    for row, args in _convolutions(DRAWS[data]):
        _clean(row, args)
        assert _of_fewer_bits(row, args, 8) > ELSEWHERE, f"{row}: bfloat16's bits"
        assert _of_fewer_bits(row, args, 11) > 1 or data == "constant" and args[-1] == [False, True, False]


def test_weight_gradients_of_either_sign() -> None:
    for row, args in _convolution(torch.randn, 16, 64, 1, batch=8):
        _clean(row, args)
        assert _of_fewer_bits(row, args, 11) > 1, "TF32's bits, in sums of 32768 terms"


@pytest.mark.parametrize("size", [48, 64])
@pytest.mark.parametrize("bits", [8, 11])
@pytest.mark.parametrize("accumulated", [False, True])
def test_weight_gradients_of_fewer_bits_are_told_apart(size: int, bits: int, accumulated: bool) -> None:
    """Sums of 9,216 and 16,384 positive terms, whose one chain of float32 is no more exact than TF32's products."""
    ((_, _), (_, _), (row, args)) = _convolution(torch.rand, 16, size, 1, batch=4)
    _clean(row, args)
    assert _of_fewer_bits(row, args, bits) > 1
    if accumulated:  # in float32, as the hardware adds
        rounded = [a.float() if isinstance(a, torch.Tensor) else a for a in _with_bits(args, bits)]
        assert _share(row, tuple(rounded), _results(row, rounded)) <= ELSEWHERE
        assert _share(row, args, _results(row, rounded)) > 1


@pytest.mark.parametrize("data", DRAWS)
def test_reductions(data: str) -> None:
    for row, args in _reductions(DRAWS[data]):
        _clean(row, args)


@pytest.mark.parametrize("data", DRAWS)
def test_attention(data: str) -> None:
    query, key, value = (DRAWS[data](1, 2, 512, 64).clamp(max=4) for _ in range(3))
    with torch.no_grad():
        wanted = torch.nn.functional.scaled_dot_product_attention(
            query.double(), key.double(), value.double()
        )
        got = fetch(torch.nn.functional.scaled_dot_product_attention(place(query), place(key), place(value)))
    limit = TABLE["scaled_dot_product_attention"].bound.limit("float32")
    assert float(((got - wanted).abs() / wanted.abs().clamp(min=1e-2)).max()) <= limit * _EPS * 10


@pytest.mark.parametrize("data", ["positive", "constant"])
def test_a_sum_in_bfloat16_fails(data: str) -> None:
    x = DRAWS[data](4, 16384)
    chain = torch.zeros(4, dtype=torch.bfloat16)
    for column in x.unbind(1)[:2048]:
        chain += column.to(torch.bfloat16)
    args = (x[:, :2048].contiguous(), [1])
    assert _share("sum.dim_IntList", args, [chain.float()]) > ELSEWHERE


@pytest.mark.parametrize("data", ["positive", "normal", "constant"])
@pytest.mark.parametrize("depth", [16, 512, 2048, 16384])
def test_a_lost_term_fails(data: str, depth: int) -> None:
    a, b = DRAWS[data](64, depth), DRAWS[data](depth, 64)
    assert _share("mm", (a, b), [(a[:, :-1].double() @ b[:-1].double()).float()]) > 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.complex128])
def test_other_dtypes(dtype: torch.dtype) -> None:
    for draw in DRAWS.values():
        a, b = draw(32, 2048).to(dtype), draw(2048, 32).to(dtype)
        _clean("mm", (a, b))
        kept = a.to(torch.float32 if dtype is torch.float64 else dtype).to(dtype)
        if dtype is torch.float64:
            assert _share("mm", (kept + kept * 2**-40, b), [kept @ b]) > 1


def test_rounding_follows_the_data() -> None:
    """In eps of the terms' magnitudes: independent roundings by the root of a chain, equal ones by its length."""
    allowed: dict[tuple[str, int, float], float] = {}
    for name in ("constant", "positive", "normal"):
        for count in (1024, 16384):
            terms = (DRAWS[name](count) * DRAWS[name](count)).double().numpy()
            for chain in (512, np.inf):
                found = rounding(terms, torch.float32, chain) / (_EPS * np.abs(terms).sum())
                allowed[name, count, chain] = found
    assert 2 < allowed["positive", 16384, np.inf] / allowed["positive", 1024, np.inf] < 8
    assert allowed["constant", 16384, np.inf] > 5 * allowed["positive", 16384, np.inf]
    assert allowed["positive", 16384, 512] < allowed["positive", 1024, np.inf]
    assert max(allowed["normal", n, c] for n in (1024, 16384) for c in (512, np.inf)) < 8
    assert rounding(np.zeros(0), torch.float32, 512) == 0
