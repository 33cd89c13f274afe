"""The functions of ``flash_attn.flash_attn_interface``. Beside float16 and bfloat16 they take float32 and float64, and heads
of any width. The backward pass is always deterministic."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from macatensor.packages.attention import Keys, Options, attend, attend_with_weights, check

from .layers.rotary import rotate

Result = Tensor | tuple[Tensor, Tensor, Tensor]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """[B, L, H, D] of q [B, L, H, D] and k, v [B, S, Hk, D]. Masks are aligned to the bottom right corner; a query that sees
    no key gives zeros. With ``return_attn_probs`` also the logsumexp [B, H, L] and the weights [B, H, L, S], which are
    negative where they were dropped. Raises RuntimeError for several dtypes and for heads that do not divide."""
    check(q, k, v)
    options = Options(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    return attend_with_weights(q, k, v, options) if return_attn_probs else attend(q, k, v, options)


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """:func:`flash_attn_func` of kv [B, S, 2, Hk, D]."""
    k, v = kv.unbind(2)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """:func:`flash_attn_func` of qkv [B, L, 3, H, D]."""
    q, k, v = qkv.unbind(2)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Result:
    """[total, H, D] of sequences that lie one behind the other: q [total, H, D], k and v [total_k, Hk, D], or with a
    ``block_table`` [B, blocks] pages of them [pages, page size, Hk, D]. ``cu_seqlens_*`` [B + 1] say where each begins; they
    are read by the host, once a call. With ``return_attn_probs`` also the logsumexp [H, total] and the weights
    [B, H, max_seqlen_q, max_seqlen_k]. Raises as :func:`flash_attn_func`, and ValueError for bounds that do not fit."""
    check(q, k, v)
    starts = torch.stack([cu_seqlens_q, cu_seqlens_k]).tolist()
    lengths = [[end - begin for begin, end in zip(side, side[1:])] for side in starts]
    queries = _sequences(q, starts[0], lengths[0])
    if block_table is None:
        keys, values = (_sequences(t, starts[1], lengths[1]) for t in (k, v))
    else:
        keys, values = (_paged(t, block_table, lengths[1]) for t in (k, v))
    outputs, sums, weights = [], [], []
    for i, (query, key, value) in enumerate(zip(queries, keys, values)):
        slopes = alibi_slopes if alibi_slopes is None or alibi_slopes.dim() == 1 else alibi_slopes[i]
        options = Options(dropout_p, softmax_scale, causal, window_size, softcap, slopes)
        operands = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        if not return_attn_probs:
            outputs.append(attend(*operands, options).squeeze(0))
            continue
        output, logsumexp, probabilities = attend_with_weights(*operands, options)
        outputs.append(output.squeeze(0))
        sums.append(logsumexp.squeeze(0))
        room = (0, max_seqlen_k - key.shape[0], 0, max_seqlen_q - query.shape[0])
        weights.append(functional.pad(probabilities, room))
    rest = q.shape[0] - starts[0][-1]
    result = torch.cat([*outputs, q.new_zeros(rest, q.shape[1], v.shape[-1])] if rest else outputs)
    return (result, torch.cat(sums, -1), torch.cat(weights)) if return_attn_probs else result


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """:func:`flash_attn_varlen_func` of kv [total_k, 2, Hk, D]."""
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """:func:`flash_attn_varlen_func` of qkv [total, 3, H, D]."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def _sequences(tensor: Tensor, starts: list[int], lengths: list[int]) -> Sequence[Tensor]:
    """A piece of ``tensor`` for each sequence; one operator, whose gradient is one, too."""
    if starts[0] != 0 or min(lengths, default=0) < 0 or starts[-1] > tensor.shape[0]:
        raise ValueError(
            f"cu_seqlens got {starts} for {tensor.shape[0]} tokens; expected numbers that begin with 0 and never fall"
        )
    return tensor.split_with_sizes([*lengths, tensor.shape[0] - starts[-1]])[:-1]


