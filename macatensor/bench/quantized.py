"""Decoding with weights of fewer bits against float32 on maca, and products of int8 against native PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch

from macatensor.bench.decoding import generate
from macatensor.bench.measure import counting_fallbacks, interleave
from macatensor.bench.result import Result
from macatensor.demo.models import GPT, GPTConfig

# of the time that float32 takes
DECODING = {"int8": 0.5, "int4": 0.4, "bfloat16": 0.65}
INT_MM = 1.0
SIZES = GPTConfig(vocabulary=8192, layers=4, width=1024, heads=16, context=128)  # 235 MB of float32
TINY_SIZES = GPTConfig(vocabulary=96, layers=2, width=64, heads=2, context=64)
GROUP = 128  # neighbours of a row of int4 that share a scale and a zero


class Int8Linear(torch.nn.Module):
    """A linear layer whose weight is int8, each row with a scale."""

    def __init__(self, linear: torch.nn.Linear):
        super().__init__()
        weight = linear.weight.detach()
        scales = weight.abs().amax(1).clamp(min=1e-12) / 127
        self.weight: torch.Tensor
        self.scales: torch.Tensor
        self.register_buffer("weight", (weight / scales[:, None]).round().to(torch.int8))
        self.register_buffer("scales", scales)
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., k] -> [..., n]."""
        rows = x.reshape(-1, x.shape[-1])
        y = torch.ops.aten._weight_int8pack_mm.default(rows, self.weight, self.scales)
        return _completed(x, y, self.bias)


class Int4Linear(torch.nn.Module):
    """A linear layer whose weight is int4: of a row, :data:`GROUP` neighbours, or 32, share a scale and a zero."""

    def __init__(self, linear: torch.nn.Linear):
        super().__init__()
        n, k = linear.weight.shape
        self.group = GROUP if k % GROUP == 0 else 32
        groups = linear.weight.detach().reshape(n, k // self.group, self.group)
        low, high = groups.aminmax(dim=-1, keepdim=True)
        scale = (high - low).clamp(min=1e-12) / 15
        numbers = ((groups - low) / scale).round().to(torch.uint8).reshape(n, k)
        zero = low + 8 * scale
        self.weight: torch.Tensor
        self.scales_and_zeros: torch.Tensor
        self.register_buffer("weight", numbers[:, ::2] << 4 | numbers[:, 1::2])
        self.register_buffer("scales_and_zeros", torch.cat((scale, zero), 2).transpose(0, 1).contiguous())
        self.bias = linear.bias

    def packed(self) -> Int4Linear:
        """The layer itself, its weight in the order of the device that it is on."""
        self.weight = torch.ops.aten._convert_weight_to_int4pack.default(self.weight, 2)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., k] -> [..., n]."""
        rows = x.reshape(-1, x.shape[-1])
        y = torch.ops.aten._weight_int4pack_mm.default(rows, self.weight, self.group, self.scales_and_zeros)
        return _completed(x, y, self.bias)


def _completed(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    y = y.view(*x.shape[:-1], y.shape[-1])
    return y if bias is None else y + bias


def quantized(model: GPT, layer: Callable[[torch.nn.Linear], torch.nn.Module]) -> GPT:
    """A copy of ``model`` on maca, with ``layer`` of each linear layer."""
    made = copy.deepcopy(model)
    for module in list(made.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(module, name, layer(child))
    made.to("maca")
    for module in made.modules():
        if isinstance(module, Int4Linear):
            module.packed()
    return made


def decoding(rounds: int, quick: bool) -> list[Result]:
    """A GPT writes from 16 tokens to 48, one at a time, keys and values kept; the time of the whole text."""
    torch.manual_seed(0)
    model = GPT(TINY_SIZES if quick else SIZES).eval()
    prompt = torch.randint(model.config.vocabulary, (1, 16)).to("maca")
    models = {
        "float32": copy.deepcopy(model).to("maca"),
        "int8": quantized(model, Int8Linear),
        "int4": quantized(model, Int4Linear),
        "bfloat16": copy.deepcopy(model).to("maca", torch.bfloat16),
    }
    contenders = {name: partial(generate, made, prompt, 20 if quick else 48) for name, made in models.items()}
    fallbacks = {name: counting_fallbacks(call)[1] for name, call in contenders.items()}
    timing = interleave(contenders, rounds, 0.001 if quick else 0.3, settle=0.0 if quick else 0.03)
    return [
        Result(
            f"quantized.decoding.{name}",
            "float32",
            timing.ratio(name, "float32"),
            bar,
            timing.seconds("float32"),
            timing.seconds(name),
            fallbacks=fallbacks[name],
            spread=timing.spread(name, "float32"),
            middle=timing.middle(name, "float32"),
        )
        for name, bar in DECODING.items()
    ]


def int_mm(rounds: int, quick: bool) -> list[Result]:
    """int8 times int8, 1024 rows of 1024, in int32; the right factor row-major, and given by its columns."""
    n = 64 if quick else 1024
    a, b = (torch.randint(-128, 128, (n, n), dtype=torch.int8) for _ in range(2))
    results = []
    for name, right in (("rows", b), ("columns", b.t())):
        ours = a.to("maca"), right.to("maca")
        contenders = {"maca": partial(torch._int_mm, *ours), "native": partial(torch._int_mm, a, right)}
        timing = interleave(contenders, rounds, 0.001 if quick else 0.3, settle=0.0 if quick else 0.03)
        results.append(
            Result(
                f"quantized.int_mm.{name}",
                "native",
                timing.ratio("maca", "native"),
                INT_MM,
                timing.seconds("native"),
                timing.seconds("maca"),
                spread=timing.spread("maca", "native"),
                middle=timing.middle("maca", "native"),
            )
        )
    return results


CASES = {"quantized.decoding": decoding, "quantized.int_mm": int_mm}
