"""Gradients clipped by their norm."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """PyTorch's, over lists of tensors: the norm of all gradients before."""
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach=True)
