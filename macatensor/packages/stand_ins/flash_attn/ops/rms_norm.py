"""The norm by the root mean square of a residual stream."""

from __future__ import annotations

import torch
from torch import Tensor

from .layer_norm import Normed, add_and_normalize, normalize, parallel, refuse_subsets, scaled


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """[..., C] of x [..., C], in its dtype."""
    return normalize(x, weight, None, epsilon, True, x.dtype)


def dropout_add_rms_norm(
    x0: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    dropout_p: float,
    epsilon: float,
    rowscale: Tensor | None = None,
    layerscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
) -> Normed:
    """As ``dropout_add_layer_norm`` of ``flash_attn.ops.layer_norm``."""
    results = add_and_normalize(
        [scaled(x0, rowscale, layerscale)], residual, [(weight, bias)], dropout_p, epsilon, prenorm,
        residual_in_fp32, return_dropout_mask, True,
    )  # fmt: skip
    return results if len(results) > 1 else results[0]


def dropout_add_rms_norm_parallel_residual(
    x0: Tensor,
    x1: Tensor | None,
    residual: Tensor | None,
    weight0: Tensor,
    bias0: Tensor | None,
    weight1: Tensor | None,
    bias1: Tensor | None,
    dropout_p: float,
    epsilon: float,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
) -> tuple[Tensor | None, ...]:
    """As ``dropout_add_layer_norm_parallel_residual`` of ``flash_attn.ops.layer_norm``."""
    return parallel(
        x0, x1, residual, weight0, bias0, weight1, bias1, dropout_p, epsilon, prenorm, residual_in_fp32,
        return_dropout_mask, True,
    )  # fmt: skip


dropout_add_rms_norm_subset = refuse_subsets


class RMSNorm(torch.nn.Module):
    """:func:`rms_norm` with its weight [hidden_size]."""

    bias: None

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def reset_parameters(self) -> None:
        torch.nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class DropoutAddRMSNorm(torch.nn.Module):
    """:func:`dropout_add_rms_norm` with its weight [hidden_size]."""

    bias: None

    def __init__(
        self,
        hidden_size: int,
        prenorm: bool = False,
        p: float = 0.0,
        eps: float = 1e-5,
        residual_in_fp32: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.prenorm, self.p, self.epsilon, self.residual_in_fp32 = prenorm, p, eps, residual_in_fp32
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def reset_parameters(self) -> None:
        torch.nn.init.ones_(self.weight)

    def forward(self, x0: Tensor, residual: Tensor | None = None) -> Normed:
        return dropout_add_rms_norm(
            x0, residual, self.weight, None, self.p if self.training else 0.0, self.epsilon,
            prenorm=self.prenorm, residual_in_fp32=self.residual_in_fp32,
        )  # fmt: skip
