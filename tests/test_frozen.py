"""What a compiled inference computes from weights alone: once, until one changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import macatensor


def convolutions(transposed: bool = False) -> nn.Sequential:
    """With statistics of a training, a bias in one place and an affine normalization in one."""
    torch.manual_seed(0)
    second = nn.ConvTranspose2d(8, 6, 3) if transposed else nn.Conv2d(8, 6, 3, groups=2)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), second, nn.BatchNorm2d(6, affine=False),
    )  # fmt: skip
    model(torch.randn(16, 3, 12, 12) * 2 + 1)
    return model.eval()


def compiled(model: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    function: Callable[..., Any] = torch.compile(model, backend="maca", fullgraph=True)
    return function


def launched(call: Callable[[], object]) -> list[str]:
    with macatensor.fallback("error"):
        before = macatensor.counters()["launches"]
        call()
    return ["launch"] * (macatensor.counters()["launches"] - before)


@pytest.mark.parametrize("transposed", [False, True])
def test_normalizations_become_part_of_convolutions(transposed: bool) -> None:
    host = convolutions(transposed)
    model = convolutions(transposed).to("maca")
    function, x = compiled(model), torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(function(x.maca()).cpu(), host(x), rtol=1e-4, atol=1e-5)
        given = x.maca()
        fewer = len(launched(lambda: function(given)))
        assert fewer == (4 if transposed else 3)  # convolution, relu, convolution (and normalization)


def test_changed_weights_are_seen() -> None:
    """Written in place, loaded, replaced: weights, biases and statistics."""
    host, model = convolutions(), convolutions().to("maca")
    function, x = compiled(model), torch.randn(2, 3, 12, 12)

    def check() -> None:
        torch.testing.assert_close(function(x.maca()).cpu(), host(x), rtol=1e-4, atol=1e-5)

    with torch.no_grad():
        check()
        for both in (host, model):
            both[0].weight.mul_(2)
            both[1].running_var.add_(1)
        check()
        other = convolutions()
        for p in [*other.parameters(), *other.buffers()]:
            if p.is_floating_point():
                p.mul_(0.5)
        host.load_state_dict(other.state_dict())
        model.load_state_dict(other.state_dict())
        check()
        host[3].weight.data = host[3].weight.data + 1
        model[3].weight.data = model[3].weight.data + 1
        check()
    for both in (host, model):
        both.train()
        both(torch.ones(2, 3, 12, 12, device=both[0].weight.device)).sum().backward()
        both.eval()
    with torch.no_grad():
        check()


def test_constants_are_made_once() -> None:
    weight = nn.Parameter(torch.randn(8, 8).maca())

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.ones(8, 8, device=x.device).tril()
            return x @ (self.weight * mask).bfloat16().float()

    model = Masked()
    function, x = compiled(model), torch.randn(4, 8).maca()
    with torch.no_grad():
        torch.testing.assert_close(function(x), model(x))
        function(x)
        assert len(launched(lambda: function(x))) == 1


def test_results_of_weights_are_the_callers_own() -> None:
    model = nn.Linear(4, 4).to("maca")

    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        doubled = model.weight * 2
        return doubled, doubled[0], x @ doubled

    function, x = compiled(both), torch.ones(1, 4, device="maca")
    with torch.no_grad():
        expected = [t.cpu() for t in both(x)]
        for _ in range(3):
            results = function(x)
            for a, b in zip(results, expected):
                torch.testing.assert_close(a.cpu(), b)
            for result in results:
                result.fill_(7)


def test_random_numbers_are_drawn_anew() -> None:
    model = nn.Linear(4, 4).to("maca")
    function = compiled(lambda x: x @ (model.weight + torch.rand_like(model.weight)))
    x = torch.ones(1, 4, device="maca")
    with torch.no_grad():
        assert not torch.equal(function(x).cpu(), function(x).cpu())


def test_programs_without_operands_keep_nothing() -> None:
    for program, expected in (
        (lambda: torch.ones(3, device="maca") + 1, [2, 2, 2]),
        (lambda: torch.arange(3, device="maca") * 2, [0, 2, 4]),
    ):
        compiled = torch.compile(program, fullgraph=True)
        first = compiled()
        first += 5  # what is written into a result stays there
        assert compiled().tolist() == expected
