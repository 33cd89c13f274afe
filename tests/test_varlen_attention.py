"""``torch.nn.attention.varlen`` on the device, against attention of each sequence by itself in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import varlen

import macatensor

LENGTHS = ((3, 0, 5, 1), (4, 2, 5, 7))  # of queries, of keys


def bounds(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(torch.int32)


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: tuple[int, int]) -> torch.Tensor:
    """Of each sequence, with masks aligned to the bottom right."""
    parts = []
    for one, keys, values in zip(q.split(LENGTHS[0]), k.split(LENGTHS[1]), v.split(LENGTHS[1])):
        row = torch.arange(one.shape[0]).unsqueeze(1) + keys.shape[0] - one.shape[0]
        column = torch.arange(keys.shape[0])
        seen = torch.ones(one.shape[0], keys.shape[0], dtype=torch.bool)
        if window[0] >= 0:
            seen &= column >= row - window[0]
        if window[1] >= 0:
            seen &= column <= row + window[1]
        operands = (t.unsqueeze(0).transpose(1, 2) for t in (one, keys, values))
        found = functional.scaled_dot_product_attention(*operands, attn_mask=seen, enable_gqa=True)
        parts.append(found.transpose(1, 2).squeeze(0))
    return torch.cat(parts)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 1)], ids=str)
@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_sequences_agree_with_each_alone(dtype: torch.dtype, heads: int, window: tuple[int, int]) -> None:
    draw = torch.Generator().manual_seed(0)
    counts = (sum(LENGTHS[0]), 4), (sum(LENGTHS[1]), heads), (sum(LENGTHS[1]), heads)
    host = [torch.randn(*count, 8, generator=draw).to(dtype) for count in counts]
    weights = torch.randn(sum(LENGTHS[0]), 4, 8, generator=draw).to(dtype)
    wide = [t.double().clone().requires_grad_() for t in host]
    wanted = expected(*wide, window)
    (wanted * weights).sum().backward()
    ours = [t.to("maca").requires_grad_() for t in host]
    at = [bounds(lengths).to("maca") for lengths in LENGTHS]
    with macatensor.fallback("error"):
        found = varlen.varlen_attn(*ours, *at, 5, 7, window_size=window, enable_gqa=heads != 4)
        (found * weights.to("maca")).sum().backward()
    # sums of at most 8 terms, of weights that are rounded to the dtype once
    allowed = {"rtol": 8 * torch.finfo(dtype).eps, "atol": 16 * torch.finfo(dtype).eps}
    torch.testing.assert_close(found.cpu().double(), wanted, **allowed)
    for got, want in zip(ours, wide):
        assert got.grad is not None and want.grad is not None
        torch.testing.assert_close(
            got.grad.cpu().double(), want.grad, **{k: 4 * v for k, v in allowed.items()}
        )


def test_logsumexp_and_keys_in_pages() -> None:
    q, pages = torch.randn(2, 4, 8), torch.randn(5, 4, 4, 8)
    table, used = torch.tensor([[3, 1], [0, 4]], dtype=torch.int32), torch.tensor([6, 3], dtype=torch.int32)
    found, sums = varlen.varlen_attn(
        q.to("maca"), pages.to("maca"), pages.to("maca"), bounds((1, 1)).to("maca"), None, 1, 8,
        return_aux=varlen.AuxRequest(lse=True), seqused_k=used.to("maca"), block_table=table.to("maca"),
    )  # fmt: skip
    for i, (row, count) in enumerate(zip(table.tolist(), used.tolist())):
        keys = pages[row].flatten(0, 1)[:count]
        scores = torch.einsum("hd,khd->hk", q[i], keys) / 8**0.5
        torch.testing.assert_close(sums[:, i].cpu(), scores.logsumexp(-1))
        torch.testing.assert_close(found[i].cpu(), torch.einsum("hk,khd->hd", scores.softmax(-1), keys))


def test_bounds_that_are_none_are_refused() -> None:
    q = torch.randn(3, 1, 4, device="maca")
    for wrong in ([0, 4], [1, 3], [0, 2, 1]):
        at = torch.tensor(wrong, dtype=torch.int32, device="maca")
        with pytest.raises(ValueError, match="never fall"):
            varlen.varlen_attn(q, q, q, at, at, 3, 3)
