"""python with_ray.py"""

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train() -> None:
    import torch
    import torch.distributed as dist

    import macatensor  # noqa: F401

    group = dist.new_group(backend="mccl")  # Ray has begun with gloo
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).to("maca")
    model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        x = torch.full((2, 4), dist.get_rank() + 1.0, device="maca")
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean() / 10
        loss.backward()
        optimizer.step()
    print(
        f"rank {dist.get_rank()} of {dist.get_world_size()}: loss {loss.item():.4f} on {loss.device}",
        flush=True,
    )


if __name__ == "__main__":
    import tempfile

    ray.init(num_cpus=2, include_dashboard=False)
    with tempfile.TemporaryDirectory() as folder:
        TorchTrainer(
            train, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=folder)
        ).fit()
    ray.shutdown()
