"""A GPT that writes one token at a time and keeps the keys and values of those before."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from macatensor.demo.models import GPT, Block

Cache = tuple[torch.Tensor, torch.Tensor]  # keys and values, (N, heads, T, width / heads)


@dataclass(frozen=True)
class Begun:
    """A text so far: tokens int64 (N, T), the logits (N, 1, vocabulary) of the next, keys and values of each layer."""

    tokens: torch.Tensor
    logits: torch.Tensor
    caches: list[Cache]


def begin(model: GPT, prompt: torch.Tensor) -> Begun:
    """The model reads int64 (N, T)."""
    with torch.inference_mode():
        logits, caches = _step(model, prompt, 0, [None] * len(model.blocks))
        return Begun(prompt, logits[:, -1:], caches)


def go_on(model: GPT, begun: Begun, length: int) -> torch.Tensor:
    """int64 (N, ``length``): the likeliest tokens after what was begun. Caches grow with ``torch.cat``."""
    with torch.inference_mode():
        logits, caches, written = begun.logits, begun.caches, [begun.tokens]
        for past in range(begun.tokens.shape[1], length):
            written.append(logits.argmax(-1))
            if past + 1 < length:
                logits, caches = _step(model, written[-1], past, caches)
        return torch.cat(written, 1)


def generate(model: GPT, prompt: torch.Tensor, length: int) -> torch.Tensor:
    """int64 (N, T) -> (N, ``length``): the prompt, and the likeliest tokens after it."""
    return go_on(model, begin(model, prompt), length)


def _step(
    model: GPT, tokens: torch.Tensor, past: int, caches: list[Cache] | list[None]
) -> tuple[torch.Tensor, list[Cache]]:
    x = model.tokens(tokens) + model.positions.weight[past : past + tokens.shape[1]]
    grown = []
    for block, cache in zip(model.blocks, caches):
        assert isinstance(block, Block)
        x, kept = _block(block, x, cache)
        grown.append(kept)
    return model.head(model.norm(x)), grown


def _block(block: Block, x: torch.Tensor, cache: Cache | None) -> tuple[torch.Tensor, Cache]:
    """``Block.forward`` of the tokens that are new."""
    q, k, v = _heads(block, x)
    if cache is not None:
        k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
    return _rest(block, x, F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)), (k, v)


def _heads(block: Block, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n, t, c = x.shape
    heads = block.qkv(block.norm1(x)).view(n, t, 3, block.heads, c // block.heads)
    return tuple(heads.permute(2, 0, 3, 1, 4).unbind(0))


def _rest(block: Block, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x + block.project(y.transpose(1, 2).reshape(x.shape))
    return x + block.contract(F.gelu(block.expand(block.norm2(x)), approximate="tanh"))  # type: ignore[no-any-return]


class StaticDecoder(torch.nn.Module):
    """One token at a time; keys and values go into caches of ``length`` positions, so that sizes stay the same."""

    def __init__(self, model: GPT, length: int):
        super().__init__()
        self.model = model
        shape = (1, model.config.heads, length, model.config.width // model.config.heads)
        for i in range(len(model.blocks)):
            self.register_buffer(f"keys_{i}", torch.zeros(shape))
            self.register_buffer(f"values_{i}", torch.zeros(shape))
        self.places: torch.Tensor
        self.register_buffer("places", torch.arange(length))

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """int64 (1, 1) and (1,) -> logits (1, 1, vocabulary)."""
        x = self.model.tokens(token) + F.embedding(position, self.model.positions.weight)
        mask = (self.places <= position)[None, None, None]
        for i, block in enumerate(self.model.blocks):
            assert isinstance(block, Block)
            keys, values = self.get_buffer(f"keys_{i}"), self.get_buffer(f"values_{i}")
            q, k, v = _heads(block, x)
            keys.index_copy_(2, position, k)
            values.index_copy_(2, position, v)
            x = _rest(block, x, F.scaled_dot_product_attention(q, keys, values, attn_mask=mask))
        return self.model.head(self.model.norm(x))  # type: ignore[no-any-return]
