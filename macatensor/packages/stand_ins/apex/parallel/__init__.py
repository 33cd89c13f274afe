"""apex's parallel modules are PyTorch's."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel as _Theirs

SyncBatchNorm = torch.nn.SyncBatchNorm


class DistributedDataParallel(_Theirs):
    """PyTorch's module. What apex tunes its transfers by changes nothing here."""

    def __init__(
        self,
        module: torch.nn.Module,
        message_size: int = 10000000,
        delay_allreduce: bool = False,
        **tuning: object,
    ) -> None:
        super().__init__(module, find_unused_parameters=delay_allreduce)


def convert_syncbn_model(
    module: torch.nn.Module, process_group: object = None, channel_last: bool = False
) -> torch.nn.Module:
    """The module with ``SyncBatchNorm`` for its batch norms."""
    converted: torch.nn.Module = SyncBatchNorm.convert_sync_batchnorm(module, process_group)
    return converted
