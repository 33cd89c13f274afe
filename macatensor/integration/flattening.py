"""PyTorch's own functions that flatten parameters and gradients with ``view(-1)``.

A transferred 4-D weight is channels_last here, where that view does not exist. Flattening in row-major order, as these
functions promise, then takes a copy: they get contiguous tensors of the device in place of others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch
from torch.nn.utils import convert_parameters, prune

from macatensor.runtime.tensor import is_maca

_flatten: Callable[..., torch.Tensor] = torch.nn.utils.parameters_to_vector
_gather: Callable[[torch.optim.LBFGS], torch.Tensor] = torch.optim.LBFGS._gather_flat_grad


def _row_major(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous() if is_maca(t) else t


@functools.wraps(_flatten)
def _parameters_to_vector(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    return _flatten([_row_major(p) for p in parameters])


def _masked_by(compute: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(compute)
    def call(self: prune.BasePruningMethod, t: torch.Tensor, default_mask: torch.Tensor) -> torch.Tensor:
        return compute(self, _row_major(t), default_mask)

    return call


@functools.wraps(_gather)
def _gather_flat_grad(self: torch.optim.LBFGS) -> torch.Tensor:
    parts = [p for p in self._params if p.grad is not None and is_maca(p.grad) and not p.grad.is_contiguous()]
    for p in parts:
        p.grad = p.grad.contiguous()
    return _gather(self)


def register() -> None:
    """Wraps ``parameters_to_vector``, the pruning methods that rank single elements, and LBFGS."""
    torch.nn.utils.parameters_to_vector = convert_parameters.parameters_to_vector = _parameters_to_vector
    for method in (prune.L1Unstructured, prune.RandomUnstructured):
        method.compute_mask = _masked_by(method.compute_mask)  # type: ignore[method-assign]
    torch.optim.LBFGS._gather_flat_grad = _gather_flat_grad  # type: ignore[method-assign]
