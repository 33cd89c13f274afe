"""Products that read a weight of few bits as it is stored, against float64, and against the composites behind them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from running import level_is_at_least

import macatensor
from macatensor import maca
from macatensor.dispatch.attribute_rules import ATTRIBUTE_RULES, order_of_cpu
from macatensor.operators import quantized_products
from macatensor.operators.composites import FUNCTIONS
from macatensor.runtime import plan_caches
from op_table import TABLE

aten = torch.ops.aten
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# m, k, n: few rows and many, whole blocks of rows and others, depths that fill no vector
INT8 = [
    (1, 1, 1),
    (1, 63, 9),
    (2, 4096, 48),
    (3, 100, 33),
    (8, 517, 64),
    (9, 64, 300),
    (70, 96, 513),
    (130, 1100, 70),
]
INT4 = [
    (1, 32, 16),
    (1, 4096, 48),
    (2, 96, 80),
    (5, 256, 112),
    (8, 128, 64),
    (9, 64, 304),
    (70, 96, 528),
    (130, 1280, 80),
]


@pytest.fixture(autouse=True)
def nothing_on_the_host() -> Iterator[None]:
    with macatensor.fallback("error"):
        yield


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def whole(*shape: int, low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def assert_bounded(
    name: str, ours: torch.Tensor, exact: torch.Tensor, terms: torch.Tensor, rows: float = 1
) -> None:
    """Within the number of the row ``name``; ``rows``: how often."""
    room = (
        rows * TABLE[name].bound.limit(str(ours.dtype).removeprefix("torch.")) * torch.finfo(ours.dtype).eps
    )
    error = (ours.double().cpu() - exact).abs()
    assert bool((error <= room * terms).all()), (error / (terms * torch.finfo(ours.dtype).eps)).max()


def int8_operands(
    m: int, k: int, n: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    weight = whole(n, k, low=-128, high=128, dtype=torch.int8)
    return drawn(m, k, dtype=dtype), weight, (drawn(n).abs() * 0.1).to(dtype)


def int8_reference(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The product in float64 and the sum of its terms' magnitudes."""
    exact = (x.double() @ weight.double().t()) * scales.double()
    return exact, (x.double().abs() @ weight.double().abs().t()) * scales.double()


