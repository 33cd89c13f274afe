"""Weights of a model on maca on their way into ONNX, by PyTorch's older exporter.

It holds tensors of one shape for one tensor when C++ finds them at one address, which for all of ours is null: every
weight of that shape would become the first. It gets copies on the host, one for each weight of the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from macatensor.runtime.tensor import is_maca

_Weights = dict[str, torch.Tensor]


def _on_host(weights: _Weights) -> _Weights:
    copies: dict[tuple[object, ...], torch.Tensor] = {}  # tied weights stay one

    def host(t: torch.Tensor) -> torch.Tensor:
        if not is_maca(t):
            return t
        place = (t.device, t.data_ptr(), t.dtype, t.shape, t.stride())
        if place not in copies:
            copies[place] = t.cpu()
        return copies[place]

    return {name: host(t) for name, t in weights.items()}


def _from_host(pass_: Callable[..., _Weights]) -> Callable[..., _Weights]:
    @functools.wraps(pass_)
    def call(graph: object, weights: _Weights, is_train: bool) -> _Weights:
        return pass_(graph, _on_host(weights), is_train)

    return call


def register() -> None:
    """Wraps the exporter's pass that looks for weights that are the same."""
    name = "_jit_pass_onnx_deduplicate_initializers"
    setattr(torch._C, name, _from_host(getattr(torch._C, name)))
