"""Gradients that stay part of the graph, for backward passes whose kernels have no derivative of their own.

A backward pass of a ``torch.autograd.Function`` that launches a fused kernel gives numbers without a history. Where they
are to be differentiated in turn (``create_graph=True``, seen inside by ``torch.is_grad_enabled()``) it takes one of these
ways. ``torch.autograd.function.once_differentiable`` is none: where the incoming gradients have no history it drops the
graph without a word, and ``torch.autograd.grad`` with chosen inputs never meets the node that should raise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx


def by_recomputation(
    function: Callable[..., Sequence[Tensor] | Tensor],
    inputs: Sequence[object],
    gradients: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Gradients with a graph: for each of ``inputs`` the one of ``function(*inputs)``, or None where none is wanted.

    ``function``: the same results, made of operators that PyTorch can differentiate twice. ``gradients``: of each
    result, or None.
    """
    # an input that is given twice, or that another one was computed from, has a gradient of its own at each place
    apart = [t.view_as(t) if isinstance(t, torch.Tensor) and t.requires_grad else t for t in inputs]
    results = function(*apart)
    results = results if isinstance(results, (list, tuple)) else (results,)
    pairs = [(r, g) for r, g in zip(results, gradients) if g is not None and r.requires_grad]
    wanted = [t for t in apart if isinstance(t, torch.Tensor) and t.requires_grad]
    if not pairs or not wanted:
        return [None] * len(inputs)
    roots, seeds = zip(*pairs)
    found = iter(torch.autograd.grad(roots, wanted, seeds, create_graph=True, allow_unused=True))
    return [next(found) if isinstance(t, torch.Tensor) and t.requires_grad else None for t in apart]


class _Context(FunctionCtx):
    why: str


class _Once(torch.autograd.Function):
    """Gradients between which and their origins no derivative is known."""

    @staticmethod
    def forward(ctx: _Context, count: int, why: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.why = why
        return tuple(t.detach() for t in tensors[:count])

    @staticmethod
    def backward(ctx: _Context, *gradients: Tensor) -> NoReturn:
        raise RuntimeError(ctx.why)


_once: Callable[..., tuple[Tensor, ...]] = _Once.apply


def differentiated_once(
    gradients: Sequence[Tensor | None], origins: Sequence[Tensor | None], why: str
) -> tuple[Tensor | None, ...]:
    """``gradients`` as they are, but a derivative of one with respect to an origin raises RuntimeError(why).

    ``origins``: tensors (or None) that they were computed from: inputs of the forward pass and incoming gradients.
    """
    if not torch.is_grad_enabled():
        return tuple(gradients)
    given = [g for g in gradients if g is not None]
    joined = iter(_once(len(given), why, *given, *(t for t in origins if t is not None)) if given else ())
    return tuple(next(joined) if g is not None else None for g in gradients)
