"""References for products of quantized numbers, in float64: PyTorch's CPU has kernels of float32 at most, and of some none."""

from __future__ import annotations

import torch

from macatensor.parity.formulas import formula
from macatensor.runtime.boxed import Value

Tensor = torch.Tensor


@formula
def _int_mm(a: Tensor, b: Tensor) -> Tensor:
    """Where the processor multiplies bytes, PyTorch's own reads an operand that was expanded as if it were dense."""
    return a.int() @ b.int()


@formula
def _scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype,
) -> Tensor:
    product = (a.double() * scale_a.double()) @ (b.double() * scale_b.double())
    return (product if bias is None else product + bias.double()).to(out_dtype)


@formula
def _scaled_mm_v2(a: Tensor, b: Tensor, scale_a: list[Tensor], *rest: Value) -> Tensor:
    return _scaled_mm(a, b, scale_a[0], rest[2][0], out_dtype=rest[6])


@formula
def _weight_int8pack_mm(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    return ((x.double() @ weight.double().t()) * scales.double()).to(x.dtype)


def _weighted(x: Tensor, numbers: Tensor, group: int, scale_and_zero: Tensor) -> Tensor:
    scale, zero = scale_and_zero.double().repeat_interleave(group, 0).unbind(2)  # [k, n]
    return (x.double() @ ((numbers.double() - 8) * scale + zero)).to(x.dtype)


@formula
def _weight_int4pack_mm_for_cpu(x: Tensor, packed: Tensor, group: int, scale_and_zero: Tensor) -> Tensor:
    """The numbers are what PyTorch's kernel makes of the identity."""
    n, k = packed.shape[0], 2 * packed.shape[1]
    plain = torch.tensor([1.0, 8.0], dtype=torch.float32).expand(k // 32, n, 2).contiguous()
    identity = torch.eye(k, dtype=torch.float32)
    numbers = torch.ops.aten._weight_int4pack_mm_for_cpu.default(identity, packed, 32, plain)
    return _weighted(x, numbers, group, scale_and_zero)


@formula
def _convert_weight_to_int4pack(weight: Tensor, tiles: int) -> Tensor:
    """Rows r and r + 16 of 32 share a byte, and of what is left each two neighbours; the bytes of one k lie together."""
    n, k = weight.shape[0], 2 * weight.shape[1]
    numbers, packed = _nibbles(weight, n, True), []  # [k, n]
    for first in range(0, n, 32):
        rows = numbers[:, first : first + 32]
        low, high = (rows[:, :16], rows[:, 16:]) if rows.shape[1] == 32 else (rows[:, ::2], rows[:, 1::2])
        packed.append((low | high << 4).reshape(-1))
    joined = torch.cat(packed) if packed else weight.reshape(-1)
    return joined.view(torch.int32).reshape(n // 8, k // (16 * tiles), 32, tiles // 2)


def _nibbles(both: Tensor, rows: int, high_first: bool) -> Tensor:
    """[k, n] of bytes that hold two neighbours along k."""
    pair = [both >> 4, both & 15] if high_first else [both & 15, both >> 4]
    return torch.stack(pair, -1).reshape(rows, -1).t()


@formula
def _weight_int4pack_mm(x: Tensor, packed: Tensor, group: int, scale_and_zero: Tensor) -> Tensor:
    """The numbers of each k and row, found where :func:`_convert_weight_to_int4pack` puts them."""
    n, k = 8 * packed.shape[0], x.shape[1]
    both = packed.contiguous().reshape(-1).view(torch.uint8)
    numbers = torch.empty((k, n), dtype=torch.uint8)
    for first in range(0, n, 32):
        rows = min(32, n - first)
        block = both[first * k // 2 : (first + rows) * k // 2].reshape(k, rows // 2)
        places = (slice(0, 16), slice(16, 32)) if rows == 32 else (slice(0, None, 2), slice(1, None, 2))
        for place, half in zip(places, (block & 15, block >> 4)):
            numbers[:, first : first + rows][:, place] = half
    return _weighted(x, numbers, group, scale_and_zero)


@formula
def _dyn_quant_matmul_4bit(x: Tensor, packed: Tensor, block: int, k: int, n: int) -> Tensor:
    """Of rows that are integers from -128 to 127 and reach both: rounding to 8 bits leaves them as they are."""
    both, scales = packed[: n * k // 2].round().to(torch.uint8), packed[n * k // 2 :].double()
    spread = scales.reshape(n, k // block).repeat_interleave(block, 1).t()
    return (x.double() @ ((_nibbles(both, n, False).double() - 8) * spread)).to(x.dtype)
