"""Calls of products of quantized numbers and of fake quantization."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from macatensor.parity.draw import Call, Draw, calls
from macatensor.runtime.boxed import Value

_SIZES = ((3, 64, 16), (5, 128, 32), (1, 256, 80), (0, 64, 16))  # m, k, n


def _typical(draw: Draw) -> bool:
    """The operands' dtypes are the operator's own: one dtype stands for all."""
    return draw.dtype is torch.float32


@calls("_int_mm")
def _int_mm(draw: Draw) -> Iterator[Call]:
    low = -128 if draw.dtype is torch.int8 else 0
    for m, k, n in (*_SIZES, (4, 0, 3), (7, 5, 3), (40, 77, 70)):
        a = draw.integers((m, k), low, low + 256).to(draw.dtype)
        b = draw.integers((k, n), -128, 128).to(torch.int8)
        yield Call((draw.lay(a), draw.lay(b)))
        yield Call((draw.lay(a), draw.lay(b.t().contiguous()).t()))


def _factors(draw: Draw) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for m, k, n in ((16, 32, 16), (3, 5, 7)):
        for dtypes in (("e4m3fn", "e4m3fn"), ("e5m2", "e4m3fn")):
            a, b = (
                draw.values(shape, torch.float32, -4, 4).to(getattr(torch, f"float8_{name}"))
                for shape, name in zip(((m, k), (k, n)), dtypes)
            )
            yield draw.lay(a), draw.lay(b)


def _scales(draw: Draw, m: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = (draw.values(shape, torch.float32, 0.25, 2) for shape in ((m, 1), (1, n)))
    return a, b


@calls("_scaled_mm")
def _scaled_mm(draw: Draw) -> Iterator[Call]:
    if not _typical(draw):
        return
    for a, b in _factors(draw):
        one, other = torch.tensor(0.5), torch.tensor([0.3])
        bias = draw.values((b.shape[1],), torch.float32, -2, 2)
        yield Call((a, b, one, other), {"out_dtype": torch.float32})
        yield Call((a, b, one, other, bias), {"out_dtype": torch.bfloat16})
        yield Call((a, b, *_scales(draw, a.shape[0], b.shape[1])), {"out_dtype": torch.float32})


@calls("_scaled_mm_v2")
def _scaled_mm_v2(draw: Draw) -> Iterator[Call]:
    if not _typical(draw):
        return
    for a, b in _factors(draw):
        one = torch.tensor(0.5)
        yield Call((a, b, [one], [0], [0], [one], [0], [0], None, torch.float32))
        scale_a, scale_b = _scales(draw, a.shape[0], b.shape[1])
        yield Call((a, b, [scale_a], [1], [0], [scale_b], [1], [0], None, torch.float32))


@calls("_weight_int8pack_mm")
def _weight_int8pack_mm(draw: Draw) -> Iterator[Call]:
    for m, k, n in (*_SIZES, (12, 100, 300)):
        weight = draw.integers((n, k), -128, 128).to(torch.int8)
        x, scales = draw.values((m, k), draw.dtype, -2, 2), draw.values((n,), draw.dtype, 0.01, 0.1)
        yield Call((draw.lay(x), draw.lay(weight), scales))


@calls("_convert_weight_to_int4pack_for_cpu")
def _convert_weight_to_int4pack_for_cpu(draw: Draw) -> Iterator[Call]:
    if _typical(draw):
        for _, k, n in (*_SIZES, (0, 2, 48), (0, 32, 0)):
            yield Call((draw.lay(draw.integers((n, k), 0, 16).to(torch.int32)), 2))


@calls("_convert_weight_to_int4pack")
def _convert_weight_to_int4pack(draw: Draw) -> Iterator[Call]:
    if _typical(draw):
        for _, k, n in _SIZES:
            yield Call((draw.lay(draw.integers((n, k // 2), 0, 256).to(torch.uint8)), 2))


def _packed(draw: Draw) -> Iterator[tuple[Value, ...]]:
    for m, k, n in (*_SIZES, (12, 96, 304)):
        scales = draw.values((k // 32, n, 2), draw.dtype, 0.01, 0.1)
        packed = draw.integers((n, k // 2), 0, 256).to(torch.uint8)
        yield draw.values((m, k), draw.dtype, -2, 2), packed, 32, scales


@calls("_weight_int4pack_mm_for_cpu")
def _weight_int4pack_mm_for_cpu(draw: Draw) -> Iterator[Call]:
    if draw.plain:
        for args in _packed(draw):
            yield Call(args)


@calls("_weight_int4pack_mm")
def _weight_int4pack_mm(draw: Draw) -> Iterator[Call]:
    if draw.plain:
        for x, packed, group, scales in _packed(draw):
            n, k = packed.shape[0], 2 * packed.shape[1]
            yield Call((x, packed.view(torch.int32).view(n // 8, k // 32, 32, 1), group, scales))


@calls("_dyn_quant_pack_4bit_weight")
def _dyn_quant_pack_4bit_weight(draw: Draw) -> Iterator[Call]:
    if not _typical(draw):
        return
    for _, k, n in _SIZES:
        weight = draw.lay(draw.integers((n, k // 2), 0, 256).to(torch.uint8))
        for block in (k, 32):
            scales, bias = draw.tensor(n, k // block), draw.tensor(n)
            yield Call((weight, scales, None, block, k, n))
            yield Call((weight, scales, bias, block, k, n))


@calls("_dyn_quant_matmul_4bit")
def _dyn_quant_matmul_4bit(draw: Draw) -> Iterator[Call]:
    """Rows that reach from -128 to 127, so that no number lies between two steps."""
    if not (_typical(draw) and draw.plain):
        return
    for m, k, n in _SIZES[:3]:
        x = draw.integers((m, k), -128, 128).float()
        x[:, 0], x[:, 1] = -128, 127
        weight = draw.integers((n * k // 2,), 0, 256).float()
        for block in (k, 32):
            scales = draw.values((n * k // block,), torch.float32, 0.01, 0.1)
            yield Call((x, torch.cat([weight, scales]), block, k, n))


def _on_and_between(draw: Draw) -> Iterator[torch.Tensor]:
    """On the steps of a grid of 1/4, between two, beyond its ends, and no numbers."""
    yield draw.tensor(3, 4, 2, 5)
    x = draw.integers((4, 3, 16), -400, 400).to(draw.dtype) / 8
    yield draw.lay(x)
    if draw.plain:
        x[0, 0, :6] = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 1e30, -1e30])
        yield x
        yield draw.tensor()
        yield draw.tensor(0, 3)


@calls("fake_quantize_per_tensor_affine_cachemask")
def _fake_quantize(draw: Draw) -> Iterator[Call]:
    for x in _on_and_between(draw):
        yield Call((x, 0.25, 3, -128, 127))
        yield Call((x, 0.1, 0, 0, 255))


@calls("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def _fake_quantize_by_tensors(draw: Draw) -> Iterator[Call]:
    for x in _on_and_between(draw):
        for enabled in (1, 0):
            numbers = torch.tensor([0.25]), torch.tensor([3], dtype=torch.int32), torch.tensor([enabled])
            yield Call((x, *numbers, -128, 127))


def _channels(draw: Draw) -> Iterator[tuple[torch.Tensor, int, torch.Tensor]]:
    for x in _on_and_between(draw):
        for axis in range(x.dim()):
            if x.numel():
                yield x, axis, draw.integers((x.shape[axis],), 1, 9).float() / 8


@calls("fake_quantize_per_channel_affine_cachemask")
def _fake_quantize_channels(draw: Draw) -> Iterator[Call]:
    for x, axis, scale in _channels(draw):
        zero = draw.integers((x.shape[axis],), -5, 6)
        for dtype in (torch.int32, torch.float32):
            yield Call((x, scale, zero.to(dtype), axis, -128, 127))


@calls("_fake_quantize_learnable_per_tensor_affine")
def _learnable(draw: Draw) -> Iterator[Call]:
    for x in _on_and_between(draw):
        yield Call((x, torch.tensor([0.25]), torch.tensor([3.4]), -128, 127))


@calls("_fake_quantize_learnable_per_channel_affine")
def _learnable_channels(draw: Draw) -> Iterator[Call]:
    for x, axis, scale in _channels(draw):
        zero = draw.integers((x.shape[axis],), -20, 21).float() / 4
        yield Call((x, scale, zero, axis, -128, 127))


@calls("_fake_quantize_learnable_per_tensor_affine_backward")
def _learnable_backward(draw: Draw) -> Iterator[Call]:
    """Of numbers that float32 adds exactly: the share of each element is the same, the order of a sum is not."""
    if not _typical(draw):
        return
    for shape in ((4, 3, 16), (2, 3, 4, 5), (), (0, 3)):
        x, grad = (draw.lay(draw.integers(shape, -400, 400).float() / 8) for _ in range(2))
        yield Call((grad, x, torch.tensor([0.25]), torch.tensor([3.0]), -128, 127, 0.5))


@calls("_fake_quantize_learnable_per_channel_affine_backward")
def _learnable_channels_backward(draw: Draw) -> Iterator[Call]:
    if not _typical(draw):
        return
    for shape in ((4, 3, 16), (2, 3, 4, 5)):
        for axis in range(len(shape)):
            x, grad = (draw.lay(draw.integers(shape, -400, 400).float() / 8) for _ in range(2))
            scale = 0.25 * 2.0 ** draw.integers((shape[axis],), 0, 3)
            zero = draw.integers((shape[axis],), -5, 6).float()
            yield Call((grad, x, scale, zero, axis, -128, 127, 0.5))


@calls("_fused_moving_avg_obs_fq_helper")
def _observed(draw: Draw) -> Iterator[Call]:
    """Switches on and off; averages that begin, and that go on."""
    if not _typical(draw):
        return
    for shape, by_rows in (((4, 12), False), ((4, 12), True), ((3, 2, 5), True), ((7,), False)):
        rows = shape[0] if by_rows else 1
        for end, on in ((-torch.inf, (1, 1)), (1.5, (1, 1)), (1.5, (0, 1)), (1.5, (1, 0))):
            switches = [torch.tensor([switch]) for switch in on]
            averages = torch.full((rows,), -end), torch.full((rows,), end)
            grid = torch.ones(rows), torch.zeros(rows, dtype=torch.int32)
            options = 0.01, -128, 127, 0, by_rows, on == (1, 1)
            yield Call((draw.tensor(*shape), *switches, *averages, *grid, *options))


@calls("dequantize.self")
def _dequantize(draw: Draw) -> Iterator[Call]:
    for shape in ((4, 5), (), (0, 3)):
        yield Call((draw.tensor(*shape),))
