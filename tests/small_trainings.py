"""A convolutional network, a GPT and an LSTM whose step takes milliseconds, for programs that fail in the middle of one or do many."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from macatensor import maca
from macatensor.demo import models


def cnn() -> tuple[nn.Module, Tensor, Tensor]:
    return models.digits_resnet(), torch.rand(2, 3, 8, 8), torch.tensor([3, 5])


def gpt() -> tuple[nn.Module, Tensor, Tensor]:
    config = models.GPTConfig(vocabulary=11, layers=1, width=16, heads=2, context=8)
    return models.GPT(config), torch.arange(16).view(2, 8) % 11, torch.arange(16).view(2, 8) * 3 % 11


def lstm() -> tuple[nn.Module, Tensor, Tensor]:
    return models.SequenceModel(16, 4), torch.rand(5, 2, 16), torch.tensor([3, 1])


MODELS = {made.__name__: made for made in (cnn, gpt, lstm)}


def forget_backward() -> None:
    """Lets go of a backward that failed: PyTorch's engine keeps what it had still to do, and with it the graph, until
    this thread's next one."""
    torch.ones(1, requires_grad=True).sum().backward()


class Training:
    """Of the model of that name, after two steps with AdamW. ``phase`` says how far the last step came."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        model, self.batch, self.target = MODELS[name]()
        self.model = maca(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.step(), self.step()
        self._weights = {k: v.cpu() for k, v in self.model.state_dict().items()}
        self._moments = self.optimizer.state_dict()
        self._moments["state"] = {
            k: {n: t.cpu() for n, t in s.items()} for k, s in self._moments["state"].items()
        }

    def restore(self) -> None:
        """Makes everything as it was after those two steps."""
        self.model.load_state_dict(self._weights), self.optimizer.load_state_dict(self._moments)

    def step(self) -> tuple[float, float]:
        """The loss, and the sum of the logits in float64."""
        self.phase = "forward"
        logits = self.model(maca(self.batch))
        loss = cross_entropy(logits.flatten(0, -2), maca(self.target).flatten())
        self.phase = "backward"
        loss.backward()
        self.phase = "optimizer"
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.phase = "end"
        return loss.item(), logits.double().sum().item()

    def forget(self) -> None:
        """Lets go of what a failed step left."""
        self.optimizer.zero_grad()
        forget_backward()