def int4_operands(
    m: int, k: int, n: int, dtype: torch.dtype, group: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    numbers = whole(n, k, low=0, high=16, dtype=torch.int32)
    return drawn(m, k, dtype=dtype), numbers, (drawn(k // group, n, 2) * 0.1).to(dtype)


def int4_reference(
    x: torch.Tensor, numbers: torch.Tensor, pairs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The product in float64 and the sum of its terms' magnitudes."""
    group = x.shape[1] // pairs.shape[0]
    scale, zero = pairs.double().repeat_interleave(group, 0).unbind(2)
    signed = numbers.double().t() - 8
    terms = x.double().abs() @ (signed.abs() * scale.abs() + zero.abs())
    return x.double() @ (signed * scale + zero), terms


def packed(numbers: torch.Tensor) -> torch.Tensor:
    """In maca's own order, on maca."""
    both = (numbers[:, ::2] << 4 | numbers[:, 1::2]).to(torch.uint8)
    made: torch.Tensor = aten._convert_weight_to_int4pack(maca(both), 2)
    return made


@pytest.mark.parametrize("size", INT8)
@pytest.mark.parametrize("dtype", FLOATS)
def test_int8_weights_within_the_bound(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    x, weight, scales = int8_operands(*size, dtype)
    exact, terms = int8_reference(x, weight, scales)
    before = macatensor.counters()["composites"]
    with macatensor.launches() as made:
        ours = aten._weight_int8pack_mm(maca(x), maca(weight), maca(scales))
    assert macatensor.counters()["composites"] == before
    assert any(launch.implementation == "weight of int8" for launch in made)
    assert_bounded("_weight_int8pack_mm", ours, exact, terms)
    # rows and columns that lie apart, and one row for all
    apart = maca(torch.stack([x, -x], -1))[..., 0]
    assert torch.equal(aten._weight_int8pack_mm(apart, maca(weight), maca(scales)).cpu(), ours.cpu())
    turned = maca(x.t().contiguous()).t()
    assert torch.equal(aten._weight_int8pack_mm(turned, maca(weight), maca(scales)).cpu(), ours.cpu())
    one = maca(x)[:1]
    repeated = aten._weight_int8pack_mm(one.expand(3, -1), maca(weight), maca(scales)).cpu()
    assert torch.equal(repeated, repeated[:1].expand(3, -1))


@pytest.mark.parametrize("size", INT4)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_int4_weights_within_the_bound(size: tuple[int, int, int], dtype: torch.dtype, group: int) -> None:
    if size[1] % group:
        size = size[0], group, size[2]
    x, numbers, pairs = int4_operands(*size, dtype, group)
    exact, terms = int4_reference(x, numbers, pairs)
    as_cpu = maca(aten._convert_weight_to_int4pack_for_cpu(numbers, 2))
    before = macatensor.counters()["composites"]
    ours = aten._weight_int4pack_mm_for_cpu(maca(x), as_cpu, group, maca(pairs))
    assert macatensor.counters()["composites"] == before
    assert_bounded("_weight_int4pack_mm_for_cpu", ours, exact, terms)
    own = aten._weight_int4pack_mm(maca(x), packed(numbers), group, maca(pairs))
    assert_bounded("_weight_int4pack_mm", own, exact, terms)


def test_int4_rows_that_fill_no_block() -> None:
    for n in (8, 24, 40, 56):
        x, numbers, pairs = int4_operands(3, 64, n, torch.float32, 32)
        exact, terms = int4_reference(x, numbers, pairs)
        for rows in (1, 3, 12):
            many = x.repeat(4, 1)[:rows]
            ours = aten._weight_int4pack_mm(maca(many), packed(numbers), 32, maca(pairs))
            assert_bounded("_weight_int4pack_mm", ours, exact.repeat(4, 1)[:rows], terms.repeat(4, 1)[:rows])


def test_a_weight_of_eights_gives_zero() -> None:
    x, pairs = drawn(2, 128), torch.stack([torch.ones(4, 32), torch.zeros(4, 32)], -1)
    zero = aten._weight_int4pack_mm(
        maca(x * 1e30), packed(torch.full((32, 128), 8, dtype=torch.int32)), 32, maca(pairs)
    )
    assert not zero.cpu().any()


@pytest.mark.parametrize("order", [(32, True), (64, True), (32, False)])
@pytest.mark.parametrize("n", [16, 32, 48, 64, 80, 112, 128, 176])
def test_orders_of_other_processors(order: tuple[int, bool], n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, numbers, pairs = int4_operands(3, 64, n, torch.float32, 32)
    exact, terms = int4_reference(x, numbers, pairs)
    weight = quantized_products._packed(maca(numbers.to(torch.uint8)), order)
    rule = (("block_rows", order[0]), ("by_halves", order[1]))
    monkeypatch.setitem(ATTRIBUTE_RULES, "order_of_cpu", lambda: rule)
    plan_caches.drop_plans()
    try:
        for rows in (1, 3, 15):
            many = x.repeat(5, 1)[:rows]
            ours = aten._weight_int4pack_mm_for_cpu(maca(many), weight, 32, maca(pairs))
            assert_bounded(
                "_weight_int4pack_mm_for_cpu", ours, exact.repeat(5, 1)[:rows], terms.repeat(5, 1)[:rows]
            )
    finally:
        plan_caches.drop_plans()


def test_depths_of_thousands() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x, weight, scales = int8_operands(2, 16384, 32, dtype)
        exact = (x.double() @ weight.double().t()) * scales.double()
        terms = (x.double().abs() @ weight.double().abs().t()) * scales.double()
        ours = aten._weight_int8pack_mm(maca(x), maca(weight), maca(scales))
        assert_bounded("_weight_int8pack_mm", ours, exact, terms)
        x, numbers, pairs = int4_operands(2, 16384, 32, dtype, 32)
        exact, terms = int4_reference(x, numbers, pairs)
        ours = aten._weight_int4pack_mm(maca(x), packed(numbers), 32, maca(pairs))
        assert_bounded("_weight_int4pack_mm", ours, exact, terms)


def test_no_numbers_pass_through() -> None:
    nan, inf = float("nan"), float("inf")
    x, weight, scales = int8_operands(3, 64, 8, torch.float32)
    x[0, 3], x[1, 5] = nan, inf
    weight[2, 5] = 0  # infinity times zero
    host = aten._weight_int8pack_mm(x, weight, scales)
    ours = aten._weight_int8pack_mm(maca(x), maca(weight), maca(scales)).cpu()
    torch.testing.assert_close(ours, host, equal_nan=True)
    x, numbers, pairs = int4_operands(3, 64, 32, torch.float32, 32)
    x[0, 3], x[1, 5] = nan, inf
    ours = aten._weight_int4pack_mm(maca(x), packed(numbers), 32, maca(pairs)).cpu()
    assert ours[0].isnan().all() and not ours[1].isfinite().any() and ours[2].isfinite().all()


def test_composites_serve_what_is_declined() -> None:
    """A weight that is no dense matrix; the same functions serve a library without the kernel."""
    x, weight, scales = int8_operands(3, 64, 16, torch.float32)
    exact, terms = int8_reference(x, weight, scales)
    apart = maca(torch.stack([weight, weight], -1))[..., 0]
    before = macatensor.counters()["composites"]
    assert_bounded("mm", aten._weight_int8pack_mm(maca(x), apart, maca(scales)), exact, terms)
    assert macatensor.counters()["composites"] > before
    assert_bounded("mm", FUNCTIONS["weight_int8pack_mm"](maca(x), maca(weight), maca(scales)), exact, terms)
    x, numbers, pairs = int4_operands(3, 64, 48, torch.float32, 32)
    exact, terms = int4_reference(x, numbers, pairs)
    assert_bounded("mm", FUNCTIONS["int4_mm"](maca(x), packed(numbers), 32, maca(pairs)), exact, terms)
    as_cpu = maca(aten._convert_weight_to_int4pack_for_cpu(numbers, 2))
    assert_bounded("mm", FUNCTIONS["int4_mm_as_cpu"](maca(x), as_cpu, 32, maca(pairs)), exact, terms)
    a, b = (
        whole(5, 40, low=-128, high=128, dtype=torch.int8),
        whole(40, 9, low=-128, high=128, dtype=torch.int8),
    )
    assert torch.equal(FUNCTIONS["int_mm"](maca(a), maca(b)).cpu(), torch._int_mm(a, b))


# ---- int8 times int8 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [(1, 1024, 100), (6, 1000, 37), (8, 65, 33), (13, 77, 70), (200, 1100, 130), (100, 2001, 1100)]
)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_int_mm_of_all_layouts(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, k, n = size
    low = -128 if dtype is torch.int8 else 0
    a, b = (
        whole(m, k, low=low, high=low + 256, dtype=dtype),
        whole(k, n, low=-128, high=128, dtype=torch.int8),
    )
    exact = (a.double() @ b.double()).to(torch.int32)
    for left in (maca(a), maca(a.t().contiguous()).t()):
        for right in (maca(b), maca(b.t().contiguous()).t(), maca(b.repeat(1, 2))[:, ::2]):
            wanted = exact if right.stride(1) != 2 else (a.double() @ b.repeat(1, 2)[:, ::2].double()).int()
            assert torch.equal(torch._int_mm(left, right).cpu(), wanted)


def test_int_mm_does_not_saturate() -> None:
    """Two products of extremes are more than int16 holds."""
    for k in (2, 64, 4096):
        a, b = torch.full((9, k), -128, dtype=torch.int8), torch.full((k, 40), -128, dtype=torch.int8)
        assert bool((torch._int_mm(maca(a), maca(b)).cpu() == k * 128 * 128).all())
        wide = torch.full((9, k), 255, dtype=torch.uint8)
        assert bool((torch._int_mm(maca(wide), maca(b)).cpu() == -k * 255 * 128).all())


def test_products_meet_their_sum_unrounded() -> None:
    """Two terms of one lane, whose rounded products would leave another difference."""
    if not level_is_at_least("avx2"):
        pytest.xfail("no instruction of the level multiplies and adds at once")
    x, weight = torch.zeros(1, 128), torch.zeros(16, 128)
    x[0, 0], weight[:, 0] = -1, 1 + 2**-11
    x[0, 64], weight[:, 64] = 1 + 2**-12, 1 + 2**-12
    assert torch.mm(maca(x), maca(weight).t()).tolist() == [[2**-24] * 16]
    x[0, 64] = 1 + 2**-23
    numbers = torch.zeros(16, 128, dtype=torch.int8)
    numbers[:, 0], numbers[:, 64] = 127, 127
    ours = aten._weight_int8pack_mm(maca(x), maca(numbers), maca(torch.ones(16)))
    assert ours.tolist() == [[127 * 2**-23] * 16]
    x[0, 0] = -7
    half = torch.full((16, 128), 8, dtype=torch.int32)
    half[:, 0], half[:, 64] = 9, 15
    pairs = torch.stack([torch.ones(1, 16), torch.zeros(1, 16)], -1)
    ours = aten._weight_int4pack_mm(maca(x), packed(half), 128, maca(pairs))
    assert ours.tolist() == [[7 * 2**-23] * 16]


# ---- halves --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "size",
    [
        (1, 64, 3),
        (1, 1023, 257),
        (2, 512, 64),
        (8, 768, 100),
        (3, 16384, 16),
        (9, 5, 7),
        (16, 1, 70),
        (16, 70, 1),
        (70, 96, 513),
        (130, 1100, 70),
    ],
)
def test_halves_times_a_matrix_of_columns(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Of few rows, and of more than are multiplied or as deep as is unpacked at once."""
    m, k, n = size
    x, weight, bias = drawn(m, k, dtype=dtype), drawn(n, k, seed=1, dtype=dtype), drawn(n, dtype=dtype)
    exact, terms = x.double() @ weight.double().t(), x.double().abs() @ weight.double().abs().t()
    assert_bounded("mm", torch.mm(maca(x), maca(weight).t()), exact, terms)
    assert_bounded("mm", torch.mm(maca(x.t().contiguous()).t(), maca(weight).t()), exact, terms)
    with torch.inference_mode():
        linear = torch.nn.functional.linear(maca(x), maca(weight), maca(bias))
    assert_bounded("addmm", linear, exact + bias.double(), terms + bias.double().abs())
    added = torch.addmm(maca(bias), maca(x), maca(weight).t(), beta=0.5, alpha=-2)
    assert_bounded("addmm", added, 0.5 * bias.double() - 2 * exact, 2 * terms + bias.double().abs())
    assert_bounded("mv", torch.mv(maca(weight), maca(x[0])), exact[0], terms[0])


def test_the_order_is_that_of_pytorch() -> None:
    (_, rows), (_, by_halves) = order_of_cpu()
    numbers = whole(2 * rows, 32, low=0, high=16, dtype=torch.int32)
    ours = quantized_products._packed(numbers.to(torch.uint8), (rows, by_halves))
    assert torch.equal(ours, aten._convert_weight_to_int4pack_for_cpu(numbers, 2))
