"""``flex_attention`` by itself, uncompiled, where PyTorch has a gradient for CUDA alone, and under autocast."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

Score = Callable[..., Tensor]

# of a score, its batch, head, query and key; the bias is a tensor of the device
SCORES: dict[str, Callable[[Tensor], Score]] = {
    "as they are": lambda bias: lambda score, b, h, q, k: score * 1,
    "causal": lambda bias: lambda score, b, h, q, k: torch.where(q >= k, score, -float("inf")),
    "capped": lambda bias: lambda score, b, h, q, k: 3 * torch.tanh(score / 3),
    "of a bias": lambda bias: lambda score, b, h, q, k: score * bias[h],
}


@pytest.mark.parametrize("name", SCORES)
def test_gradients_agree_with_plain_operators(name: str) -> None:
    draw = torch.Generator().manual_seed(0)
    host = [torch.randn(2, 3, 17, 8, dtype=torch.float64, generator=draw) for _ in range(3)]
    bias = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    wide = [t.clone().requires_grad_() for t in host]
    place = [
        torch.arange(n).reshape([n if d == i else 1 for d in range(4)]) for i, n in enumerate((2, 3, 17, 17))
    ]
    scores = SCORES[name](bias)(wide[0] @ wide[1].mT / 8**0.5, *place)
    expected = scores.softmax(-1) @ wide[2]
    expected.square().sum().backward()
    ours = [t.to("maca").requires_grad_() for t in host]
    found = flex_attention(*ours, score_mod=SCORES[name](bias.to("maca")))
    assert isinstance(found, Tensor)
    found.square().sum().backward()
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-12, atol=1e-12)
    for got, want in zip(ours, wide):
        assert got.grad is not None and want.grad is not None
        torch.testing.assert_close(got.grad.cpu(), want.grad, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_casts_its_operands(compiled: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    host = [torch.randn(1, 2, 16, 8, generator=draw) for _ in range(3)]
    attention = torch.compile(flex_attention) if compiled else flex_attention
    results = []
    for device in ("cpu", "maca"):
        with torch.autocast(device, torch.bfloat16):
            results.append(attention(*(t.to(device) for t in host)))
    assert all(isinstance(t, Tensor) and t.dtype is torch.bfloat16 for t in results)
    # a rounding of the operands, of the weights and of the result each
    torch.testing.assert_close(results[1].cpu(), results[0], rtol=0.02, atol=0.02)
