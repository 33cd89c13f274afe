"""Inference of ``nn.TransformerEncoder`` and ``nn.MultiheadAttention`` by PyTorch's fast paths."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from running import close
from torch import nn

PADDED = torch.tensor([[False, False, False, True, True], [False] * 5])
CAUSAL = torch.ones(5, 5).triu(1).bool()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder(context: Any, norm_first: bool, activation: str) -> None:
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, batch_first=True, norm_first=norm_first, activation=activation
    )
    # without nested tensors, which fill padded places with zeros
    host = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    ours = copy.deepcopy(host).to("maca")
    x = torch.randn(2, 5, 8)
    added = CAUSAL.float().masked_fill(CAUSAL, -torch.inf)
    with context():
        for masks in (
            {},
            {"src_key_padding_mask": PADDED},
            {"mask": CAUSAL},
            {"mask": added},
            {"mask": CAUSAL, "src_key_padding_mask": PADDED},
        ):
            expected = host(x, **masks)
            close(ours(x.maca(), **{k: v.maca() for k, v in masks.items()}), expected, rtol=1e-4, atol=1e-5)


def test_encoder_takes_padding_without_nested_tensors() -> None:
    host = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    ours = copy.deepcopy(host).to("maca")
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        got = ours(x.maca(), src_key_padding_mask=PADDED.maca()).cpu()
        expected = host(x, src_key_padding_mask=PADDED)
    torch.testing.assert_close(got[~PADDED], expected[~PADDED], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"need_weights": False},
        {"average_attn_weights": False},
        {"attn_mask": CAUSAL},
        {"key_padding_mask": PADDED},
    ],
)
def test_multi_head_attention(options: dict[str, Any]) -> None:
    host = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    ours = copy.deepcopy(host).to("maca")
    x = torch.randn(2, 5, 8)
    y = x.maca()
    moved = {k: v.maca() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    with torch.no_grad():
        for a, b in zip(ours(y, y, y, **moved), host(x, x, x, **options)):
            assert (a is None) == (b is None)
            if b is not None:
                close(a, b, rtol=1e-4, atol=1e-5)
