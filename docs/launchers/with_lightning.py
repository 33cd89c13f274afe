"""torchrun --standalone --nproc-per-node 2 with_lightning.py"""

import lightning as L
import torch
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.strategies import DDPStrategy

import macatensor  # noqa: F401


class Maca(Accelerator):
    """Lightning's own interface for devices that it does not know."""

    def setup_device(self, device: torch.device) -> None: ...

    def teardown(self) -> None: ...

    @staticmethod
    def parse_devices(devices: int) -> int:
        return devices

    @staticmethod
    def get_parallel_devices(devices: int) -> list[torch.device]:
        return [torch.device("maca", 0)] * devices  # each process sees one

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return "maca"


class Ddp(DDPStrategy):
    def determine_ddp_device_ids(self) -> None:
        """With numbers Lightning would make streams of CUDA."""


class Model(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        (x,) = batch
        self.loss = (self.layer(x) - x.sum(1, keepdim=True)).square().mean()
        return self.loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


L.seed_everything(0)
data = torch.utils.data.TensorDataset(torch.ones(8, 4) * torch.arange(8).view(8, 1) / 8)
model = Model()
trainer = L.Trainer(
    strategy=Ddp(process_group_backend="mccl"),
    accelerator=Maca(),
    devices=2,
    max_epochs=5,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=2))
print(
    f"rank {trainer.global_rank} of {trainer.world_size}: loss {model.loss.item():.4f} on {model.loss.device}"
)
