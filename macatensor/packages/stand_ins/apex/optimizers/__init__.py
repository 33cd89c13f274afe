"""Optimizers on lists of tensors: apex's names, and those of Ascend's apex, which are PyTorch's optimizers."""

from .fused import FusedAdam, FusedLAMB, FusedSGD
from .npu import NpuFusedAdadelta, NpuFusedAdam, NpuFusedAdamW, NpuFusedRMSprop, NpuFusedSGD
from .refused import FusedAdagrad, FusedMixedPrecisionLamb, FusedNovoGrad

__all__ = [
    "FusedAdagrad",
    "FusedAdam",
    "FusedLAMB",
    "FusedMixedPrecisionLamb",
    "FusedNovoGrad",
    "FusedSGD",
    "NpuFusedAdadelta",
    "NpuFusedAdam",
    "NpuFusedAdamW",
    "NpuFusedRMSprop",
    "NpuFusedSGD",
]
