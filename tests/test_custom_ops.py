"""A user's own operators: with a kernel for maca, without one, with autograd."""

from __future__ import annotations

import warnings

import pytest
import torch
from running import close

import macatensor
from macatensor import MacaTensor, maca


@torch.library.custom_op("macatest::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x.clone() * factor


@scaled.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


calls = []


@scaled.register_kernel("maca")
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    calls.append(type(x))
    return x * factor


scaled.register_autograd(
    lambda ctx, grad: (grad * ctx.factor, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


@torch.library.custom_op("macatest::host_only", mutates_args=(), device_types="cpu")
def host_only(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * 2)


@torch.library.custom_op("macatest::increase", mutates_args=("x",), device_types="cpu")
def increase(x: torch.Tensor, by: float) -> None:
    x.numpy()[...] += by


@torch.library.custom_op("macatest::anywhere", mutates_args=())
def anywhere(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).relu()


def test_with_a_kernel_of_its_own() -> None:
    calls.clear()
    x = maca(torch.ones(3)).requires_grad_()
    with macatensor.fallback("error"):
        y = scaled(x, 3.0)
    assert isinstance(y, MacaTensor) and y.tolist() == [3.0] * 3 and calls == [MacaTensor]
    y.sum().backward()
    assert x.grad.tolist() == [3.0] * 3
    with torch.inference_mode():
        assert scaled(x, 2.0).tolist() == [2.0] * 3
    assert scaled(torch.ones(2), 2.0).tolist() == [2.0, 2.0]


def test_without_one_it_runs_on_the_host() -> None:
    x = maca(torch.ones(3))
    with warnings.catch_warnings(record=True) as said, macatensor.fallback("warn"):
        warnings.simplefilter("always")
        y = host_only(x)
    assert isinstance(y, MacaTensor) and y.tolist() == [2.0] * 3
    assert any("macatest" in str(w.message) for w in said)
    with macatensor.fallback("silent"):
        increase(x, 4.0)
    assert x.tolist() == [5.0] * 3
    with macatensor.fallback("error"), pytest.raises(NotImplementedError, match="macatest"):
        host_only(x)


def test_written_in_terms_of_other_operators() -> None:
    y = anywhere(maca([-3.0, 1.0]))
    assert isinstance(y, MacaTensor) and y.tolist() == [0.0, 2.0]


def test_the_low_level_way() -> None:
    library = torch.library.Library("macalow", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.define("composed(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "PrivateUse1")
    library.impl("composed", lambda x: x + x + 1, "CompositeImplicitAutograd")
    assert torch.ops.macalow.twice(maca([2.0])).tolist() == [4.0]
    x = maca([2.0]).requires_grad_()
    torch.ops.macalow.composed(x).backward()
    assert x.grad.tolist() == [2.0]


def test_autograd_function() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            assert isinstance(x, MacaTensor) and isinstance(grad, MacaTensor)
            return 3 * x**2 * grad

    x = maca([2.0, 3.0]).requires_grad_()
    (g,) = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
    assert g.tolist() == [12.0, 27.0]
    g.sum().backward()
    assert x.grad.tolist() == [12.0, 18.0]


def test_higher_order_autograd() -> None:
    host = torch.tensor([0.5, 1.5], dtype=torch.float64)

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x.exp()).sum()

    x = maca(host).requires_grad_()
    (g,) = torch.autograd.grad(f(x), x, create_graph=True)
    (h,) = torch.autograd.grad(g.square().sum(), x)
    y = host.clone().requires_grad_()
    (gh,) = torch.autograd.grad(f(y), y, create_graph=True)
    (hh,) = torch.autograd.grad(gh.square().sum(), y)
    close(g, gh)
    close(h, hh)
    assert torch.autograd.gradcheck(f, (x,)) and torch.autograd.gradgradcheck(f, (x,))


def test_functional_transforms() -> None:
    host = torch.rand(4, 3)
    x = maca(host)

    def f(v: torch.Tensor) -> torch.Tensor:
        return (v * v).sum()

    close(torch.func.grad(f)(x[0]), torch.func.grad(f)(host[0]))
    close(torch.func.vmap(f)(x), torch.func.vmap(f)(host))
    close(torch.func.vmap(torch.func.grad(f))(x), torch.func.vmap(torch.func.grad(f))(host))
    close(torch.func.jacrev(lambda v: v.exp())(x[0]), torch.func.jacrev(lambda v: v.exp())(host[0]))
    close(torch.func.jvp(f, (x[0],), (x[1],))[1], torch.func.jvp(f, (host[0],), (host[1],))[1])
    layer = maca(torch.nn.Linear(3, 2))
    parameters = dict(layer.named_parameters())
    close(torch.func.functional_call(layer, parameters, (x,)), layer(x).detach().cpu())


def test_in_place_through_views_under_autograd() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[1:].mul_(3)
        y.t()[0] += 1
        y.view(-1)[::2].neg_()
        return (y * y).sum()

    host = torch.rand(3, 4, requires_grad=True)
    x = maca(host.detach()).requires_grad_()
    f(x).backward()
    f(host).backward()
    close(x.grad, host.grad)


def test_hooks_and_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    x = maca([1.0, 2.0]).requires_grad_()
    seen = []
    x.register_hook(lambda g: seen.append(g) or g * 2)
    y = x * 3
    y.retain_grad()
    y.sum().backward()
    assert x.grad.tolist() == [6.0, 6.0] and y.grad.tolist() == [1.0, 1.0] and isinstance(seen[0], MacaTensor)
    for reentrant in (True, False):
        x.grad = None
        checkpoint(lambda v: (v.exp() * v).sum(), x, use_reentrant=reentrant).backward()
        host = torch.tensor([1.0, 2.0], requires_grad=True)
        (host.exp() * host).sum().backward()
        close(x.grad, host.grad * 2)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: maca(t)):
        z = (x * x).sum()
    x.grad = None
    z.backward()
    assert x.grad.tolist() == [4.0, 8.0]


def test_autocast_does_not_break() -> None:
    layer, x = maca(torch.nn.Linear(3, 2)), maca(torch.rand(4, 3))
    with torch.autocast("maca", dtype=torch.bfloat16):
        y = layer(x)
    assert y.shape == (4, 2) and torch.isfinite(y).all().item()


def test_kernels_of_the_host_see_lazy_conjugates() -> None:
    """PyTorch calls the handler of a type of tensors with both keys off."""
    with torch.library._scoped_library("macatest", "FRAGMENT") as library:
        library.define("power(Tensor x) -> Tensor")
        library.impl("power", lambda x: x.conj() * torch._neg_view(x), "CPU")
        x = torch.tensor([1j, 2 + 1j])
        with macatensor.fallback("silent"):
            assert torch.ops.macatest.power(x.to("maca")).tolist() == [-1, -5]
