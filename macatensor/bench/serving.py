"""Attention over blocks of a cache against plain C++, which goes over sequences, heads and tokens."""

from __future__ import annotations

from functools import partial

import torch

from macatensor.bench import plain_algorithms
from macatensor.bench.plain_algorithms import Pair, against_plain

SEQUENCES, HEADS, WIDTH, BLOCK = 8, 8, 64, 16


def paged_attention(quick: bool) -> Pair:
    """8 sequences of up to 512 tokens, 8 heads of 64, blocks of 16 in no order."""
    torch.manual_seed(0)
    longest = 32 if quick else 512
    lengths = torch.randint(longest // 4, longest + 1, (SEQUENCES,), dtype=torch.int32)
    lengths[0] = longest
    most = longest // BLOCK
    tables = torch.randperm(SEQUENCES * most, dtype=torch.int32).view(SEQUENCES, most)
    query = torch.randn(SEQUENCES, HEADS, WIDTH)
    keys, values = torch.randn(2, SEQUENCES * most, BLOCK, HEADS, WIDTH).unbind()
    # four dimensions that are transferred would become NHWC, where a token's heads lie apart
    on_device = [
        t.to("maca", memory_format=torch.contiguous_format) for t in (query, keys, values, tables, lengths)
    ]
    return (
        partial(torch.ops.maca.paged_attention, *on_device, WIDTH**-0.5),
        partial(plain_algorithms.paged_attention, query, keys, values, tables, lengths, WIDTH**-0.5),
    )


CASES = {"serving.paged_attention": against_plain("serving.paged_attention", paged_attention)}
