"""Tensors that are not plain and strided: the parts they are recorded by."""

from __future__ import annotations

from typing import Any

import torch

from macatensor.accuracy.recording.flatten import PLAIN
from macatensor.accuracy.recording.quiet import quiet
from macatensor.runtime.tensor import MacaTensor


def shape_of(tensor: torch.Tensor) -> list[int]:
    if tensor.is_nested and tensor.layout is torch.strided:
        return [int(tensor.size(0)), *[-1] * (tensor.dim() - 1)]
    return [int(n) if type(n) is int else -1 for n in tensor.shape]  # -1: a ragged dimension


_Apart = tuple[torch.Tensor, "dict[str, torch.Tensor] | None", str]


def parts_of(tensor: torch.Tensor) -> _Apart:
    """A tensor that is not plain and strided: itself or what it wraps, its parts, and its layout."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    with quiet():
        if tensor.layout is torch.sparse_coo:
            held = tensor if tensor.is_coalesced() else tensor.detach().coalesce()
            return tensor, {"indices": held._indices(), "values": held._values()}, "sparse_coo"
        if tensor.layout in _COMPRESSED:
            held = tensor.detach()
            rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
            names = ("crow_indices", "col_indices") if rows else ("ccol_indices", "row_indices")
            parts = {name: getattr(held, name)() for name in (*names, "values")}
            return tensor, parts, str(tensor.layout).removeprefix("torch.")
        if tensor.is_nested and tensor.layout is torch.jagged:
            jagged: Any = tensor
            return tensor, {"values": jagged._values, "offsets": jagged._offsets}, "jagged"
        if tensor.is_nested:
            return tensor, {str(i): part for i, part in enumerate(tensor.detach().unbind())}, "nested"
        if tensor.layout is torch._mkldnn:  # type: ignore[attr-defined]
            return tensor, {"values": tensor.detach().to_dense()}, "_mkldnn"
        if type(tensor) in PLAIN or isinstance(tensor, MacaTensor):
            return tensor, None, ""
        if hasattr(tensor, "__tensor_flatten__"):
            names, _ = tensor.__tensor_flatten__()
            return tensor, {name: getattr(tensor, name) for name in names}, type(tensor).__name__
        return _unwrapped(tensor), None, ""


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """A subclass that holds its elements as any tensor does, as one of no class; a wrapper as a meta tensor."""
    if _has_elements(tensor):
        return tensor.as_subclass(torch.Tensor)
    sizes = [int(n) for n in tensor.shape]
    strides = [int(n) for n in tensor.stride()]
    return torch.empty_strided(sizes, strides, dtype=tensor.dtype, device="meta")


def _has_elements(tensor: torch.Tensor) -> bool:
    if "__torch_dispatch__" in dir(type(tensor)) and (
        type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl
    ):
        return False
    return True


_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def quantized_parts(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    held = tensor.detach()
    parts = {"values": held.int_repr()}
    if held.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        parts["scale"] = torch.tensor(held.q_scale(), dtype=torch.float64, device="cpu")
        parts["zero_point"] = torch.tensor(held.q_zero_point(), device="cpu")
    else:
        parts["scale"], parts["zero_point"] = held.q_per_channel_scales(), held.q_per_channel_zero_points()
        parts["axis"] = torch.tensor(held.q_per_channel_axis(), device="cpu")
    return parts
