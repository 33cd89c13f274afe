"""Products of sparse matrices with dense ones, and sums of what lies at one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from macatensor.bench.case import Case, Operands

BAR = 1.0
_SIDE = 4096


def sparse(quick: bool) -> Iterator[Case]:
    """float32, 4096 x 4096 with 0.1, 1 and 10 % of elements: by rows (CSR) times 64 columns and times a vector; COO whose
    places occur twice each, added up."""
    side = 64 if quick else _SIDE

    def matrix(percent: float) -> torch.Tensor:
        dense = torch.rand(side, side)
        return torch.where(torch.rand(side, side) < percent / 100, dense, 0.0)

    def by_rows(percent: float, *width: int) -> Callable[[], Operands]:
        return lambda: (matrix(percent).to_sparse_csr(), torch.rand(side, *width))

    def twice(percent: float) -> Callable[[], Operands]:
        def make() -> Operands:
            indices = matrix(percent).to_sparse().indices()
            indices = torch.cat((indices, indices[:, torch.randperm(indices.shape[1])]), 1)
            return (torch.sparse_coo_tensor(indices, torch.rand(indices.shape[1]), (side, side)),)

        return make

    for percent in (0.1, 1.0, 10.0):
        label = f"{percent:g}"
        yield Case(f"sparse.csr_times_64.{label}", torch.mm, by_rows(percent, 64), BAR)
        yield Case(f"sparse.csr_times_vector.{label}", torch.mv, by_rows(percent), BAR)
    for percent in (0.1, 1.0):
        yield Case(f"sparse.coalesce.{percent:g}", lambda t: t.coalesce(), twice(percent), BAR)
