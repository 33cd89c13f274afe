"""Optimizers of Ascend's apex: PyTorch's, which on maca work on lists of tensors."""

from __future__ import annotations

import torch
from torch import Tensor


class _Clipping(torch.optim.Optimizer):
    def clip_optimizer_grad_norm_fused(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clips the gradients of all parameters by their norm, which is returned."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, foreach=True)


class NpuFusedSGD(torch.optim.SGD, _Clipping):
    """``torch.optim.SGD``."""


class NpuFusedAdam(torch.optim.Adam, _Clipping):
    """``torch.optim.Adam``."""


class NpuFusedAdamW(torch.optim.AdamW, _Clipping):
    """``torch.optim.AdamW``."""


class NpuFusedAdadelta(torch.optim.Adadelta, _Clipping):
    """``torch.optim.Adadelta``."""


class NpuFusedRMSprop(torch.optim.RMSprop, _Clipping):
    """``torch.optim.RMSprop``."""
