"""inference_mode runs the same kernels as grad mode; generation with a KV cache equals the host's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from running import close
from torch import nn

import macatensor
from macatensor import MacaTensor, maca


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(8 * 4 * 4, 10), nn.LayerNorm(10), nn.Softmax(-1),
    )  # fmt: skip


def test_the_same_kernels_and_the_same_numbers() -> None:
    model, x = maca(network()).eval(), maca(torch.rand(2, 3, 8, 8))
    launches, results = [], []
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            model(x)
            macatensor.reset_counters()
            with macatensor.fallback("error"):
                results.append(model(x))
        counters = macatensor.counters()
        launches.append(counters["launches"])
        assert counters["fallbacks"] == 0 and counters["plan_misses"] == 0
    assert launches[0] == launches[1] == launches[2], launches
    assert torch.equal(results[0].detach().cpu(), results[2].cpu())
    assert results[2].is_inference() and not results[1].is_inference()


def test_views_of_normal_tensors() -> None:
    x = maca(torch.arange(12.0).reshape(3, 4))
    before = x._version
    with torch.inference_mode():
        for view in (x[1], x.t(), x[:, 1:3], x.view(12), x.reshape(4, 3), x.unsqueeze(0), x.expand(2, 3, 4), x.chunk(2, 1)[0],
                     x.unbind(0)[1], x.split(1)[0], x.as_strided((2,), (1,), 3), x.diagonal(), x.detach(), x.unfold(0, 2, 1)):  # fmt: skip
            assert isinstance(view, MacaTensor) and view.sum().item() >= 0
            (view + 1).sum()
        x[0].mul_(2)
    assert x._version >= before
    assert x[0].tolist() == [0, 2, 4, 6]
    y = x.clone().requires_grad_()
    (y[1] * 2).sum().backward()
    assert y.grad.sum().item() == 8


def test_inference_tensors() -> None:
    with torch.inference_mode():
        x = maca(torch.ones(2, 3)) * 2
        assert x.is_inference()
        x.add_(1)
        x[0].zero_()
        x.t_()
        assert x.shape == (3, 2)
    assert (x + 1).sum().item() == 9 + 6
    try:
        x.add_(1)
    except RuntimeError as error:
        assert "inference" in str(error).lower()
    w = torch.ones(2, device="maca", requires_grad=True)
    with torch.inference_mode():
        assert not (w * 2).requires_grad
        layer = nn.Linear(2, 2, device="maca")
    assert layer.weight.shape == (2, 2)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor] | None) -> torch.Tensor:
        n, length, width = x.shape
        q, k, v = (t.view(n, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(width, 2))
        causal = length > 1
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(y.transpose(1, 2).reshape(n, length, width))


class GPT(nn.Module):
    def __init__(
        self, symbols: int = 17, width: int = 32, heads: int = 4, layers: int = 2, length: int = 40
    ) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(symbols, width), nn.Embedding(length, width)
        self.attention = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.last = nn.LayerNorm(width)

    def forward(
        self, tokens: torch.Tensor, caches: list[list[torch.Tensor]] | None = None, start: int = 0
    ) -> torch.Tensor:
        where = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(where)
        for i, (attention, mlp, norm) in enumerate(zip(self.attention, self.mlp, self.norms)):
            x = x + attention(norm(x), caches[i] if caches is not None else None)
            x = x + mlp(x)
        return self.last(x) @ self.token.weight.t()


def generate(model: GPT, prompt: torch.Tensor, count: int) -> tuple[list[int], torch.Tensor]:
    caches: list[list[torch.Tensor]] = [[] for _ in model.attention]
    tokens, logits, start = prompt, None, 0
    said: list[int] = []
    with torch.inference_mode():
        for _ in range(count):
            logits = model(tokens, caches, start)[:, -1]
            start += tokens.shape[1]
            tokens = logits.argmax(-1, keepdim=True)
            said.append(int(tokens.item()))
    assert logits is not None
    return said, logits


def test_generation_with_a_growing_cache() -> None:
    torch.manual_seed(0)
    host, ours = GPT().eval(), GPT().eval()
    ours.load_state_dict(host.state_dict())
    maca(ours)
    prompt = torch.tensor([[1, 5, 2, 9]])
    with macatensor.fallback("error"):
        tokens, logits = generate(ours, maca(prompt), 30)
    expected, host_logits = generate(host, prompt, 30)
    assert tokens == expected
    close(logits, host_logits, rtol=1e-3, atol=1e-4)
    with torch.inference_mode(), macatensor.fallback("error"):  # the whole sequence at once says the same
        whole = ours(maca(torch.tensor([[1, 5, 2, 9, *tokens[:-1]]])))[:, -1]
    close(whole, host_logits, rtol=1e-3, atol=1e-4)
