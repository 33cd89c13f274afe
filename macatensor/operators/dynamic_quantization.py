"""Products whose left factor is rounded to 8 bits, row by row, and whose right one is a weight of 4 bits."""

from __future__ import annotations

import torch
from torch import Tensor

from macatensor.operators.composites import composite


def _check_group(block_size: int, in_features: int, name: str) -> None:
    if block_size != in_features and (block_size <= 0 or block_size % 32 or in_features % block_size):
        raise RuntimeError(
            f"{name}: Group size should be multiple of 32, in_features [{in_features}]. Provided {block_size}"
        )


@composite
def pack_4bit_weight(
    weights: Tensor,
    scales_zeros: Tensor,
    bias: Tensor | None,
    block_size: int,
    in_features: int,
    out_features: int,
) -> Tensor:
    """One float32 vector: the bytes of ``weights``, each two numbers of 4 bits, then scales, then the bias."""
    name = "_dyn_quant_pack_4bit_weight_cpu"
    if weights.dtype is not torch.uint8:
        raise RuntimeError(f"{name} : expect weight to be kByte.")
    _check_group(block_size, in_features, name)
    parts = [weights, scales_zeros] if bias is None else [weights, scales_zeros, bias]
    return torch.cat([p.reshape(-1).to(torch.float32) for p in parts])


def _rounded_half_away(x: Tensor) -> Tensor:
    """C's round(): x.round() goes to even."""
    whole = x.trunc()
    return whole + torch.where((x - whole).abs() >= 0.5, x.sign(), 0)


def _in_8_bits(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row of float32 [m, k]: its numbers less the zero point, int32 [m, k], and what one of them stands for, [m, 1]."""
    low, high = x.amin(1, keepdim=True).clamp(max=0), x.amax(1, keepdim=True).clamp(min=0)
    steps = torch.where(low == high, 1.0, 255.0 / (high - low))
    step = torch.where(steps != 0, steps.reciprocal(), 0.0)
    below, above = low * steps, high * steps
    zero = torch.where((-128 + below) + (127 + above) > 0, -128 - below, 127 - above)
    zero = zero.clamp(-128, 127).round().to(torch.int32)
    numbers = (_rounded_half_away(x * steps).to(torch.int32) + zero).clamp(-128, 127)
    return numbers - zero, step


@composite
def matmul_4bit(
    inp: Tensor, packed_weights: Tensor, block_size: int, in_features: int, out_features: int
) -> Tensor:
    """[m, n] of the dtype of ``inp`` [m, k], with what :func:`pack_4bit_weight` makes. Sums over a block are exact, in
    int32; those of blocks are added in float32."""
    name = "_dyn_quant_matmul_4bit_cpu"
    is_half, k, n = inp.dtype is torch.bfloat16, in_features, out_features
    if inp.dtype is not torch.float32 and not (is_half and block_size == k):
        raise RuntimeError(f"{name} : expect input to be float32 or bfloat16 tensor.")
    _check_group(block_size, in_features, name)
    blocks, weight_bytes = max(k // block_size, 1) if block_size else 1, n * k // 2
    if inp.dim() != 2 or inp.shape[1] != k or k <= 0 or k % 2 or n < 0:
        raise RuntimeError(
            f"{name} : expect input to be a matrix of in_features columns, got {list(inp.shape)} for {k}"
        )
    packed, scales_end = packed_weights.reshape(-1), weight_bytes + n * blocks
    if packed.numel() not in (scales_end, scales_end + n):
        raise RuntimeError(
            f"{name} : expect packed_weights to have {scales_end} or {scales_end + n} elements, got {packed.numel()}"
        )
    both = packed[:weight_bytes].to(torch.uint8).reshape(n, k // 2)
    weight = torch.stack([both & 15, both >> 4], -1).reshape(n, k).to(torch.int32) - 8
    scales = packed[weight_bytes:scales_end].to(torch.float32).reshape(n, blocks)
    numbers, step = _in_8_bits(inp.to(torch.float32))
    factors = (
        numbers.reshape(-1, blocks, k // blocks).transpose(0, 1),
        weight.reshape(n, blocks, k // blocks).permute(1, 2, 0),
    )
    sums = torch.bmm(*factors).to(torch.float32)  # [blocks, m, n]
    result = (sums * scales.t().unsqueeze(1)).sum(0) * step
    if packed.numel() > scales_end:
        result = result + packed[scales_end:].to(torch.float32)
    if not is_half:
        return result
    bits = result.view(torch.int32) & -65536  # cut off, not rounded, as the CPU's
    return bits.view(torch.float32).to(torch.bfloat16)
