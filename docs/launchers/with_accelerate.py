"""accelerate launch --num_processes 2 --multi_gpu with_accelerate.py"""

import os

# isort: off
import macatensor.as_cuda  # first: accelerate then finds a CUDA device  # noqa: F401
import torch
from accelerate import Accelerator
# isort: on

os.environ["LOCAL_RANK"] = "0"  # a process sees one device, whatever its number
accelerator = Accelerator()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.ones(8, 4) * torch.arange(8).view(8, 1) / 8)
loader = torch.utils.data.DataLoader(data, batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(10):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
total = accelerator.reduce(loss.detach(), "mean")
rank = accelerator.process_index
print(f"rank {rank} of {accelerator.num_processes}: loss {total.item():.4f} on {total.device}")
accelerator.end_training()
