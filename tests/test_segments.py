"""Compiled graphs that ask the host for something: what lies between runs as tapes, with eager's results and effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import while_loop

import macatensor
from macatensor.compiling.backend import maca

Program = Callable[..., Any]
PROGRAMS: dict[str, Program] = {}
TAPES: dict[str, int] = {}  # that each program's three calls make


def tapes(count: int) -> Callable[[Program], Program]:
    def mark(function: Program) -> Program:
        PROGRAMS[function.__name__] = function
        TAPES[function.__name__] = count
        return function

    return mark


@tapes(4)
def chooses(x: torch.Tensor, host: torch.Tensor) -> Any:
    y = (x * 2 + 1).relu()
    z = torch.cond(y.sum() > 4, lambda t: (t + 1).sin().cos(), lambda t: (t - 1).exp().sin(), (y,))
    return (z * 3).exp().log()


@tapes(2)
def loops(x: torch.Tensor, host: torch.Tensor) -> Any:
    start = torch.zeros((), dtype=torch.int64, device=x.device)
    return while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, (t * 2 + 1).sin()), (start, x))


@tapes(3)
def has_operand_on_host(x: torch.Tensor, host: torch.Tensor) -> Any:
    y = ((x * 2 + 1).relu() * host).sin()
    return y + x.sin(), (y + host).relu() * 2 + 1


@tapes(1)
def has_constant(x: torch.Tensor, host: torch.Tensor) -> Any:
    return (x * 2).sin() * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device) + x.exp()


@tapes(1)
def returns_constant(x: torch.Tensor, host: torch.Tensor) -> Any:
    table = torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)
    return table.view(2, 2), ((x * 2).sin() + table).exp()


@tapes(2)
def picks(x: torch.Tensor, host: torch.Tensor) -> Any:
    y = (x * 2).sin().cos()
    z = y[y > 0.5]
    return (z * 2).sin(), y.exp() + 1


@tapes(2)
def counts(x: torch.Tensor, host: torch.Tensor) -> Any:
    y = (x * 2).sin()
    return torch.histc(y.relu() + 1, 4) * 2 + 1, (y + 1).exp()


@tapes(1)
def writes_inputs(x: torch.Tensor, host: torch.Tensor) -> Any:
    before = (x.cpu() + host).sum()
    view = x.view(2, 2)
    view.mul_(3).add_(before)
    host.add_(1)
    y = (x * host).sin()
    x.add_(y.view(-1) * 2)
    return y, before


@tapes(2)
def draws(x: torch.Tensor, host: torch.Tensor) -> Any:
    y = torch.rand_like(x) + x * 2
    z = drawn(y)
    return torch.rand_like(x) * z + 1


@torch.library.custom_op("maca_tests::drawn", mutates_args=())
def drawn(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x)


@drawn.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def called(function: Program) -> list[Any]:
    """Three calls' results and the inputs that they left."""
    found: list[Any] = []
    torch.manual_seed(3)
    for start in (1.0, -1.0, 1.0):
        x = (torch.arange(4.0) * start).to("maca")
        host = torch.tensor(2.0)
        found.append([function(x, host), x, host])
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_parts_give_what_eager_gives(name: str) -> None:
    expected = called(PROGRAMS[name])
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(PROGRAMS[name], backend=maca, fullgraph=True, dynamic=False)
        macatensor.reset_counters()
        found = called(compiled)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    counters = macatensor.counters()
    assert (counters["tapes"], counters["graphs_without_tape"]) == (TAPES[name], 0)


def test_constants_that_callers_get_are_theirs() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(returns_constant, backend=maca, fullgraph=True)
    x = torch.zeros(4, device="maca")
    for _ in range(3):
        table, y = compiled(x, None)
        assert table.tolist() == [[1, 2], [3, 4]]
        torch.testing.assert_close(y.cpu(), torch.tensor([1.0, 2.0, 3.0, 4.0]).exp())
        table.zero_()


def test_parts_run_backward() -> None:
    def loss(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        y = ((x * 2).sin() * host).exp()
        return torch.cond(y.sum() > 0, lambda t: (t * t).sin(), lambda t: t.exp() + 1, (y,)).sum()

    gradients = []
    for function in (loss, torch.compile(loss, backend=maca, fullgraph=True)):
        x = torch.arange(4.0).to("maca").requires_grad_()
        for _ in range(3):
            function(x, torch.tensor(2.0)).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def test_parts_let_go_of_what_was_read() -> None:
    """The peak of a graph in parts is not above that of the whole."""

    def chain(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = ((x + 1).sin() * host).relu() + 1
        return x

    x, host = torch.zeros(1 << 18, device="maca"), torch.tensor(2.0)
    peaks = []
    for function in (chain, torch.compile(chain, backend=maca, fullgraph=True)):
        function(x, host)
        torch.maca.reset_peak_memory_stats()
        before = torch.maca.memory_allocated()
        function(x, host)
        peaks.append(torch.maca.max_memory_allocated() - before)
    assert peaks[1] <= peaks[0]
