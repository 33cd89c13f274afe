"""Samples of the host, as they are on the device: the same strides, the same sharing, device arguments renamed."""

from __future__ import annotations

from typing import TypeVar

import torch

from macatensor.parity.transport import place, replace, twin
from macatensor.runtime.boxed import Value

_T = TypeVar("_T")


def _renamed(value: Value) -> Value:
    if isinstance(value, torch.device):
        return torch.device("maca") if value.type == "cpu" else value
    if isinstance(value, str):
        return "maca" if value == "cpu" else value
    if isinstance(value, dict):
        return {k: _renamed(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_renamed(v) for v in value)
    return value


def is_plain(t: torch.Tensor) -> bool:
    """Strided memory of the host: neither sparse, quantized, nested nor on the meta device."""
    return t.layout is torch.strided and t.device.type == "cpu" and not (t.is_quantized or t.is_nested)


def stays_on_host(t: torch.Tensor) -> bool:
    """Is it a meta tensor, or one that the operator wants on the CPU whatever the device?"""
    return t.device.type == "meta" or getattr(t, "stays_on_host", False)


def _placed(t: torch.Tensor) -> torch.Tensor:
    if stays_on_host(t):
        return t
    if not is_plain(t):
        return t.detach().to("maca").requires_grad_(t.requires_grad)  # or the one clear error
    resolved = t.detach().resolve_conj().resolve_neg()
    if resolved.stride() != t.stride():
        resolved = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(resolved)
    return place(resolved).requires_grad_(t.requires_grad)


def on_device(values: _T) -> _T:
    """``values`` with every tensor on the device, the same one once."""
    moved: _T = _renamed(replace(values, _placed))
    return moved


def copied(values: _T) -> _T:
    """``values`` with every tensor a copy of equal strides, for calls that write their arguments."""

    def copy(t: torch.Tensor) -> torch.Tensor:
        if not is_plain(t):
            return t.clone()
        made = t.detach().clone() if t.is_conj() or t.is_neg() else twin(t)
        return made.requires_grad_(t.requires_grad)

    return replace(values, copy)
