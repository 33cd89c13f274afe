"""An operator of the loss has no kernel on the device."""

import warnings

import torch
from torch import nn

import macatensor  # noqa: F401

warnings.simplefilter("ignore")
torch.manual_seed(0)


@torch.library.custom_op("planted::rounded", mutates_args=(), device_types="cpu")
def rounded(x: torch.Tensor) -> torch.Tensor:
    return (x * 10).round() / 10


model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64)).to("maca")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(256, 128, device="maca")
for _step in range(40):
    out = model(x)
    with torch.no_grad():
        turned = rounded(out)  # FAULT
    loss = (out - turned.mean()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
