"""Products of quantized numbers and fake quantization on the device against those of the host."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import macatensor
from macatensor import maca

aten = torch.ops.aten
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
# AMX's products of float8 are oneDNN's, which scales after it has added
ROOM = 16.0


@pytest.fixture(autouse=True)
def nothing_on_the_host() -> Iterator[None]:
    with macatensor.fallback("error"):
        yield


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def whole(*shape: int, low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def both(call: Callable[..., Any], *operands: Any) -> tuple[Any, Any]:
    """A call's results on the host and on the device, or what it raises."""
    results = []
    for device in ("cpu", "maca"):
        placed = [
            torch.empty_strided(o.shape, o.stride(), dtype=o.dtype, device=device).copy_(o)
            if isinstance(o, torch.Tensor)
            else o
            for o in operands
        ]
        try:
            result = call(*placed)
            results.append([t.cpu() for t in result] if isinstance(result, tuple) else result.cpu())
        except (RuntimeError, ValueError, IndexError, NotImplementedError) as error:
            results.append(error)
    return results[0], results[1]


def assert_same(call: Callable[..., Any], *operands: Any) -> None:
    """The same bits, sizes, strides and dtypes; or an error of the same class in the same words."""
    host, ours = both(call, *operands)
    if isinstance(host, Exception):
        assert type(ours) is type(host) and str(ours).split("\n")[0] == str(host).split("\n")[0], (ours, host)
        return
    assert not isinstance(ours, Exception), ours
    for a, b in zip(*([r] if isinstance(r, torch.Tensor) else r for r in (ours, host))):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.numel() < 2 or a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def assert_near(terms: torch.Tensor, call: Callable[..., Any], *operands: Any) -> None:
    """Within :data:`ROOM` eps of the terms' magnitudes of what the host gives."""
    host, ours = both(call, *operands)
    assert not isinstance(host, Exception) and not isinstance(ours, Exception), (host, ours)
    assert (ours.dtype, ours.shape, ours.stride()) == (host.dtype, host.shape, host.stride())
    room = ROOM if host.dtype is torch.float32 else 1.0
    error = (ours.double() - host.double()).abs()
    assert bool((error <= room * torch.finfo(host.dtype).eps * terms.double()).all()), error.max()


# ---- products --------------------------------------------------------------------------------------------------

