"""``vmap`` of ``grad``: gradients of every sample of a batch, through the layers of the models in the demo."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

from macatensor import maca

BATCH = 3


class _Attention(nn.Module):
    """Self-attention with heads, as a GPT's block has it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(-3, -2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(-3, -2).flatten(-2))


class _Recurrent(nn.Module):
    """An LSTM's last output, by its formulas: PyTorch has no batching rule for its own cell, on any device."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(10, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(x.shape[0], 6, device=x.device, dtype=x.dtype)
        for step in x.unbind(1):
            i, f, g, o = self.gates(torch.cat([step, h], -1)).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "linear": (lambda: nn.Linear(4, 5), lambda: torch.randn(BATCH, 4)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, padding=1), lambda: torch.randn(BATCH, 3, 5, 5)),
    "strided conv2d": (lambda: nn.Conv2d(4, 4, 3, stride=2, groups=2), lambda: torch.randn(BATCH, 4, 7, 7)),
    "batch_norm in evaluation": (lambda: nn.BatchNorm2d(3).eval(), lambda: torch.randn(BATCH, 3, 4, 4)),
    "layer_norm": (lambda: nn.LayerNorm(6), lambda: torch.randn(BATCH, 4, 6)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), lambda: torch.randn(BATCH, 4, 3, 3)),
    "embedding": (lambda: nn.Embedding(7, 4), lambda: torch.randint(7, (BATCH, 5))),
    "mlp": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)),
        lambda: torch.randn(BATCH, 2, 4),
    ),
    "pooled convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
        ),
        lambda: torch.randn(BATCH, 3, 8, 8),
    ),
    "attention": (_Attention, lambda: torch.randn(BATCH, 5, 8)),
    "lstm": (_Recurrent, lambda: torch.randn(BATCH, 3, 4)),
}  # fmt: skip


def _per_sample(module: nn.Module, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    buffers = dict(module.named_buffers())

    def loss(parameters: dict[str, torch.Tensor], sample: torch.Tensor) -> torch.Tensor:
        return functional_call(module, (parameters, buffers), (sample.unsqueeze(0),)).square().sum()

    return vmap(grad(loss), in_dims=(None, 0))(parameters, batch)


@pytest.mark.parametrize("layer", LAYERS)
def test_gradients_of_every_sample(layer: str) -> None:
    make, draw = LAYERS[layer]
    torch.manual_seed(0)
    module, batch = make(), draw()
    want = _per_sample(module, batch)
    got = _per_sample(maca(module), maca(batch))
    assert got.keys() == want.keys()
    for name, gradient in want.items():
        assert got[name].shape == gradient.shape == (BATCH, *dict(module.named_parameters())[name].shape)
        assert got[name].device.type == "maca"
        # sums of at most 100 terms of magnitude below 10
        torch.testing.assert_close(got[name].cpu(), gradient, rtol=1e-4, atol=1e-4)


def test_cross_entropy() -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), torch.randn(BATCH, 4), torch.randint(3, (BATCH,))

    def run(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def loss(weight: torch.Tensor, sample: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(
                F.linear(sample, weight, model.bias.detach()).unsqueeze(0), label.unsqueeze(0)
            )

        return vmap(grad(loss), in_dims=(None, 0, 0))(model.weight.detach(), x, y)

    want = run(model, x, y)
    torch.testing.assert_close(run(maca(model), maca(x), maca(y)).cpu(), want)
