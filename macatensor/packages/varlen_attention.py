"""``torch.nn.attention.varlen``: attention of sequences of several lengths that lie one behind the other. PyTorch has kernels
of it for CUDA alone; here each sequence is a launch, or goes by products and softmax where a window or several queries before
more keys hide some, and the host reads where they begin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType

import torch
from torch import Tensor

from macatensor.packages.attention import (
    Options,
    attend_with_weights,
    check,
    fused,
    fused_gradients,
    gradients,
    is_fused,
)

UPSTREAM = ("2.11", "2.16")


def kernels(varlen: ModuleType) -> None:
    """Gives the module's operators a kernel for maca."""
    varlen._varlen_attn.register_kernel("maca")(_forward)
    varlen._varlen_attn_backward.register_kernel("maca")(_backward)


def _options(is_causal: bool, scale: float | None, window: Sequence[int] | None) -> Options:
    left, right = window or (-1, -1)
    return Options(scale=scale, causal=is_causal, window=(left, right))


def _pieces(bounds: Tensor, tokens: int, name: str) -> list[slice]:
    """The tokens of each sequence. Raises ValueError for bounds [B + 1] that are none."""
    at = bounds.tolist()
    if not at or at[0] != 0 or at[-1] > tokens or any(a > b for a, b in zip(at, at[1:])):
        raise ValueError(
            f"{name} got {at} of {tokens} tokens; accepted: numbers that begin with 0 and never fall"
        )
    return [slice(a, b) for a, b in zip(at, at[1:])]


def _keys(
    key: Tensor, value: Tensor, bounds: Tensor | None, used: Tensor | None, pages: Tensor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """[S, Hk, D] of each sequence, of which ``used`` [B] says how many count; with ``pages`` [B, n] they are taken from blocks
    [pages, page size, Hk, D]."""
    lengths = None if used is None else used.tolist()
    if pages is not None:
        for row, length in zip(pages, lengths or [None] * pages.shape[0]):
            yield key[row].flatten(0, 1)[:length], value[row].flatten(0, 1)[:length]
        return
    if bounds is None:
        raise ValueError("varlen_attn got no cu_seq_k; it may be left out with a block_table alone")
    for i, piece in enumerate(_pieces(bounds, key.shape[0], "cu_seq_k")):
        length = None if lengths is None else lengths[i]
        yield key[piece][:length], value[piece][:length]


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: list[int] | None = None,
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """[T, H, D] of query [T, H, D], key and value [S, Hk, D]; the logsumexp float32 [H, T]; the state of a dropout that is
    none."""
    check(query, key, value)
    options = _options(is_causal, scale, window_size)
    output = torch.zeros_like(query)
    logsumexp = torch.zeros((query.shape[1], query.shape[0]), dtype=torch.float32, device=query.device)
    pieces = _pieces(cu_seq_q, query.shape[0], "cu_seq_q")
    for piece, (keys, values) in zip(pieces, _keys(key, value, cu_seq_k, seqused_k, block_table)):
        one, keys, values = (t.unsqueeze(0) for t in (query[piece], keys, values))
        if is_fused(one, keys, values, options):
            result, sums = fused(one, keys, values, options)
        else:
            result, sums, _ = attend_with_weights(one, keys, values, options)
        output[piece] = result.squeeze(0)
        logsumexp[:, piece] = sums.squeeze(0)
    return output, logsumexp, torch.zeros((2,), dtype=torch.uint64, device=query.device)


def _backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool,
    rng_state: Tensor,
    scale: float | None = None,
    window_size: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value."""
    options = _options(is_causal, scale, window_size)
    found = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    of_keys = _pieces(cu_seq_k, key.shape[0], "cu_seq_k")
    for q, k in zip(_pieces(cu_seq_q, query.shape[0], "cu_seq_q"), of_keys):
        given, made, one, keys, values = (
            t.unsqueeze(0) for t in (grad_out[q], out[q], query[q], key[k], value[k])
        )
        if is_fused(one, keys, values, options):
            sums = lse[:, q].unsqueeze(0)
            parts = fused_gradients(given, one, keys, values, made, sums, options)
        else:
            parts = gradients(given, one, keys, values, made, options)
        for whole, piece, part in zip(found, (q, k, k), parts):
            whole[piece] = part.squeeze(0)
    return found
