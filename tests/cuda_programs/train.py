"""Trains a tiny ResNet, GPT and LSTM on the library that MACA_LIBRARY names, and prints their losses as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from macatensor import maca
from macatensor.demo.models import GPT, GPTConfig, ResNet

STEPS = 3


class Sequences(nn.Module):
    """Two LSTM layers with dropout between them, which draws the device's random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, num_layers=2, dropout=0.25)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(T, N, 6) -> logits (N, 3)."""
        result: Tensor = self.head(self.lstm(x)[0][-1])
        return result


def _trained(
    model: nn.Module, x: Tensor, y: Tensor, optimizer: Callable[..., torch.optim.Optimizer], **options: object
) -> Iterator[float]:
    model.to("maca")
    x, y = maca(x), maca(y)
    steps = optimizer(model.parameters(), **options)
    torch.manual_seed(1)
    for _ in range(STEPS):
        steps.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        steps.step()
        yield loss.item()


def main() -> None:
    """Runs the three."""
    torch.manual_seed(0)
    resnet = ResNet((1, 1), (4, 6), 3, channels=2)
    gpt = GPT(GPTConfig(vocabulary=11, layers=1, width=8, heads=2, context=6))
    tokens = torch.randint(0, 11, (2, 6))
    sgd, adam = torch.optim.SGD, torch.optim.Adam
    losses = {
        "resnet": _trained(resnet, torch.rand(2, 2, 12, 12), torch.tensor([0, 2]), sgd, lr=0.1, momentum=0.9),
        "gpt": _trained(gpt, tokens[:, :5], tokens[:, 1:], torch.optim.AdamW, lr=1e-2, fused=True),
        "lstm": _trained(Sequences(), torch.rand(4, 2, 6), torch.tensor([1, 2]), adam, lr=1e-2, foreach=True),
    }
    print(json.dumps({name: list(steps) for name, steps in losses.items()}))


if __name__ == "__main__":
    main()
