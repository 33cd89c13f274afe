"""What indices of compressed tensors have to be."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch._ops import OpOverload

from macatensor.dispatch.launcher import special
from macatensor.runtime.boxed import Arguments, Keywords, Launcher
from macatensor.runtime.tensor import device


@special("aten._validate_compressed_sparse_indices.default")
def _validate(func: OpOverload) -> Launcher:
    def run(args: Arguments, kwargs: Keywords | None) -> None:
        is_crow, compressed_indices, plain_indices, n, m, nnz = args
        _check_indices(is_crow, compressed_indices, plain_indices, n, m, nnz)

    return run


def _check_indices(
    by_rows: bool, compressed_indices: torch.Tensor, plain_indices: torch.Tensor, n: int, m: int, nnz: int
) -> None:
    """Raises RuntimeError where indices are none of ``n`` rows (or columns) of ``nnz`` elements at ``m`` places."""
    ends, of_ends, plain, count = (
        ("crow_indices", "nrows", "col_indices", "ncols")
        if by_rows
        else ("ccol_indices", "ncols", "row_indices", "nrows")
    )

    def refuse(condition: str) -> NoReturn:
        raise RuntimeError(f"`{condition}` is not satisfied.")

    def holds(condition: torch.Tensor) -> bool:
        return bool(condition.all())

    each = compressed_indices.diff(dim=-1)
    if not holds(compressed_indices[..., 0] == 0):
        refuse(f"{ends}[..., 0] == 0")
    if not holds(compressed_indices[..., -1] == nnz):
        refuse(f"{ends}[..., -1] == nnz")
    if not holds((each >= 0) & (each <= m)):
        refuse(f"0 <= {ends}[..., 1:] - {ends}[..., :-1] <= {count}")
    if not holds((plain_indices >= 0) & (plain_indices < m)):
        refuse(f"0 <= {plain} < {count}")
    if nnz < 2:
        return
    numbers = torch.arange(nnz, dtype=compressed_indices.dtype, device=device())
    numbers = numbers.expand(plain_indices.shape).contiguous()
    run = torch.searchsorted(compressed_indices.contiguous(), numbers, right=True)
    if not holds((plain_indices.diff(dim=-1) > 0) | (run.diff(dim=-1) != 0)):
        refuse(
            f"{plain}[..., {ends}[..., i - 1]:{ends}[..., i]] for all i = 1, ..., {of_ends} are sorted and distinct "
            "along the last dimension values"
        )
