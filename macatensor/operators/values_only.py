"""Eigenvalues and singular values without their vectors.

PyTorch's own composites ask for vectors wherever a tensor's class is not its own, as its derivative might need them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from macatensor.operators.whole import whole


def _may_be_differentiated(a: Tensor) -> bool:
    return (torch.is_grad_enabled() and a.requires_grad) or forward_ad._current_level >= 0


@whole("linalg_eigvalsh.default")
def linalg_eigvalsh(self: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of a symmetric or Hermitian matrix."""
    values: Tensor = torch.ops.aten._linalg_eigh.default(self, UPLO, _may_be_differentiated(self))[0]
    return values


@whole("linalg_svdvals.default")
def linalg_svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """The singular values of a matrix."""
    with_vectors = _may_be_differentiated(A)
    values: Tensor = torch.ops.aten._linalg_svd.default(A, False, with_vectors, driver=driver)[1]
    return values
