"""The loss of each sample is clipped by an `if`, which reads it from the device."""

import torch
from torch import nn

import macatensor  # noqa: F401

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)).to("maca")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _step in range(40):
    x = torch.randn(128, 256, device="maca")
    error = (model(x) - x.sum(1, keepdim=True)).abs().flatten()
    total = torch.zeros((), device="maca")
    for i in range(32):
        total = total + (error[i] if error[i] < 1 else error[i].sqrt())  # FAULT
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
