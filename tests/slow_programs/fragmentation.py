"""Small results are kept between large temporary ones, which leave pieces too small for what comes next."""

import torch
from torch import nn

import macatensor  # noqa: F401

torch.manual_seed(0)
model = nn.Linear(64, 64).to("maca")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _step in range(40):
    large, small = [], []
    for _ in range(12):
        large.append(torch.empty(3 << 20, dtype=torch.uint8, device="maca"))
        small.append(torch.zeros(20_000, device="maca"))
    large.clear()
    joined = torch.empty(24 << 20, dtype=torch.uint8, device="maca")  # FAULT
    loss = model(torch.ones(64, 64, device="maca")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del joined, small
