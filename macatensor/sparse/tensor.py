"""The COO tensor of the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch

from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import device, take_sizes
from macatensor.sparse.calls import FROM_HOST, DeviceSparse, registrar


class SparseMacaTensor(DeviceSparse):
    """A tensor of layout ``torch.sparse_coo`` on ``maca:0``. Made by PyTorch's functions, never directly."""

    _IMPLEMENTATION = "SparseTensorImpl"
    operators: ClassVar[dict[str, Callable[..., Value]]] = {}
    _coo_indices: torch.Tensor  # int64 [sparse_dim, nnz]
    _coo_values: torch.Tensor  # [nnz, *dense sizes]
    _coo_is_coalesced: bool  # are the indices sorted, and each there once?

    def to_host(self, check: bool = False) -> torch.Tensor:
        return torch.sparse_coo_tensor(
            self._coo_indices.cpu(),
            self._coo_values.cpu(),
            self.shape,
            check_invariants=check,
            is_coalesced=self._coo_is_coalesced,
            device="cpu",
        )

    def hold(self, other: Value) -> None:
        if self.shape != other.shape:
            take_sizes(self, other)
        become(self, other._coo_indices, other._coo_values, other._coo_is_coalesced)

    def stride(self, *dim: Value) -> Value:
        """Zeros, as PyTorch's sparse tensors have them: the class behind this one keeps those of a dense tensor."""
        found = super().stride(*dim)
        return (0,) * len(found) if isinstance(found, tuple) else 0


operator = registrar(SparseMacaTensor)


def coo(
    indices: torch.Tensor, values: torch.Tensor, size: Sequence[int], is_coalesced: bool | None = None
) -> SparseMacaTensor:
    """The tensor of ``size`` that has ``values`` [nnz, *dense sizes] at ``indices`` int64 [sparse_dim, nnz], both on maca.

    ``is_coalesced``: None says what is true of any indices, that less than two elements are in order.
    """
    made: SparseMacaTensor = torch.Tensor._make_wrapper_subclass(
        SparseMacaTensor, tuple(size), dtype=values.dtype, layout=torch.sparse_coo, device=device()
    )
    return become(made, indices, values, values.shape[0] < 2 if is_coalesced is None else is_coalesced)


def become(
    tensor: SparseMacaTensor, indices: torch.Tensor, values: torch.Tensor, is_coalesced: bool
) -> SparseMacaTensor:
    """``tensor`` with these elements instead."""
    tensor._coo_indices, tensor._coo_values, tensor._coo_is_coalesced = indices, values, is_coalesced
    return tensor


def _from_host(source: torch.Tensor) -> SparseMacaTensor:
    return coo(source._indices().to("maca"), source._values().to("maca"), source.shape, source.is_coalesced())


FROM_HOST[torch.sparse_coo] = _from_host
