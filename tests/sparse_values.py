"""What tests of sparse tensors share: the compressed layouts, and values on either side."""

from __future__ import annotations

import unittest
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

CSR, CSC, BSR, BSC = torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc
LAYOUTS = (CSR, CSC, BSR, BSC)
BLOCKED = (BSR, BSC)
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.int64,
    torch.uint8,
    torch.bool,
)


def short(layout: torch.layout) -> str:
    return str(layout).removeprefix("torch.sparse_")


def samples_of(op: Any, layout: torch.layout) -> list[Any]:
    """What PyTorch's operator database has of an operator for this layout; nothing where it has none."""
    try:
        return list(op.sample_inputs_sparse(layout, "cpu", torch.float32, requires_grad=op.supports_autograd))
    except (NotImplementedError, unittest.SkipTest):
        return []


def on_maca(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to("maca").requires_grad_(value.requires_grad)


def dense(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    return (value if value.layout is torch.strided else value.to_dense()).cpu()


def gradients(arguments: Any, result: Any) -> list[Any]:
    wanted = [t for t in tree_leaves(arguments) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not wanted or not isinstance(result, torch.Tensor) or not result.requires_grad:
        return []
    total = (result if result.layout is torch.strided else result.to_dense()).sum()
    return [dense(g) for g in torch.autograd.grad(total, wanted, allow_unused=True)]


# sizes, batch dimensions, dense dimensions, size of blocks
SHAPES = {
    "matrix": ((6, 4), 0, 0, (2, 2)),
    "blocks wider than high": ((4, 6), 0, 0, (2, 3)),
    "batch": ((2, 3, 4, 6), 2, 0, (2, 3)),
    "dense dimensions": ((4, 6, 3), 0, 1, (2, 3)),
    "both": ((2, 4, 6, 3), 1, 1, (4, 2)),
    "no elements": ((4, 6), 0, 0, (2, 3)),
    "no rows": ((0, 6), 0, 0, (2, 3)),
}


def strided(name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A dense tensor with zeros; matrices of a batch have equally many elements, and blocks."""
    size, batch, dense_dims, (high, wide) = SHAPES[name]
    numbers = torch.arange(torch.Size(size).numel()).reshape(size) % 5 + 1
    if name == "no elements":
        return torch.zeros(size, dtype=dtype)
    rows, columns = size[batch : batch + 2]
    pattern = torch.tensor([[(r * 7 + c * 3) % 4 == 0 for c in range(columns)] for r in range(rows)])
    pattern = pattern.reshape(rows, columns)
    return (numbers * pattern.reshape(rows, columns, *[1] * dense_dims)).to(dtype)


def example(name: str, layout: torch.layout, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    _, _, dense_dims, block = SHAPES[name]
    return strided(name, dtype).to_sparse(
        layout=layout, blocksize=block if layout in BLOCKED else None, dense_dim=dense_dims
    )
