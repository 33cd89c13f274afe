"""Names of NVIDIA's apex, and of Ascend's, on PyTorch's own operators."""

from . import amp, contrib, mlp, multi_tensor_apply, normalization, optimizers, parallel

__all__ = ["amp", "contrib", "mlp", "multi_tensor_apply", "normalization", "optimizers", "parallel"]
