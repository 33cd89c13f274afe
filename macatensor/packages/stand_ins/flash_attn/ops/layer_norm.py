"""Layer norm of a residual stream: ``norm(dropout(x0 * rowscale * layerscale) + residual)``."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor
from torch.nn import functional

Normed = Tensor | tuple[Tensor, ...]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """[..., C] of x [..., C], in its dtype."""
    return normalize(x, weight, bias, epsilon, False, x.dtype)


def normalize(
    x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float, rms: bool, dtype: torch.dtype
) -> Tensor:
    """Layer norm, or that of the root mean square, over the last dimension; in float32 at least, returned in ``dtype``."""
    computed = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), dtype)
    if computed != x.dtype or weight.dtype != x.dtype:
        computed = torch.promote_types(computed, torch.float32)
    x, weight = x.to(computed), weight.to(computed)
    bias = None if bias is None else bias.to(computed)
    if not rms:
        return functional.layer_norm(x, list(weight.shape), weight, bias, epsilon).to(dtype)
    normed = functional.rms_norm(x, list(weight.shape), weight, epsilon)
    return (normed if bias is None else normed + bias).to(dtype)


def dropped(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Dropout, and its mask of bytes: 1 where an element was kept."""
    if not p:
        return x, torch.ones_like(x, dtype=torch.uint8)
    kept = torch.rand_like(x, dtype=torch.float32) >= p
    return torch.where(kept, x / (1 - p), torch.zeros_like(x)), kept.to(torch.uint8)


def add_and_normalize(
    parts: list[Tensor],
    residual: Tensor | None,
    weights: list[tuple[Tensor, Tensor | None]],
    dropout_p: float,
    epsilon: float,
    prenorm: bool,
    residual_in_fp32: bool,
    return_mask: bool,
    rms: bool,
) -> tuple[Tensor, ...]:
    """Norms of the stream by each of ``weights``, then the stream where ``prenorm``, then the masks of dropout."""
    pairs = [dropped(part, dropout_p) for part in parts]
    single = torch.float32 if residual_in_fp32 else parts[0].dtype
    stream_dtype = single if residual is None else residual.dtype
    stream = (
        pairs[0][0].to(torch.promote_types(stream_dtype, torch.float32)) if len(pairs) > 1 else pairs[0][0]
    )
    for more in [part for part, _ in pairs[1:]] + ([] if residual is None else [residual]):
        stream = stream + more
    stream = stream.to(stream_dtype)
    normed = [normalize(stream, w, b, epsilon, rms, parts[0].dtype) for w, b in weights]
    masks = [mask for _, mask in pairs] if return_mask else []
    return (*normed, *([stream] if prenorm else []), *masks)


def scaled(x: Tensor, rowscale: Tensor | None, layerscale: Tensor | None) -> Tensor:
    """x [..., C] times rowscale [...] and layerscale [C], in its dtype."""
    if rowscale is not None:
        x = x * rowscale.unsqueeze(-1).to(x.dtype)
    return x if layerscale is None else x * layerscale.to(x.dtype)


def dropout_add_layer_norm(
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
    """The norm [..., C] in x0's dtype; with ``prenorm`` also the stream, in the residual's dtype (without one: x0's, or float32
    where ``residual_in_fp32``); with ``return_dropout_mask`` also the mask in uint8."""
    results = add_and_normalize(
        [scaled(x0, rowscale, layerscale)], residual, [(weight, bias)], dropout_p, epsilon, prenorm,
        residual_in_fp32, return_dropout_mask, False,
    )  # fmt: skip
    return results if len(results) > 1 else results[0]


def dropout_add_layer_norm_parallel_residual(
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
    """Two norms of ``dropout(x0) + dropout(x1) + residual``; the second is None without ``weight1``. More as
    :func:`dropout_add_layer_norm`; two masks."""
    return parallel(
        x0, x1, residual, weight0, bias0, weight1, bias1, dropout_p, epsilon, prenorm, residual_in_fp32,
        return_dropout_mask, False,
    )  # fmt: skip


def parallel(
    x0: Tensor,
    x1: Tensor | None,
    residual: Tensor | None,
    weight0: Tensor,
    bias0: Tensor | None,
    weight1: Tensor | None,
    bias1: Tensor | None,
    dropout_p: float,
    epsilon: float,
    prenorm: bool,
    residual_in_fp32: bool,
    return_mask: bool,
    rms: bool,
) -> tuple[Tensor | None, ...]:
    """The parallel residual of either norm."""
    weights = [(weight0, bias0)] + ([] if weight1 is None else [(weight1, bias1)])
    results = add_and_normalize(
        [x0] if x1 is None else [x0, x1], residual, weights, dropout_p, epsilon, prenorm, residual_in_fp32,
        return_mask, rms,
    )  # fmt: skip
    if x1 is None and return_mask:
        results = (*results, torch.ones_like(x0, dtype=torch.uint8))
    return results if weight1 is not None else (results[0], None, *results[1:])


def refuse_subsets(*_: object, **__: object) -> NoReturn:
    """Raises NotImplementedError."""
    raise NotImplementedError(
        "flash_attn's norms of subsets of rows are not served on maca; index the rows before and after"
    )


dropout_add_layer_norm_subset = refuse_subsets


class DropoutAddLayerNorm(torch.nn.Module):
    """:func:`dropout_add_layer_norm` with its weight and bias [hidden_size]."""

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
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        torch.nn.init.ones_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, x0: Tensor, residual: Tensor | None = None) -> Normed:
        return dropout_add_layer_norm(
            x0, residual, self.weight, self.bias, self.p if self.training else 0.0, self.epsilon,
            prenorm=self.prenorm, residual_in_fp32=self.residual_in_fp32,
        )  # fmt: skip
