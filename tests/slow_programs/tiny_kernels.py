"""A recurrence is computed row by row where one operator does all rows."""

import torch
from torch import nn

import macatensor  # noqa: F401

torch.manual_seed(0)
model = nn.Linear(64, 64).to("maca")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(64, 64, device="maca")
for _step in range(40):
    rows = []
    for i in range(64):
        rows.append(torch.tanh(x[i] * 2 + 1))  # FAULT
    loss = model(torch.stack(rows)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
