"""Layer norm and the norm by the root mean square. A half beside float32 is computed in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

Shape = int | Sequence[int]


def _sizes(shape: Shape) -> list[int]:
    return [shape] if isinstance(shape, int) else list(shape)


def _norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    shape: Shape,
    eps: float,
    rms: bool,
    dtype: torch.dtype,
) -> Tensor:
    computed = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
    x = x.to(computed)
    weight = None if weight is None else weight.to(computed)
    bias = None if bias is None else bias.to(computed)
    if rms:
        return functional.rms_norm(x, _sizes(shape), weight, eps).to(dtype)
    return functional.layer_norm(x, _sizes(shape), weight, bias, eps).to(dtype)


def fused_layer_norm(
    input: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """Layer norm over the last dimensions, in the input's dtype."""
    return _norm(input, None, None, normalized_shape, eps, False, input.dtype)


def fused_layer_norm_affine(
    input: Tensor, weight: Tensor, bias: Tensor, normalized_shape: Shape, eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:  # fmt: skip
    """The same with weight and bias, in the input's dtype."""
    return _norm(input, weight, bias, normalized_shape, eps, False, input.dtype)


def mixed_dtype_fused_layer_norm_affine(
    input: Tensor, weight: Tensor, bias: Tensor, normalized_shape: Shape, eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:  # fmt: skip
    """The same, in the weight's dtype."""
    return _norm(input, weight, bias, normalized_shape, eps, False, weight.dtype)


def fused_rms_norm(
    input: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """The norm by the root mean square over the last dimensions, in the input's dtype."""
    return _norm(input, None, None, normalized_shape, eps, True, input.dtype)


def fused_rms_norm_affine(
    input: Tensor, weight: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """The same with a weight, in the input's dtype."""
    return _norm(input, weight, None, normalized_shape, eps, True, input.dtype)


def mixed_dtype_fused_rms_norm_affine(
    input: Tensor, weight: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """The same, in the weight's dtype."""
    return _norm(input, weight, None, normalized_shape, eps, True, weight.dtype)


def manual_rms_norm(input: Tensor, normalized_shape: Shape, weight: Tensor | None, eps: float) -> Tensor:
    """The same, where the weight may be None."""
    dtype = input.dtype if weight is None else weight.dtype
    return _norm(input, weight, None, normalized_shape, eps, True, dtype)


class FusedLayerNorm(torch.nn.LayerNorm):
    """PyTorch's module, in the input's dtype. ``memory_efficient`` changes nothing."""

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__(_sizes(normalized_shape), eps, elementwise_affine)

    def forward(self, input: Tensor) -> Tensor:
        return _norm(
            input, self.weight, self.bias, self.normalized_shape, self.eps, False, self._dtype(input)
        )

    def _dtype(self, input: Tensor) -> torch.dtype:
        return input.dtype


class MixedFusedLayerNorm(FusedLayerNorm):
    """Of inputs in a half and parameters in float32: in the parameters' dtype."""

    def __init__(
        self, normalized_shape: Shape, eps: float = 1e-5, *, memory_efficient: bool = False, **options: object
    ) -> None:
        if not options.pop("elementwise_affine", True):
            raise RuntimeError("MixedFusedLayerNorm does not support `elementwise_affine = False`")
        super().__init__(normalized_shape, eps, True, memory_efficient)

    def _dtype(self, input: Tensor) -> torch.dtype:
        return self.weight.dtype


class FusedRMSNorm(torch.nn.Module):
    """``x / sqrt(mean(x ** 2) + eps) * weight``, in the input's dtype. ``memory_efficient`` changes nothing."""

    weight: torch.nn.Parameter | None

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps = torch.Size(_sizes(normalized_shape)), eps
        self.elementwise_affine = elementwise_affine
        weight = torch.nn.Parameter(torch.ones(self.normalized_shape)) if elementwise_affine else None
        self.register_parameter("weight", weight)

    def reset_parameters(self) -> None:
        if self.weight is not None:
            torch.nn.init.ones_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        return _norm(input, self.weight, None, self.normalized_shape, self.eps, True, self._dtype(input))

    def _dtype(self, input: Tensor) -> torch.dtype:
        return input.dtype

    def extra_repr(self) -> str:
        return f"{tuple(self.normalized_shape)}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class MixedFusedRMSNorm(FusedRMSNorm):
    """Of inputs in a half and a weight in float32: in the weight's dtype."""

    def __init__(
        self, normalized_shape: Shape, eps: float = 1e-5, *, memory_efficient: bool = False, **options: object
    ) -> None:
        if not options.pop("elementwise_affine", True):
            raise RuntimeError("MixedFusedRMSNorm does not support `elementwise_affine = False`")
        super().__init__(normalized_shape, eps, True, memory_efficient)

    def _dtype(self, input: Tensor) -> torch.dtype:
        return input.dtype if self.weight is None else self.weight.dtype
