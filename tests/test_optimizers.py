"""Every optimizer of PyTorch's database, in each of its implementations, against the host after three steps."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from running import close
from torch import nn
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

# "cuda" asks the database for what CUDA is tested with, capturable ones included.
_LIKE = "cuda"

NOT_TESTED = {"SparseAdam": "takes sparse gradients only, which tests/test_sparse.py has"}


def _configurations() -> Iterator[Any]:
    for info in optim_db:
        if info.optim_cls.__name__ in NOT_TESTED:
            continue
        implementations = ["forloop"]
        implementations += [i for i in ("foreach", "fused") if i in info.supported_impls]
        if "fused" in implementations and _LIKE not in info.supports_fused_on:
            implementations.remove("fused")
        for i, given in enumerate(info.optim_inputs_func(device=_LIKE)):
            for implementation in implementations:
                name = (
                    f"{info.optim_cls.__name__}-{i}-{(given.desc or '').replace(' ', '_')}-{implementation}"
                )
                yield pytest.param(info, given.kwargs, implementation, id=name)


def _plain(kwargs: dict[str, Any]) -> dict[str, Any]:
    """For the host, which has no capturable implementation and wants numbers where that takes tensors."""

    def number(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.item()
        return tuple(map(number, value)) if isinstance(value, tuple) else value

    return {k: number(v) for k, v in kwargs.items() if k not in ("capturable", "fused", "foreach")}


def _parameters(info: OptimizerInfo) -> list[nn.Parameter]:
    torch.manual_seed(0)
    sizes: list[tuple[int, ...]] = [(4, 3), (5, 4)]
    if info.optim_cls.__name__ != "Muon":  # which takes matrices only
        sizes += [(3,), (), (2, 3, 3, 3)]
    return [nn.Parameter(torch.randn(size)) for size in sizes]


def _stepped(info: OptimizerInfo, parameters: list[Any], kwargs: dict[str, Any]) -> Any:
    optimizer = info.optim_cls(parameters, **kwargs)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        for p in parameters:
            p.grad = torch.randn(p.shape, generator=generator).to(p.device)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = sum(((p - 0.5) ** 2).sum() for p in parameters)
            if kwargs.get("maximize"):  # else what is maximized has no end, and steps amplify each rounding
                loss = -loss
            loss.backward()
            return loss.detach()

        optimizer.step(closure) if info.step_requires_closure else optimizer.step()
    return optimizer


@pytest.mark.supports(
    "torch.optim: ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD"
)
@pytest.mark.parametrize("info, kwargs, implementation", _configurations())
def test_three_steps(info: OptimizerInfo, kwargs: dict[str, Any], implementation: str) -> None:
    kwargs = deepcopy(kwargs)
    has_tensors = any(isinstance(v, (torch.Tensor, tuple)) and not _is_numbers(v) for v in kwargs.values())
    if implementation == "foreach" and has_tensors and not kwargs.get("capturable"):
        pytest.xfail("PyTorch takes tensors here for capturable=True only")
    host = _parameters(info)
    ours = [nn.Parameter(p.detach().to("maca")) for p in host]
    flags = {i: i == implementation for i in ("foreach", "fused") if i in info.supported_impls}
    optimizer = _stepped(info, ours, {**kwargs, **flags})
    expected = _stepped(info, host, _plain(kwargs))
    for a, b in zip(ours, host):
        close(a, b, rtol=2e-5, atol=2e-5)
    _same_state(optimizer.state_dict()["state"], expected.state_dict()["state"])


def _is_numbers(value: Any) -> bool:
    return isinstance(value, tuple) and not any(isinstance(v, torch.Tensor) for v in value)


def _same_state(ours: Any, host: Any) -> None:
    assert ours.keys() == host.keys()
    for name, expected in host.items():
        got = ours[name]
        if isinstance(expected, dict):
            _same_state(got, expected)
        elif isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
            torch.testing.assert_close(got.cpu(), expected, rtol=2e-4, atol=2e-4, check_dtype=False)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_fused_steps_unscale_and_skip(kind: Any) -> None:
    """``grad_scale`` divides the gradients, ``found_inf`` makes the step change nothing."""
    values, grads = torch.randn(4, 3), torch.randn(4, 3)

    def stepped(device: str, scale: float | None, found: float) -> torch.Tensor:
        p = nn.Parameter(values.clone().to(device))
        optimizer = kind([p], lr=0.1, fused=True)
        p.grad = grads.to(device) * (scale or 1.0)
        if scale is not None:
            optimizer.grad_scale = torch.tensor(scale, device=device)
            optimizer.found_inf = torch.tensor(found, device=device)
        optimizer.step()
        return p.detach().cpu()

    plain = stepped("cpu", None, 0.0)
    torch.testing.assert_close(stepped("maca", None, 0.0), plain)
    torch.testing.assert_close(stepped("maca", 1024.0, 0.0), plain)
    assert stepped("maca", 1024.0, 1.0).equal(values)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_rate_may_be_one_host_element(kind: Any) -> None:
    """As CUDA reads it, whatever its dimensions."""
    after = []
    for rate in (0.125, torch.tensor(0.125), torch.tensor([0.125]), torch.tensor([[0.125]])):
        parameter = torch.nn.Parameter(torch.linspace(-1, 1, 5).to("maca"))
        optimizer = kind([parameter], lr=rate, fused=True)
        for _ in range(2):
            (parameter**2).sum().backward()
            optimizer.step()
        after.append(parameter.detach().cpu())
    assert all(torch.equal(after[0], other) for other in after)


@pytest.mark.parametrize("name", ["Adam", "SGD", "AdamW", "RMSprop"])
def test_foreach_is_the_default(name: str) -> None:
    """As on CUDA: a step is a few launches, however many parameters there are."""
    import macatensor

    def launches(count: int) -> int:
        parameters = [nn.Parameter(torch.ones(3, device="maca")) for _ in range(count)]
        optimizer = getattr(torch.optim, name)(parameters, lr=0.1)
        for p in parameters:
            p.grad = torch.ones_like(p)
        optimizer.step()
        macatensor.reset_counters()
        optimizer.step()
        return int(macatensor.counters()["launches"])

    assert launches(20) <= launches(2) + 4


def test_state_moves_between_devices() -> None:
    """A state_dict of the device continues on the host, and the other way."""
    model = nn.Linear(3, 2)
    x = torch.randn(4, 3)

    def step(m: nn.Module, o: Any, device: str) -> None:
        o.zero_grad()
        m(x.to(device)).square().sum().backward()
        o.step()

    reference, ours = deepcopy(model), deepcopy(model).to("maca")
    reference_optimizer = torch.optim.Adam(reference.parameters(), lr=0.1)
    optimizer = torch.optim.Adam(ours.parameters(), lr=0.1)
    step(reference, reference_optimizer, "cpu")
    step(ours, optimizer, "maca")
    back = nn.Linear(3, 2)
    back.load_state_dict(ours.state_dict())
    host_optimizer = torch.optim.Adam(back.parameters(), lr=0.1)
    host_optimizer.load_state_dict(optimizer.state_dict())
    assert host_optimizer.state[back.weight]["exp_avg"].device.type == "cpu"
    step(reference, reference_optimizer, "cpu")
    step(back, host_optimizer, "cpu")
    torch.testing.assert_close(back.weight, reference.weight)
