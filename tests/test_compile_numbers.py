"""Floats that change from call to call make no new program, and give what eager mode gives, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled_graphs import graphs, nothing_compiled  # noqa: F401 - a fixture

import macatensor
from macatensor.compiling import numbers

# the first two are constants of graphs; then one of each range, and what has a program of its own
VALUES = (
    0.3,
    0.4,
    0.6,
    0.7,
    1.7,
    2.6,
    -0.3,
    -0.7,
    -1.2,
    1.0,
    2.0,
    0.0,
    -0.0,
    1e-40,
    1e5,
    float("inf"),
    float("nan"),
)

Program = Callable[[torch.Tensor, float], Any]
PROGRAMS: dict[str, Program] = {
    "alpha": lambda x, t: torch.add(x, x.sin(), alpha=t),
    "exponent": lambda x, t: x.abs() ** t,
    "calculated": lambda x, t: x * (1 - t * 0.1) / (t + 3),
    "fused": lambda x, t: F.elu(F.gelu(x) * t, 0.5) + t,
    "compared": lambda x, t: torch.where(x > t, x * t, t),
    "float16": lambda x, t: x.half() * t,
    "branch": lambda x, t: x * t if t > 0.5 else x + t,
    "constant": lambda x, t: F.layer_norm(x, (5,), eps=abs(t) + 0.1),
    "lists": lambda x, t: torch._foreach_add([x, x * 2], [x, x], alpha=t),
}
WITH_GRADIENTS = ("alpha", "fused", "constant")


def numbers_of(result: Any) -> list[torch.Tensor]:
    return [t.detach().cpu() for t in (result if isinstance(result, (list, tuple)) else [result])]


@pytest.mark.parametrize("name", PROGRAMS)
def test_changing_floats_give_eagers_bits(name: str) -> None:
    program = PROGRAMS[name]
    compiled = torch.compile(program, backend="maca")
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).to("maca")
    before = macatensor.counters()
    for value in VALUES:
        expected, found = numbers_of(program(x, value)), numbers_of(compiled(x, value))
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        for a, b in zip(found, expected):
            assert torch.equal(a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan())
    after = macatensor.counters()
    assert after["fallbacks"] == before["fallbacks"]
    if name not in ("branch", "constant"):  # Python, or a meta kernel, looks at the number there
        assert graphs() <= 3 and after["graphs_without_tape"] == before["graphs_without_tape"]


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_changing_floats_give_eagers_gradients(name: str) -> None:
    """Files of AOTAutograd's cache do not tell such numbers apart: a second one got the first's gradients."""
    program = PROGRAMS[name]
    compiled = torch.compile(program, backend="maca")
    given = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    for value in (*VALUES[:5], 1.0, 0.0, -0.3):
        expected, found = given.to("maca").requires_grad_(), given.to("maca").requires_grad_()
        program(expected, value).square().sum().backward()
        compiled(found, value).square().sum().backward()
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_changing_floats_use_the_tape_at_hand() -> None:
    compiled = torch.compile(PROGRAMS["alpha"], backend="maca")
    x = torch.ones(3, device="maca")
    for value in VALUES[:4]:
        compiled(x, value)
    before = macatensor.counters()["tapes"]
    for value in (0.11, 0.52, 0.97):
        compiled(x, value)
    assert macatensor.counters()["tapes"] == before
    compiled(x, 1.25)
    compiled(x, 1.26)
    assert macatensor.counters()["tapes"] == before + 1  # beyond 1


@pytest.mark.parametrize("name", ["AdamW", "SGD", "RMSprop"])
def test_a_compiled_optimizer_takes_any_learning_rate(name: str) -> None:
    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3).to("maca")
        return model, getattr(torch.optim, name)(model.parameters(), lr=1e-2, weight_decay=0.1)

    one, other = made(), made()
    step = torch.compile(other[1].step, backend="maca")
    for i in range(6):
        x = torch.randn(2, 4, generator=torch.Generator().manual_seed(i)).to("maca")
        for (model, optimizer), update in ((one, one[1].step), (other, step)):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            update()
            optimizer.param_groups[0]["lr"] *= 0.93
    assert graphs() <= 3  # before there are states, with them, and with a rate that changes
    torch.testing.assert_close(list(one[0].parameters()), list(other[0].parameters()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "value, expected",
    [(0.3, (0.0, 1.0)), (-0.3, (-1.0, 0.0)), (1.2, (1.0, 65504.0)), (-7.3, (-65504.0, -1.0))]
    + [(v, None) for v in (0.0, 0.5, 1.0, -2.0, 2.5, 1e5, float("inf"), float("nan"), 1, True)],
)
def test_ranges_of_floats_that_may_change(value: Any, expected: Any) -> None:
    assert numbers.range_of(value) == expected
    if expected is not None:
        found = [numbers.stand_in(value, i, turn) for i in range(40) for turn in (0, 1)]
        assert len(set(found)) == 80 and {numbers.range_of(f) for f in found} == {expected}
