"""Programs for ``torch.compile``: each gives, for a device, a function and its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint as checkpointed

Case = tuple[Callable[..., Any], tuple[Any, ...]]
PROGRAMS: dict[str, Callable[[str], Case]] = {}
BREAKING = {"item", "boolean_index", "adamw", "sgd", "device_context"}  # on the CPU, too


def _program(function: Callable[[str], Case]) -> Callable[[str], Case]:
    PROGRAMS[function.__name__] = function
    return function


def numbers(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size) + 1))


def _on(device: str, make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().to(device)


@_program
def pointwise(d: str) -> Case:
    return lambda x, y: (x * 2 + y).relu(), (numbers(4, 5).to(d), numbers(5).to(d))


@_program
def perceptron(d: str) -> Case:
    return _on(d, lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))), (
        numbers(3, 8).to(d),
    )


@_program
def convolutions(d: str) -> Case:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4),
        )  # fmt: skip

    return _on(d, make), (numbers(2, 3, 8, 8).to(d),)


@_program
def lstm(d: str) -> Case:
    model = _on(d, lambda: nn.LSTM(6, 5, 2, batch_first=True))
    return lambda x: model(x)[0], (numbers(2, 4, 6).to(d),)


@_program
def gru(d: str) -> Case:
    model = _on(d, lambda: nn.GRU(6, 5))
    return lambda x: model(x)[0], (numbers(2, 4, 6).to(d),)


@_program
def attention(d: str) -> Case:
    operands = tuple(numbers(2, 2, 6, 4).to(d).requires_grad_() for _ in range(3))
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), operands


@_program
def masked_attention(d: str) -> Case:
    mask = (torch.arange(6) < 4).to(d)
    operands = tuple(numbers(2, 2, 6, 4).to(d).requires_grad_() for _ in range(3))
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), operands


@_program
def encoder(d: str) -> Case:
    return _on(d, lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)), (
        numbers(2, 5, 8).to(d),
    )


@_program
def embedding(d: str) -> Case:
    return _on(d, lambda: nn.Embedding(10, 4)), (torch.arange(6).view(2, 3).to(d),)


@_program
def one_hot(d: str) -> Case:
    weights = numbers(5, 2).to(d)
    return lambda x: nn.functional.one_hot((x > 0).long(), 5).float() @ weights, (numbers(3, 4).to(d),)


@_program
def writes_input(d: str) -> Case:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    return f, (numbers(4).to(d),)


@_program
def aliased_inputs(d: str) -> Case:
    base = numbers(8).to(d)

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y

    return f, (base[:4], base[2:6])


@_program
def views(d: str) -> Case:
    return lambda x: (x.view(4, 2), x.t(), x[0]), (numbers(2, 4).to(d),)


@_program
def random_numbers(d: str) -> Case:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) + torch.rand(4, 5, device=x.device) + torch.randn_like(x)

    return f, (numbers(4, 5).to(d),)


@_program
def autocast_inside(d: str) -> Case:
    model = _on(d, lambda: nn.Linear(8, 8))

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return model(x).float()

    return f, (numbers(3, 8).to(d),)


@_program
def device_context(d: str) -> Case:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.device(d):
            return x + torch.arange(4) + torch.zeros(4)

    return f, (numbers(4).to(d),)


@_program
def synchronizes(d: str) -> Case:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if d == "maca":
            torch.maca.synchronize()
        return y * 2

    return f, (numbers(4).to(d),)


@_program
def streams(d: str) -> Case:
    side = torch.maca.Stream() if d == "maca" else None

    def f(x: torch.Tensor) -> torch.Tensor:
        if side is None:
            return (x + 1) * 2
        side.wait_stream(torch.maca.current_stream())
        with torch.maca.stream(side):
            y = x + 1
        torch.maca.current_stream().wait_stream(side)
        return y * 2

    return f, (numbers(4).to(d),)


@_program
def checkpoint(d: str) -> Case:
    model = _on(d, lambda: nn.Linear(4, 4))
    return lambda x: checkpointed(lambda t: model(t).relu(), x, use_reentrant=False), (numbers(3, 4).to(d),)


@_program
def batch_norm_statistics(d: str) -> Case:
    model = _on(d, lambda: nn.BatchNorm1d(4))

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        y = model(x)
        assert model.running_mean is not None and model.running_var is not None
        return [y, model.running_mean.clone(), model.running_var.clone()]

    return f, (numbers(5, 4).to(d).requires_grad_(),)


@_program
def cond_gradient(d: str) -> Case:
    f = lambda x: torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t * 2, (x,))  # noqa: E731
    return f, (numbers(4).to(d).requires_grad_(),)


@_program
def mapped_function(d: str) -> Case:
    from torch._higher_order_ops.map import map as mapped

    return lambda x: mapped(lambda row: row.sin() + 1, x), (numbers(3, 4).to(d),)


@_program
def scanned_function(d: str) -> Case:
    from torch._higher_order_ops.scan import scan

    def f(x: torch.Tensor) -> Any:
        return scan(lambda carry, row: (carry + row, carry * row), torch.zeros(4, device=x.device), x)

    return f, (numbers(3, 4).to(d),)


@_program
def cond(d: str) -> Case:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,))

    return f, (numbers(4).to(d),)


@_program
def while_loop(d: str) -> Case:
    from torch._higher_order_ops import while_loop as loop

    def f(x: torch.Tensor) -> Any:
        start = torch.zeros((), dtype=torch.int64, device=x.device)
        return loop(lambda i, t: i < 3, lambda i, t: (i + 1, t * 2), (start, x))

    return f, (numbers(4).to(d),)


@_program
def flexible_attention(d: str) -> Case:
    from torch.nn.attention.flex_attention import flex_attention

    return lambda q, k, v: flex_attention(q, k, v), tuple(numbers(1, 2, 8, 4).to(d) for _ in range(3))


@_program
def masked_flexible_attention(d: str) -> Case:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device=d)
    operands = tuple(numbers(1, 2, 16, 8).to(d).requires_grad_() for _ in range(3))
    return lambda q, k, v: flex_attention(q, k, v, block_mask=mask), operands


@_program
def hessian(d: str) -> Case:
    return lambda x: torch.func.hessian(lambda t: (t**3).sum())(x), (numbers(3).to(d),)


@_program
def custom_function(d: str) -> Case:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * ctx.saved_tensors[0].exp() * 2

    def f(x: torch.Tensor) -> torch.Tensor:
        y = Doubled.apply(x)
        y.register_hook(lambda gradient: gradient * 3)
        return y.sin()

    return f, (numbers(3).to(d).requires_grad_(),)


@_program
def new_parameter(d: str) -> Case:
    return lambda x: nn.Parameter(x) * 2, (numbers(3).to(d),)


@_program
def events_and_memory(d: str) -> Case:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if d == "maca":
            event = torch.maca.Event()
            event.record()
            torch.maca.empty_cache()
            event.synchronize()
        return y * 2

    return f, (numbers(4).to(d),)


@_program
def writes_views(d: str) -> Case:
    def f(x: torch.Tensor) -> Any:
        row = x[1:]
        row.mul_(2)
        x.t().add_(1)
        return row, x.view(-1)[2:], x.detach()

    return f, (numbers(4, 4).to(d),)


@_program
def functional_gradient(d: str) -> Case:
    return lambda x: torch.func.grad(lambda t: (t.sin() ** 2).sum())(x), (numbers(4).to(d),)


@_program
def vmapped(d: str) -> Case:
    return lambda x, y: torch.vmap(torch.dot)(x, y), (numbers(3, 4).to(d), numbers(3, 4).to(d))


@_program
def module_hook(d: str) -> Case:
    model = _on(d, lambda: nn.Linear(4, 4))
    model.register_forward_hook(lambda module, inputs, output: output * 2)
    return model, (numbers(3, 4).to(d),)


def _stepping(d: str, make: Callable[..., torch.optim.Optimizer], **options: Any) -> Case:
    model = _on(d, lambda: nn.Linear(4, 4))
    optimizer = make(model.parameters(), **options)
    x = numbers(3, 4).to(d)
    model(x).square().sum().backward()

    def step(x: torch.Tensor) -> list[torch.Tensor]:
        optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    return step, (x,)


@_program
def adamw(d: str) -> Case:
    return _stepping(d, torch.optim.AdamW, lr=1e-2)


@_program
def sgd(d: str) -> Case:
    return _stepping(d, torch.optim.SGD, lr=1e-2, momentum=0.9)


@_program
def cross_entropy(d: str) -> Case:
    return F.cross_entropy, (numbers(4, 5).to(d).requires_grad_(), torch.tensor([1, 2, 0, 4]).to(d))


@_program
def indices(d: str) -> Case:
    return lambda x, i: x[i] + x.gather(0, i.expand(3, 3)).sum() + x[[0, 1]].sum(), (
        numbers(4, 3).to(d),
        torch.tensor([1, 2, 0]).to(d),
    )


@_program
def item(d: str) -> Case:
    return lambda x: x * float(x.sum().detach().cpu()), (numbers(4).to(d),)


@_program
def boolean_index(d: str) -> Case:
    return lambda x: x[x > 0], (numbers(8).to(d),)


@_program
def two_devices(d: str) -> Case:
    return lambda x, y: x.cpu() + y, (numbers(4).to(d), numbers(4))


@_program
def moves(d: str) -> Case:
    return lambda y: (y.to(d) * 2).cpu(), (numbers(4),)


@_program
def constants(d: str) -> Case:
    return lambda x: x * torch.tensor([1.0, 2.0], device=x.device) + torch.masked.cumsum(x, 0), (
        numbers(2).to(d),
    )


@_program
def lazy_conjugates(d: str) -> Case:
    def f(x: torch.Tensor) -> Any:
        return torch.fft.ifft(x, n=10, dim=1, norm="ortho"), torch.view_as_complex(x).conj() * 2

    return f, (numbers(3, 4, 2).to(d),)


@_program
def half_precision(d: str) -> Case:
    return lambda x: ((x.bfloat16() * 1.1 + 0.3).sigmoid() * 3).float().relu(), (numbers(5, 7).to(d),)
