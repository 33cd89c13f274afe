"""What the results are of operators on images and volumes: pooling, sampling, scaling and convolutions, as
:mod:`macatensor.dispatch.meta_rules` has it."""

from __future__ import annotations

import torch
from torch import Tensor

from macatensor.dispatch.meta_rules import META_RULES, meta_rule, refuse_if, row_major
from macatensor.runtime.boxed import Value


@meta_rule
def _fractional_gradient(
    grad: Tensor,
    self: Tensor,
    kernel_size: list[int],
    output_size: list[int],
    indices: Tensor,
) -> Tensor:
    if self.dim() not in (3, 4) or len(kernel_size) != 2 or len(output_size) != 2:
        raise RuntimeError(
            f"fractional_max_pool2d_backward got an input of {self.dim()} dimensions, kernel_size={kernel_size} and "
            f"output_size={output_size}; accepted: 3 or 4 dimensions and two numbers each"
        )
    return row_major(self, *self.shape)


# PyTorch's take any number of sizes, and images without pixels.
@meta_rule
def _adaptive_avg_pool2d(self: Tensor, output_size: list[int]) -> Tensor:
    refuse_if(len(output_size) != 2 or 0 in self.shape[-2:])
    result: Tensor = torch.ops.aten._adaptive_avg_pool2d.default(self, output_size)
    return result


@meta_rule
def _adaptive_avg_pool3d(self: Tensor, output_size: list[int]) -> Tensor:
    refuse_if(len(output_size) != 3 or 0 in self.shape[1:])
    result: Tensor = torch.ops.aten._adaptive_avg_pool3d.default(self, output_size)
    return result


# PyTorch's looks at no rank.
@meta_rule
def _adaptive_avg_pool3d_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    if self.dim() not in (4, 5) or grad_output.dim() != self.dim():
        raise IndexError(
            f"adaptive_avg_pool3d_backward got a gradient of {grad_output.dim()} dimensions for an input of {self.dim()}; "
            "accepted: 4 or 5 both"
        )
    result: Tensor = torch.ops.aten._adaptive_avg_pool3d_backward.default(grad_output, self)
    return result


# PyTorch's is a decomposition of 60 operators: 40 ms for each new signature.
@meta_rule
def _grid_sampler(input: Tensor, grid: Tensor, *rest: Value) -> Tensor:
    sizes = f"input with sizes {list(input.shape)} and grid with sizes {list(grid.shape)}"
    faults = {  # in PyTorch's order
        f"grid and input to have same batch size, but got {sizes}": input.shape[:1] != grid.shape[:1],
        "grid to have size 2 in last dimension, but got " + sizes: grid.shape[-1:] != (2,),
        f"4D input and grid with same number of dimensions, but got {sizes}": (input.dim(), grid.dim())
        != (4, 4),
        f"input to have non-empty spatial dimensions, but got {sizes}": 0 in input.shape[2:],
        f"input and grid of one dtype, but got {input.dtype} and {grid.dtype}": input.dtype != grid.dtype,
    }
    if any(faults.values()):
        raise RuntimeError(f"grid_sampler(): expected {next(w for w, is_so in faults.items() if is_so)}")
    return row_major(input, *input.shape[:2], *grid.shape[1:3])


@meta_rule
def _grid_sampler_gradients(grad: Tensor, input: Tensor, grid: Tensor, *rest: Value) -> tuple[Tensor, Tensor]:
    return row_major(input, *input.shape), row_major(grid, *grid.shape)


# PyTorch's compute the filter on meta tensors: 12, 79 and 25 ms for each new signature. The meta kernels of their
# relatives, with the same arguments and results, take 0.05 ms.
META_RULES["bilinear"] = torch.ops.aten._upsample_bilinear2d_aa.default
META_RULES["bicubic"] = torch.ops.aten._upsample_bicubic2d_aa.default


@meta_rule
def _linear(input: Tensor, *rest: Value) -> Value:
    refuse_if(input.dim() != 3 or 0 in input.shape[1:])
    return torch.ops.aten.upsample_linear1d.default(input, *rest)


@meta_rule
def _trilinear(input: Tensor, output_size: list[int], align_corners: bool, *scales: float) -> Value:
    return torch.ops.aten.upsample_nearest3d.default(input, output_size, *scales)


@meta_rule
def _convolution(input: Tensor, weight: Tensor, *rest: Value) -> Value:
    refuse_if(weight.dim() > 0 and weight.shape[0] < rest[-1])  # a filter for each group
    refuse_if(input.dim() > 1 and input.numel() == 0 and 0 not in input.shape[:2])
    stride, _, dilation, transposed, output_padding, _ = rest[1:]
    if transposed:
        rest_of = [stride * 3, dilation * 3]  # one number may stand for all dimensions
        refuse_if(any(n < 0 or n >= max(s, d) for n, s, d in zip(output_padding, *rest_of)))
    return torch.ops.aten.convolution.default(input, weight, *rest)


@meta_rule
def _im2col(self: Tensor, kernel_size: Value, dilation: Value, padding: list[int], stride: Value) -> Value:
    refuse_if(min(padding) < 0)
    return torch.ops.aten.im2col.default(self, kernel_size, dilation, padding, stride)
