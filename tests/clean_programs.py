"""Programs without a fault, on tensors of every layout: a training step or two each, on any device."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

Program = Callable[[str], object]
PROGRAMS: dict[str, Program] = {}


def _program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def _train(
    model: nn.Module,
    *inputs: torch.Tensor,
    device: str,
    half: torch.dtype | None = None,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
) -> None:
    """Two steps on a loss that every result counts in."""
    model.to(device)
    inputs = tuple(t.to(device) for t in inputs)
    optimizer = make(model.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast(device, half or torch.bfloat16, enabled=half is not None):
            result = model(*inputs)
        result = result[0] if isinstance(result, tuple) else result
        (
            result.float() * torch.linspace(-1, 1, result.numel(), device=device).view_as(result)
        ).sum().backward()
        optimizer.step()


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip


@_program
def cnn(device: str) -> None:
    _train(_convolutional(), torch.randn(4, 3, 12, 12), device=device)


@_program
def cnn_bfloat16(device: str) -> None:
    _train(_convolutional(), torch.randn(4, 3, 12, 12), device=device, half=torch.bfloat16)


@_program
def cnn_float16(device: str) -> None:
    _train(_convolutional(), torch.randn(4, 3, 12, 12), device=device, half=torch.float16)


@_program
def mobile_net(device: str) -> None:
    block = nn.Sequential(
        nn.Conv2d(3, 12, 1), nn.BatchNorm2d(12), nn.Hardswish(), nn.Conv2d(12, 12, 3, 2, 1, groups=12),
        nn.BatchNorm2d(12), nn.ReLU6(), nn.Conv2d(12, 6, 1),
    )  # fmt: skip
    _train(block, torch.randn(2, 3, 10, 10), device=device, make=torch.optim.RMSprop)


@_program
def gpt(device: str) -> None:
    layer = nn.TransformerEncoderLayer(
        16, 4, 32, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
    )
    _train(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(2, 9, 16), device=device,
           make=torch.optim.AdamW)  # fmt: skip


@_program
def lstm(device: str) -> None:
    _train(nn.LSTM(5, 8, 2, bidirectional=True), torch.randn(6, 3, 5), device=device)


@_program
def gru(device: str) -> None:
    _train(nn.GRU(5, 8, 2), torch.randn(6, 3, 5), device=device, make=torch.optim.Adam)


@_program
def tanh_net(device: str) -> None:
    _train(nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3)),
           3 * torch.randn(20, 6), device=device)  # fmt: skip


@_program
def sigmoid_and_silu(device: str) -> None:
    _train(nn.Sequential(nn.Linear(6, 32), nn.Sigmoid(), nn.Linear(32, 32), nn.SiLU(), nn.Mish(), nn.Linear(32, 3)),
           5 * torch.randn(20, 6), device=device)  # fmt: skip


@_program
def gan(device: str) -> None:
    g = nn.Sequential(
        nn.ConvTranspose2d(4, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2), nn.Tanh()
    )
    d = nn.Sequential(nn.Conv2d(1, 8, 4, 2), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(128, 1))
    g.to(device), d.to(device)
    noise = torch.randn(4, 4, 1, 1).to(device)
    F.binary_cross_entropy_with_logits(d(g(noise)), torch.ones(4, 1, device=device)).backward()
    torch.optim.Adam(g.parameters(), betas=(0.5, 0.999)).step()


@_program
def unet(device: str) -> None:
    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.low = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
            self.up, self.norm = nn.Conv2d(16, 3, 3, padding=1), nn.GroupNorm(2, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            high = F.silu(self.norm(self.down(x)))
            low = F.interpolate(self.low(F.avg_pool2d(high, 2)), scale_factor=2, mode="bilinear")
            return self.up(torch.cat([high, low], 1))

    _train(UNet(), torch.randn(2, 3, 8, 8), device=device)


@_program
def mixture_of_experts(device: str) -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(8, 4)
            self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight, chosen = self.gate(x).softmax(-1).topk(2)
            out = torch.zeros_like(x)
            for i, expert in enumerate(self.experts):
                rows, slot = torch.where(chosen == i)
                out = out.index_add(0, rows, expert(x[rows]) * weight[rows, slot, None])
            return out

    _train(Experts(), torch.randn(20, 8), device=device)


@_program
def checkpointed(device: str) -> None:
    from torch.utils.checkpoint import checkpoint

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.Linear(8, 8), nn.ELU(), nn.LayerNorm(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.part, checkpoint(self.part, x, use_reentrant=False), use_reentrant=False)

    _train(Twice(), torch.randn(5, 8), device=device)


@_program
def per_sample_gradients(device: str) -> object:
    w = torch.randn(6, 3).to(device)
    x, y = torch.randn(5, 6).to(device), torch.randn(5, 3).to(device)
    loss = lambda w, x, y: F.mse_loss(x @ w, y)  # noqa: E731
    return torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(w, x, y)


@_program
def gradient_penalty(device: str) -> None:
    net = nn.Sequential(nn.Linear(4, 16), nn.Softplus(), nn.Linear(16, 1)).to(device)
    x = torch.randn(6, 4).to(device).requires_grad_()
    (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    (slope.norm(dim=1) - 1).square().mean().backward()


@_program
def embedding_bag(device: str) -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.bag = nn.Embedding(12, 6), nn.EmbeddingBag(12, 6, mode="mean")

        def forward(self, i: torch.Tensor) -> torch.Tensor:
            return self.table(i).mean(1) + self.bag(i)

    _train(Bag(), torch.randint(0, 12, (5, 7)), device=device)


@_program
def attention(device: str) -> None:
    q, k, v = (torch.randn(2, 2, 17, 8).to(device).requires_grad_() for _ in range(3))
    F.scaled_dot_product_attention(q, k, v, is_causal=True).square().sum().backward()


@_program
def losses(device: str) -> None:
    x = torch.randn(6, 5).to(device).requires_grad_()
    y = torch.randint(0, 5, (6,)).to(device)
    loss = F.cross_entropy(x, y, label_smoothing=0.1) + F.huber_loss(x, x.detach().roll(1)) + F.kl_div(
        x.log_softmax(1), x.detach().softmax(1), reduction="batchmean"
    )  # fmt: skip
    (loss + F.binary_cross_entropy_with_logits(x, torch.rand(6, 5).to(device))).backward()


@_program
def spectrum(device: str) -> None:
    x = torch.randn(3, 64).to(device).requires_grad_()
    torch.fft.irfft(torch.fft.rfft(x) * torch.linspace(1, 0, 33).to(device), 64).square().mean().backward()


@_program
def least_squares(device: str) -> None:
    a = (torch.randn(6, 6) + 6 * torch.eye(6)).to(device).requires_grad_()
    (torch.linalg.solve(a, torch.randn(6, 2).to(device)).sum() + torch.logdet(a @ a.mT)).backward()


@_program
def sparse_products(device: str) -> None:
    rows = torch.rand(4, 3).to(device).requires_grad_()
    matrix = torch.eye(4).to_sparse().to(device).requires_grad_()
    ((matrix * 2 + matrix).to_dense().sum() + torch.sparse.mm(matrix, rows).relu().sum()).backward()


@_program
def compressed_products(device: str) -> None:
    rows = torch.rand(4, 3).to(device).requires_grad_()
    matrix = torch.rand(4, 4).to_sparse_csr().to(device)
    ((matrix @ rows) * 2).sum().backward()
    matrix.sin().to_dense()


@_program
def sparse_gradients(device: str) -> None:
    table = nn.Embedding(10, 4, sparse=True).to(device)
    optimizer = torch.optim.SparseAdam(table.parameters())
    table(torch.tensor([1, 2, 1]).to(device)).square().sum().backward()
    optimizer.step()


# with the first in a process PyTorch makes one of its own, which the first of two runs would record alone
torch.nested.nested_tensor([torch.ones(1, 1)], layout=torch.jagged)


def _ragged(device: str, *inner: int) -> torch.Tensor:
    return torch.nested.nested_tensor(
        [torch.rand(n, *inner) for n in (2, 3)], layout=torch.jagged, device=device
    )


@_program
def ragged_batches(device: str) -> None:
    x = _ragged(device, 4).requires_grad_()
    y = F.gelu(nn.Linear(4, 4).to(device)(x))
    (y * y).to_padded_tensor(0.0).sum().backward()


@_program
def ragged_attention(device: str) -> None:
    q = _ragged(device, 4, 8).transpose(1, 2)
    F.scaled_dot_product_attention(q, q, q).transpose(1, 2).values().sum()


@_program
def rare_dtypes(device: str) -> None:
    z = torch.ones(4, dtype=torch.complex32).to(device)
    (z * 2 + z).to(torch.complex64).abs().sum()
    z.clone().add_(z)
    torch.arange(4).to(device).to(torch.uint16).to(torch.uint32).sum()
    x, one = torch.rand(16, 16).to(torch.float8_e4m3fn).to(device), torch.ones(()).to(device)
    torch._scaled_mm(x, x.t(), one, one, out_dtype=torch.float32).sum()
