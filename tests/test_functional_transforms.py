"""``torch.func``, ``torch.utils.checkpoint`` and ``torch.masked`` on maca, against the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from running import close
from torch import func, masked, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

X = torch.tensor([0.5, -1.0, 2.0])
M = torch.arange(6.0).reshape(2, 3) / 5

TRANSFORMS: dict[str, Any] = {
    "grad": lambda x: func.grad(lambda t: (t**3).sum())(x),
    "grad_and_value": lambda x: func.grad_and_value(lambda t: (t**3).sum())(x)[0],
    "vmap": lambda x: func.vmap(lambda t: t.sin() * t)(x),
    "vmap of grad": lambda x: func.vmap(func.grad(lambda t: t.sin() * t))(x),
    "vmap, chunked": lambda x: func.vmap(lambda t: t.exp(), chunk_size=2)(x),
    "jacrev": lambda x: func.jacrev(lambda t: t.sin() * t.sum())(x),
    "jacfwd": lambda x: func.jacfwd(lambda t: t.sin() * t.sum())(x),
    "hessian": lambda x: func.hessian(lambda t: (t**3).sum())(x),
    "jvp": lambda x: func.jvp(lambda t: t.sin() * t, (x,), (x + 1,))[1],
    "vjp": lambda x: func.vjp(lambda t: t.sin() * t, x)[1](x + 1)[0],
    "vmap of linearize": lambda x: func.vmap(func.linearize(torch.cos, x)[1])(torch.stack([x, x + 1])),
    "linearize": lambda x: func.linearize(lambda t: t.sin() * t, x)[1](x + 1),
    "functionalize": lambda x: func.functionalize(lambda t: t.clone().add_(1).mul_(t))(x),
}


@pytest.mark.supports("torch.func")
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(name: str) -> None:
    close(TRANSFORMS[name](X.maca()), TRANSFORMS[name](X), rtol=1e-5, atol=1e-6)


@pytest.mark.supports("torch.func")
def test_batched_gradients_of_inputs_without_a_share() -> None:
    x, y = (torch.ones(n, device="maca", dtype=torch.float64, requires_grad=True) for n in (3, 2))
    assert torch.autograd.gradcheck(lambda x, y: x * x, (x, y), check_batched_grad=True)


def test_an_ensemble_of_models() -> None:
    """The tutorial of model ensembling: stacked parameters, vmap over them, gradients of each."""
    models = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(3)]
    host_states = func.stack_module_state(models)
    with torch.no_grad():
        expected = [m(M) for m in models]
    states = func.stack_module_state([m.to("maca") for m in models])

    def call(state: Any, x: torch.Tensor) -> torch.Tensor:
        return func.functional_call(models[0], state, (x,))

    outputs = func.vmap(call, in_dims=(0, None))(states, M.maca())
    close(outputs, torch.stack(expected), rtol=1e-5, atol=1e-6)
    grads = func.vmap(func.grad(lambda p, x: call((p, {}), x).square().sum()), in_dims=(0, None))(
        states[0], M.maca()
    )
    assert (
        grads["0.weight"].shape == host_states[0]["0.weight"].shape
        and grads["0.weight"].device.type == "maca"
    )


@pytest.mark.supports("torch.func")
def test_randomness_under_vmap() -> None:
    x = torch.zeros(4, 500, device="maca")
    noisy = lambda t: t + torch.rand(500, device="maca")  # noqa: E731
    different = func.vmap(noisy, randomness="different")(x)
    same = func.vmap(noisy, randomness="same")(x)
    assert not torch.equal(different[0], different[1]) and torch.equal(same[0], same[1])
    with pytest.raises(RuntimeError, match="randomness"):
        func.vmap(noisy)(x)


def _blocks() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Dropout(0.4)) for _ in range(4)])


@pytest.mark.supports("torch.utils.checkpoint")
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("preserve", [True, False])
def test_checkpoint(reentrant: bool, preserve: bool) -> None:
    """Gradients are those without checkpoints; with preserve_rng_state dropout forgets the same elements again."""
    model, x = _blocks().to("maca"), torch.rand(8, 6, device="maca", requires_grad=True)
    if not preserve:
        model.eval()

    def gradients(run: Any) -> list[torch.Tensor]:
        model.zero_grad()
        x.grad = None
        torch.maca.manual_seed(3)
        run().square().sum().backward()
        return [x.grad.clone(), *(p.grad.clone() for p in model.parameters())]

    plain = gradients(lambda: model(x))
    options = {"use_reentrant": reentrant, "preserve_rng_state": preserve}
    for run in (
        lambda: checkpoint(model, x, **options),
        lambda: checkpoint_sequential(model, 2, x, **options),
        lambda: checkpoint(lambda t: checkpoint(model, t, **options) * 1, x, **options),
    ):
        for got, expected in zip(gradients(run), plain):
            torch.testing.assert_close(got, expected)


@pytest.mark.supports("torch.utils.checkpoint")
def test_checkpoint_saves_memory() -> None:
    wide = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(8)]).to("maca")
    x = torch.rand(512, 256, device="maca", requires_grad=True)

    def peak(run: Any) -> int:
        wide.zero_grad()
        torch.maca.reset_peak_memory_stats()
        before = torch.maca.memory_allocated()
        run().sum().backward()
        return torch.maca.max_memory_allocated() - before

    for _ in range(2):  # gradients of the parameters, and their packed forms, are there from now on
        peak(lambda: wide(x))
        peak(lambda: checkpoint_sequential(wide, 4, x, use_reentrant=False))
    assert peak(lambda: checkpoint_sequential(wide, 4, x, use_reentrant=False)) < 0.7 * peak(lambda: wide(x))


REDUCTIONS = {
    "sum": {}, "mean": {}, "prod": {}, "amax": {}, "amin": {}, "argmax": {}, "argmin": {}, "var": {}, "std": {},
    "median": {}, "logsumexp": {}, "cumsum": {}, "cumprod": {}, "softmax": {}, "log_softmax": {}, "softmin": {},
    "norm": {"ord": 2.0}, "normalize": {"ord": 2.0},
}  # fmt: skip


@pytest.mark.supports("torch.masked")
@pytest.mark.parametrize("name", REDUCTIONS)
def test_masked_reduction(name: str) -> None:
    x = torch.tensor([[1.0, 2.0, float("nan")], [4.0, 0.5, 3.0]])
    mask = torch.tensor([[True, True, False], [False, True, True]])
    function, options = getattr(masked, name), REDUCTIONS[name]
    ours = function(x.maca(), *options.values(), dim=1, mask=mask.maca())
    close(ours, function(x, *options.values(), dim=1, mask=mask), rtol=1e-6, atol=1e-6)


@pytest.mark.supports("torch.masked")
def test_masked_tensors() -> None:
    """The tutorial's distinct treatment of NaN gradients: log(x) * 0 where the mask hides x <= 0."""
    x, mask = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([False, False, True])
    ours = masked.masked_tensor(x.maca(), mask.maca(), requires_grad=True)
    host = masked.masked_tensor(x, mask, requires_grad=True)
    for t in (ours, host):
        (t.exp() * t + t).sum().backward()
    close(ours.grad.get_data(), host.grad.get_data())
    assert ours.sum().item() == 2.0 and ours.to_tensor(7.0).tolist() == [7.0, 7.0, 2.0]
    assert (ours + ours).get_mask().tolist() == mask.tolist() and "--" in repr(ours)