SIZES = [(0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1), (5, 7, 3), (17, 64, 33)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_int_mm_is_exact(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, k, n = size
    a, b = whole(m, k, low=-128, high=256, dtype=dtype), whole(k, n, low=-128, high=128, dtype=torch.int8)
    assert_same(torch._int_mm, a, b)
    assert_same(lambda a, b: torch._int_mm(a.t().contiguous().t(), b.t().contiguous().t()), a, b)
    assert_same(lambda a, b: torch._int_mm(a[::2], b[:, 1::2]), a, b)
    assert_same(
        lambda a, b: torch._int_mm(a, b, out=torch.empty(m, n, dtype=torch.int32, device=a.device)), a, b
    )


@pytest.mark.parametrize("size", [(0, 16, 4), (3, 4, 0), (1, 1, 1), (5, 7, 3), (16, 64, 32)])
@pytest.mark.parametrize("kinds", itertools.product(FLOAT8, FLOAT8))
def test_scaled_mm_of_all_scales(size: tuple[int, int, int], kinds: tuple[torch.dtype, torch.dtype]) -> None:
    m, k, n = size
    a, b = drawn(m, k, dtype=kinds[0]), drawn(k, n, seed=1, dtype=kinds[1])
    one, other = torch.tensor(0.3), torch.tensor([0.7])
    rows, columns, bias = drawn(m, 1).abs(), drawn(1, n).abs(), drawn(n)
    tensorwise = (a.double().abs() @ b.double().abs()) * 0.21
    rowwise = (a.double().abs() * rows) @ (b.double().abs() * columns)
    for dtype in FLOATS:

        def product(*operands: torch.Tensor, dtype: torch.dtype = dtype) -> torch.Tensor:
            return torch._scaled_mm(*operands, out_dtype=dtype)

        assert_near(tensorwise, product, a, b, one, other)
        assert_near(tensorwise + bias.abs(), product, a, b, one, other, bias)
        assert_near(tensorwise + bias.abs(), product, a, b, one, other, bias.bfloat16())
        assert_near(rowwise, product, a, b, rows, columns)
        assert_near(rowwise, product, a, b.t().contiguous().t(), rows, columns)


def test_scaled_mm_of_recipes() -> None:
    a, b = drawn(5, 16, dtype=FLOAT8[0]), drawn(16, 8, dtype=FLOAT8[0])
    one, rows, columns = torch.tensor(0.5), drawn(5, 1).abs(), drawn(1, 8).abs()
    tensorwise = (a.double().abs() @ b.double().abs()) * 0.25
    assert_near(
        tensorwise, lambda a, b, s: aten._scaled_mm_v2(a, b, [s], [0], [0], [s], [0], [0], None, torch.float32), a, b, one
    )  # fmt: skip
    assert_near(
        (a.double().abs() * rows) @ (b.double().abs() * columns),
        lambda a, b, s, t: aten._scaled_mm_v2(a, b, [s], [1], [0], [t], [1], [0], None, torch.float32), a, b, rows, columns,
    )  # fmt: skip
    same_row = lambda s: s[:1].expand(5, 1)  # noqa: E731 - of strides 0 and 1, which it takes and _scaled_mm does not
    assert_near(
        (a.double().abs() * same_row(rows)) @ (b.double().abs() * columns),
        lambda a, b, s, t: aten._scaled_mm_v2(a, b, [same_row(s)], [1], [0], [t], [1], [0], None, torch.float32), a, b, rows,
        columns,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_scaled_mm_is_rounded_once_into_out(dtype: torch.dtype) -> None:
    made = []
    for device in ("cpu", "maca"):
        a, b = (
            torch.arange(256.0).mul(part).reshape(16, 16).to(torch.float8_e4m3fn).to(device)
            for part in (0.03, 0.02)
        )
        one, out = torch.ones((), device=device), torch.empty(16, 16, dtype=dtype, device=device)
        assert torch._scaled_mm(a, b.t(), one, one, out=out) is out
        with pytest.raises(ValueError, match="out_dtype must match output matrix type"):
            torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.float16, out=out)
        made.append(out.cpu().float())
    torch.testing.assert_close(made[1], made[0])


@pytest.mark.parametrize(
    "size", [(0, 64, 16), (3, 64, 16), (1, 128, 48), (5, 256, 80), (9, 64, 96), (3, 64, 0)]
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_weights_of_8_and_4_bits(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, k, n = size
    x = drawn(m, k, dtype=dtype)
    weight = whole(n, k, low=-128, high=128, dtype=torch.int8)
    scales = (drawn(n).abs() * 0.1).to(dtype)
    terms = (x.double().abs() @ weight.double().abs().t()) * scales.double()
    assert_near(terms, aten._weight_int8pack_mm, x, weight, scales)
    numbers = whole(n, k, low=0, high=16, dtype=torch.int32)
    packed = aten._convert_weight_to_int4pack_for_cpu(numbers, 2)
    for group in (32, 64):
        pair = (drawn(k // group, n, 2).abs() * 0.1).to(dtype)
        scale, zero = pair.double().repeat_interleave(group, 0).unbind(2)
        signed = numbers.double().t() - 8
        terms = x.double().abs() @ (signed.abs() * scale + zero)
        assert_near(terms, aten._weight_int4pack_mm_for_cpu, x, packed, group, pair)
        bytes_ = (numbers[:, ::2] << 4 | numbers[:, 1::2]).to(torch.uint8)
        ours = aten._weight_int4pack_mm(
            maca(x), aten._convert_weight_to_int4pack(maca(bytes_), 2), group, maca(pair)
        ).cpu()
        exact = x.double() @ (signed * scale + zero)
        eps = torch.finfo(dtype).eps
        assert bool(
            ((ours.double() - exact).abs() <= (ROOM if dtype is torch.float32 else 1) * eps * terms).all()
        )


@pytest.mark.parametrize(
    "size", [(16, 2), (32, 4), (48, 32), (64, 6), (80, 2), (112, 8), (128, 32), (0, 8), (16, 0)]
)
def test_int4_is_packed_as_the_host_packs(size: tuple[int, int]) -> None:
    numbers = whole(*size, low=0, high=16, dtype=torch.int32)
    assert_same(lambda q: aten._convert_weight_to_int4pack_for_cpu(q, 2), numbers)
    assert_same(lambda q: aten._convert_weight_to_int4pack_for_cpu(q.t().contiguous().t(), 2), numbers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_4_bits_with_rows_of_8(dtype: torch.dtype) -> None:
    m, k, n = 5, 64, 12
    weight, x = whole(n, k // 2, low=0, high=256, dtype=torch.uint8), drawn(m, k, dtype=dtype)
    for group in (k, 32) if dtype is torch.float32 else (k,):
        scales = drawn(n, k // group).abs() * 0.1
        for bias in (None, drawn(n)):

            def pack(w: torch.Tensor, s: torch.Tensor, b: Any, group: int = group) -> torch.Tensor:
                packed: torch.Tensor = aten._dyn_quant_pack_4bit_weight(w, s, b, group, k, n)
                return packed

            assert_same(pack, weight, scales, bias)
            packed = pack(weight, scales, bias)
            terms = x.double().abs() @ torch.full((k, n), 0.8, dtype=torch.float64) + (
                0 if bias is None else bias.abs()
            )
            assert_near(
                terms, lambda x, p, group=group: aten._dyn_quant_matmul_4bit(x, p, group, k, n), x, packed
            )


def _refused() -> list[Any]:
    i8 = whole(4, 32, low=-8, high=8, dtype=torch.int8)
    e4, one, x = drawn(4, 16, dtype=FLOAT8[0]), torch.tensor(1.0), drawn(4, 32)
    b = drawn(16, 8, dtype=FLOAT8[0])
    i4 = torch.zeros(16, 16, dtype=torch.uint8)

    def scaled(*operands: Any) -> torch.Tensor:
        return torch._scaled_mm(*operands, out_dtype=torch.float32)

    return [
        (torch._int_mm, i8, i8),
        (torch._int_mm, i8[0], i8.t()),
        (torch._int_mm, i8.float(), i8.t()),
        (torch._int_mm, i8, i8.t().to(torch.uint8)),
        (
            lambda a, b: torch._int_mm(a, b, out=torch.empty(5, 4, dtype=torch.int32, device=a.device)),
            i8,
            i8.t(),
        ),
        (lambda a, b: torch._int_mm(a, b, out=torch.empty(4, 4, device=a.device)), i8, i8.t()),
        (scaled, e4[0], b, one, one),
        (scaled, e4, b[:8], one, one),
        (scaled, e4, b, one, one, torch.ones(3)),
        (aten._weight_int8pack_mm, x[0], i8, torch.ones(4)),
        (aten._weight_int8pack_mm, x, i8.to(torch.uint8), torch.ones(4)),
        (aten._weight_int8pack_mm, x, i8[:, :16].contiguous(), torch.ones(4)),
        (aten._weight_int8pack_mm, x, i8, torch.ones(3)),
        (aten._weight_int8pack_mm, x.double(), i8, torch.ones(4)),
        (aten._weight_int4pack_mm_for_cpu, x, i4, 16, torch.ones(2, 16, 2)),
        (aten._weight_int4pack_mm_for_cpu, x, i4, 64, torch.ones(1, 16, 2)),
        (aten._weight_int4pack_mm_for_cpu, x, i4, 32, torch.ones(1, 8, 2)),
        (aten._weight_int4pack_mm_for_cpu, x, i4.to(torch.int8), 32, torch.ones(1, 16, 2)),
        (aten._convert_weight_to_int4pack_for_cpu, torch.zeros(8, 4, dtype=torch.int32), 2),
        (aten._convert_weight_to_int4pack_for_cpu, torch.zeros(16, 3, dtype=torch.int32), 2),
        (aten._convert_weight_to_int4pack_for_cpu, torch.zeros(16, 4, dtype=torch.int64), 2),
        (aten._dyn_quant_pack_4bit_weight, i4.to(torch.int8), torch.ones(16), None, 32, 32, 16),
        (aten._dyn_quant_pack_4bit_weight, i4, torch.ones(16), None, 24, 32, 16),
    ]


@pytest.mark.parametrize("case", _refused(), ids=range(len(_refused())))
def test_products_are_refused_in_the_hosts_words(case: tuple[Any, ...]) -> None:
    host, ours = both(*case)
    assert isinstance(host, Exception)
    assert_same(*case)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: aten._weight_int8pack_mm(x, torch.ones(4, 32, dtype=torch.int8, device="maca"), torch.ones(9, device="maca")),
        lambda x: aten._dyn_quant_matmul_4bit(x, torch.ones(7, device="maca"), 32, 32, 16),
        lambda x: aten._dyn_quant_matmul_4bit(x, torch.ones(7, device="maca"), 0, 0, 16),
        lambda x: aten._dyn_quant_matmul_4bit(x, torch.ones(7, device="maca"), 33, 33, -16),
        lambda x: aten._convert_weight_to_int4pack(x, 2),
        lambda x: aten._weight_int4pack_mm(x, torch.ones(1, 1, 32, 1, dtype=torch.int32, device="maca"), 32, x),
        lambda x: aten._weight_int4pack_mm_for_cpu(x, torch.ones(16, 16, dtype=torch.uint8, device="maca"), 32, x),
    ],
)  # fmt: skip
def test_operands_too_short_are_refused(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(RuntimeError):
        call(torch.ones(4, 32, device="maca"))


# ---- fake quantization -----------------------------------------------------------------------------------------

SPECIAL = [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e30, -1e30, 1e-30]
GRIDS = [
    (0.25, 3, -128, 127),
    (0.1, 0, 0, 255),
    (0.037, -7, -8, 7),
    (1e-9, 0, -128, 127),
    (0.25, 3, -(2**31), 2**31 - 1),
]
WRONG = [(0.1, 300, 0, 255), (0.1, 0, 5, 1)]


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """[8, 5, 9] on steps, between two, beyond the ends."""
    x = drawn(8, 5, 9) * 8
    x.view(-1)[: len(SPECIAL)] = torch.tensor(SPECIAL)
    x.view(-1)[8:200] = torch.arange(192) / 8 - 12
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64, torch.int32])
@pytest.mark.parametrize("grid", GRIDS + WRONG)
def test_fake_quantize_has_the_hosts_bits(dtype: torch.dtype, grid: tuple[float, int, int, int]) -> None:
    scale, zero, low, high = grid
    for x in (
        numbers(dtype),
        numbers(dtype).transpose(0, 2),
        numbers(dtype)[::2, :, 1::3],
        numbers(dtype)[:0],
    ):
        assert_same(aten.fake_quantize_per_tensor_affine_cachemask, x, *grid)
        step, place = torch.tensor([scale]), torch.tensor([zero], dtype=torch.int32)
        assert_same(torch.fake_quantize_per_tensor_affine, x, step, place, low, high)
        for enabled in (0, 1):
            switch = torch.tensor([enabled])
            assert_same(
                aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams,
                x,
                step[0],
                place[0],
                switch,
                low,
                high,
            )
        assert_same(
            torch._fake_quantize_learnable_per_tensor_affine,
            x,
            step,
            torch.tensor([zero + 0.5]),
            low,
            high,
            1.0,
        )


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64, torch.int32])
@pytest.mark.parametrize("of_zero", [torch.int32, torch.float32, torch.float16, torch.int64])
def test_channels_have_the_hosts_bits(dtype: torch.dtype, of_zero: torch.dtype) -> None:
    for x in (numbers(dtype), numbers(dtype).transpose(0, 2), numbers(dtype).reshape(2, 4, 5, 9)):
        for axis in range(-1, x.dim() + 1):
            count = x.shape[axis] if -1 < axis < x.dim() else 1
            scale = drawn(count).abs() * 0.2 + 0.01
            zero = (drawn(count) * 3).to(of_zero)
            assert_same(aten.fake_quantize_per_channel_affine_cachemask, x, scale, zero, axis, -128, 127)
            assert_same(
                torch._fake_quantize_learnable_per_channel_affine,
                x,
                scale,
                drawn(count) * 3,
                axis,
                -128,
                127,
                1.0,
            )


def test_gradients_of_fake_quantization() -> None:
    x = numbers(torch.float32)

    def straight(x: torch.Tensor) -> torch.Tensor:
        leaf = x.clone().requires_grad_()
        torch.fake_quantize_per_tensor_affine(leaf, 0.1, 0, -128, 127).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    def learnt(
        x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, grad: torch.Tensor
    ) -> tuple[Any, ...]:
        leaves = [t.clone().requires_grad_() for t in (x, scale, zero)]
        if scale.numel() == 1:
            made = torch._fake_quantize_learnable_per_tensor_affine(*leaves, -128, 127, 0.5)
        else:
            made = torch._fake_quantize_learnable_per_channel_affine(*leaves, 1, -128, 127, 0.5)
        made.backward(grad)
        return tuple(leaf.grad for leaf in leaves)

    assert_same(straight, x)
    # of numbers that float32 adds exactly, in whatever order
    exact, grad = (whole(8, 5, 9, low=-400, high=400, dtype=torch.float32) / 8 for _ in range(2))
    for count in (1, 5):
        assert_same(learnt, exact, torch.full((count,), 0.25), torch.full((count,), 3.0), grad)


def test_training_with_fake_quantized_modules() -> None:
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

    def train(device: str) -> list[float]:
        torch.manual_seed(0)
        first, second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 2)
        grid = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)
        model = torch.nn.Sequential(first, torch.nn.ReLU(), grid, second).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = drawn(32, 8).to(device), drawn(32, 2).to(device)
        losses = []
        for _ in range(5):
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    torch.testing.assert_close(torch.tensor(train("maca")), torch.tensor(train("cpu")), rtol=1e-3, atol=0)


def test_quantized_tensors_are_refused_by_one_sentence() -> None:
    x = torch.ones(3, 2, device="maca")
    scales, zeros = torch.ones(2, device="maca"), torch.zeros(2, dtype=torch.int64, device="maca")
    for call in (
        lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
        lambda: torch.quantize_per_tensor(x, scales[0], zeros[0], torch.qint8),
        lambda: torch.quantize_per_tensor([x], scales[:1], zeros[:1], torch.qint8),
        lambda: torch.quantize_per_tensor_dynamic(x, torch.quint8, False),
        lambda: torch.quantize_per_channel(x, scales, zeros, 1, torch.qint8),
    ):
        with pytest.raises(
            NotImplementedError, match=r"quantiz\w*.*maca accepts: torch.strided. Use torchao's"
        ):
            call()
