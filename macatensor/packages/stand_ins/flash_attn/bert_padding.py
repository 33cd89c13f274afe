"""Sequences of several lengths, padded or one behind the other."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """[n, ...]: rows ``indices`` [n] of input [rows, ...]."""
    return input[indices]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """[first_axis_dim, ...]: values [n, ...] at rows ``indices`` [n], zeros elsewhere."""
    output = values.new_zeros(first_axis_dim, *values.shape[1:])
    return output.index_put((indices,), values)


def index_first_axis_residual(input: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`index_first_axis`, and the input as what goes around; gradients of both are added."""
    return input[indices], input


def _bounds(lengths: Tensor) -> Tensor:
    return functional.pad(torch.cumsum(lengths, 0, dtype=torch.int32), (1, 0))


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The tokens [total, ...] of hidden_states [B, L, ...] where ``attention_mask`` [B, L] or ``unused_mask`` is true, their
    positions among all [total], where each sequence begins [B + 1] in int32, the longest one's length, and how many of
    each are not unused [B] in int32."""
    every = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = every.sum(-1, dtype=torch.int32)
    used = attention_mask.sum(-1, dtype=torch.int32)
    indices = torch.nonzero(every.flatten()).flatten()
    tokens = index_first_axis(hidden_states.flatten(0, 1), indices)
    return tokens, indices, _bounds(lengths), int(lengths.max().item()), used


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor, attention_mask_in_length: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    """As :func:`unpad_input` where a row of ``attention_mask_in_length`` [B, L] has the lengths of the sequences that lie in it
    one behind the other, then zeros."""
    total = attention_mask_in_length.sum(-1, keepdim=True)
    column = torch.arange(attention_mask_in_length.shape[-1], device=total.device)
    indices = torch.nonzero((column < total).flatten()).flatten()
    flat = attention_mask_in_length.flatten()
    lengths = flat[torch.nonzero(flat).flatten()]
    tokens = index_first_axis(hidden_states.flatten(0, 1), indices)
    return tokens, indices, _bounds(lengths), int(lengths.max().item())


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """[batch, seqlen, ...] of tokens [total, ...] at positions ``indices`` [total]; zeros elsewhere."""
    padded: Tensor = index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(
        0, (batch, seqlen)
    )
    return padded
