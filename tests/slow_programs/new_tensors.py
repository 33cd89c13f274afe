"""Each row's result goes into a tensor that is made for it, where one buffer would do for all steps."""

import torch
from torch import nn

import macatensor  # noqa: F401

torch.manual_seed(0)
model = nn.Linear(256, 256).to("maca")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(128, 256, device="maca")
for _step in range(40):
    parts = [torch.empty(256, device="maca") for _ in range(32)]  # FAULT
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
