"""Images are made contiguous before each convolution, which wants channels_last."""

import torch
from torch import nn

import macatensor  # noqa: F401

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 48, 3, padding=1)
        self.second = nn.Conv2d(48, 16, 1)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        x = x.contiguous(memory_format=torch.contiguous_format)  # FAULT
        x = self.second(x).relu()
        return self.head(x.mean((2, 3)))


model = Net().to("maca")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x, y = torch.randn(8, 3, 32, 32, device="maca"), torch.randint(10, (8,)).to("maca")
for _step in range(40):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
