"""Trains a small network on the device; what the library has no kernel for, PyTorch computes on the host."""

import warnings

import torch

import macatensor

warnings.filterwarnings("ignore", category=UserWarning)  # one for every operator that runs on the host
torch.manual_seed(0)
x = torch.rand(256, 2) * 2 - 1
y = (x[:, 0] * x[:, 1] > 0).long()  # two of four quadrants

model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)).to("maca")
x, y = x.to("maca"), y.to("maca")
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
for step in range(120):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        print(f"step {step}: loss {loss.item():.3f}")
accuracy = (model(x).argmax(1) == y).float().mean().item()
counted = macatensor.counters()
print(
    f"accuracy {accuracy:.1%}; {counted['launches']} launches on the device, {counted['fallbacks']} on the host"
)
