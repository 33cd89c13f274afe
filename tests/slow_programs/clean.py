"""A training loop with none of the faults: kernels take most of its time, and the loss is read once a step."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import macatensor  # noqa: F401

torch.manual_seed(0)
images, labels = torch.rand(128, 3, 24, 24), torch.randint(10, (128,))
loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True, drop_last=True)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1),
    nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
).to("maca")  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
losses = []
for _epoch in range(5):
    for x, y in loader:
        loss = F.cross_entropy(model(x.to("maca")), y.to("maca"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        model.eval()
        accuracy = (model(images[:64].to("maca")).argmax(1).cpu() == labels[:64]).float().mean()
        model.train()
