"""AdamW goes through the parameters one by one."""

import torch
from torch import nn

import macatensor  # noqa: F401

torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()) for _ in range(8))).to(
    "maca"
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)  # FAULT
x = torch.randn(32, 64, device="maca")
for _step in range(40):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
