"""Validation records a graph, and its loss is added up with it."""

import torch
from torch import nn

import macatensor  # noqa: F401

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).to("maca")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(128, 256, device="maca")
history = []
for _step in range(40):
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    history.append((model(x) - x).abs().mean())  # FAULT
    model.train()
