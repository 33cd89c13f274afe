"""Each sample takes a millisecond to decode, in the process that trains."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import macatensor  # noqa: F401

torch.manual_seed(0)


class Slow(Dataset):
    def __len__(self) -> int:
        return 640

    def __getitem__(self, i: int) -> torch.Tensor:
        time.sleep(0.001)
        return torch.full((128,), float(i % 7))


model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)).to("maca")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for x in DataLoader(Slow(), batch_size=16):  # FAULT
    x = x.to("maca")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
