"""torchrun --standalone --nproc-per-node 2 with_deepspeed.py STAGE"""

import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cuda")

# isort: off
import macatensor.as_cuda  # first: DeepSpeed's accelerator "cuda" is then maca  # noqa: F401
import torch
import deepspeed
# isort: on

os.environ["LOCAL_RANK"] = "0"  # a process sees one device, whatever its number

torch.manual_seed(0)
model = torch.nn.Linear(4, 1).cuda()  # before DeepSpeed keeps weak references to its parameters
settings = {
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": int(sys.argv[1])},
    "zero_allow_untested_optimizer": True,
}
deepspeed.init_distributed("nccl")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
rank = torch.distributed.get_rank()
for _ in range(20):
    x = torch.full((2, 4), rank + 1.0, device=engine.device)
    loss = (engine(x) - x.sum(1, keepdim=True)).square().mean() / 10
    engine.backward(loss)
    engine.step()
print(f"rank {rank} of {torch.distributed.get_world_size()}: loss {loss.item():.4f} on {loss.device}")
torch.distributed.destroy_process_group()