def _paged(pages: Tensor, table: Tensor, lengths: list[int]) -> Sequence[Tensor]:
    return [pages[row].flatten(0, 1)[:length] for row, length in zip(table, lengths)]


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of q [B, L, H, D] over a cache [B, S, Hk, D], or over its pages [pages, page size, Hk, D] by a
    ``block_table`` [B, blocks]. ``k`` and ``v`` [B, new, Hk, D] are written into the cache first, behind its ``cache_seqlens``
    [B] (or one number) tokens. With ``rotary_cos`` and ``rotary_sin`` [positions, R / 2] keys are rotated before, and so are
    queries: by their own positions where causal or in a window, else by the first of them. ``num_splits`` changes nothing.
    No gradient. Lengths stay on the device; a plain number is the fastest, for then no mask is needed.

    Raises RuntimeError where k comes without v or without ``cache_seqlens``, and rotary tables without k."""
    check(q, k_cache, v_cache)
    if (k is None) != (v is None):
        raise RuntimeError("flash_attn_with_kvcache got one of k and v; expected both or none")
    if k is not None and cache_seqlens is None:
        raise RuntimeError("If key is supplied, seqlens_k must also be passed in")
    if rotary_cos is not None and k is None:
        raise RuntimeError(
            "If rotary cos/sin are provided, new key / value to be appended to KV cache must also be provided"
        )
    with torch.no_grad():
        known = 0 if cache_seqlens is None else cache_seqlens
        if rotary_cos is not None and rotary_sin is not None and k is not None:
            k = rotate(k, rotary_cos, rotary_sin, rotary_interleaved, known)
            if causal or tuple(window_size) != (-1, -1):
                q = rotate(q, rotary_cos, rotary_sin, rotary_interleaved, known)
            else:  # all of its tokens are at one position
                folded = q.flatten(1, 2).unsqueeze(1)
                q = rotate(folded, rotary_cos, rotary_sin, rotary_interleaved, known).view_as(q)
        if k is not None and v is not None:
            _append(k_cache, k, known, cache_batch_idx, block_table)
            _append(v_cache, v, known, cache_batch_idx, block_table)
        end: int | Tensor | None = cache_seqlens if k is None else known + k.shape[1]
        keys, values = (_cached(t, q.shape[0], cache_batch_idx, block_table, end) for t in (k_cache, v_cache))
        if isinstance(end, int):
            keys, values, end = keys[:, :end], values[:, :end], None
        options = Options(0.0, softmax_scale, causal, window_size, softcap, alibi_slopes)
        part = Keys(cache_leftpad, end)
        if isinstance(end, Tensor):
            # what lies behind a sequence was perhaps never written, and no weight is small enough for NaN
            column = torch.arange(keys.shape[1], device=q.device)
            behind = (column >= end.view(-1, 1)).view(-1, keys.shape[1], 1, 1)
            keys, values = keys.masked_fill(behind, 0.0), values.masked_fill(behind, 0.0)
        if return_softmax_lse:
            return attend_with_weights(q, keys, values, options, part)[:2]
        return attend(q, keys, values, options, part)


def _cached(
    cache: Tensor, batch: int, rows: Tensor | None, block_table: Tensor | None, end: int | Tensor | None
) -> Tensor:
    """[batch, S, Hk, D]: the sequences of a cache, or of its pages."""
    if block_table is None:
        return cache[:batch] if rows is None else cache[rows.long()]
    if end is not None:
        # pages behind a sequence have no number yet
        start = torch.arange(block_table.shape[1], device=cache.device) * cache.shape[1]
        block_table = torch.where(start < (end if isinstance(end, int) else end.view(-1, 1)), block_table, 0)
    return cache[block_table.long()].flatten(1, 2)


def _append(
    cache: Tensor, new: Tensor, known: int | Tensor, rows: Tensor | None, block_table: Tensor | None
) -> None:
    """Writes ``new`` [B, new, Hk, D] behind the ``known`` tokens."""
    batch, length = new.shape[:2]
    if isinstance(known, int) and block_table is None and rows is None:
        if known + length > cache.shape[1]:
            raise RuntimeError(
                f"flash_attn_with_kvcache got {known} + {length} tokens for a cache of {cache.shape[1]}"
            )
        cache[:batch, known : known + length] = new
        return
    start: int | Tensor = known if isinstance(known, int) else known.view(-1, 1)
    position = (torch.arange(length, device=new.device) + start).expand(batch, length).long()
    if block_table is None:
        row = torch.arange(batch, device=new.device) if rows is None else rows.long()
        cache[row.view(-1, 1), position] = new.to(cache.dtype)
        return
    size = cache.shape[1]
    page = block_table.long().gather(1, torch.div(position, size, rounding_mode="floor"))
    cache[page, position % size] = new.to(cache.dtype)
