"""torchrun --standalone --nproc-per-node 2 with_torchrun.py"""

import torch
import torch.distributed as dist

import macatensor  # noqa: F401

dist.init_process_group()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1).to("maca"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    optimizer.zero_grad()
    x = torch.full((2, 4), dist.get_rank() + 1.0, device="maca")
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean() / 10
    loss.backward()
    optimizer.step()
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: loss {loss.item():.4f} on {loss.device}")
dist.destroy_process_group()
